"""The steps of a trace: from one mark on the host to the next, and which of them a moment lies in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.core import labels
from perfhooks.trace.kinds import DEVICE_WORK, HOST, Kind
from perfhooks.trace.nesting import autograd, device, host
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace

_DIGITS: Final = re.compile(r"[0-9]{1,18}")
"""Of a step's number that a column of 64 bits can hold."""


class MarkedSteps(NamedTuple):
    """The steps of a trace, by time: one row for each mark."""

    number: list[int | None]
    thread: Ints
    start: Ints
    end: Ints


@cached_per_trace
def find(trace: Trace) -> MarkedSteps:
    """The steps of a trace: its marks on the host, else one for all of it."""
    marks = trace.named(Kind.ANNOTATION, prefix=labels.STEP_MARK)
    numbers = {row: _number(trace.names[trace.name[row]]) for row in marks.tolist()}
    marks = marks[[numbers[row] is not None for row in marks.tolist()]] if len(marks) else marks
    if not len(marks):
        return _whole(trace)
    marks = marks[np.argsort(trace.start[marks], kind="stable")]
    return MarkedSteps(
        [numbers[row] for row in marks.tolist()], trace.thread[marks], trace.start[marks], trace.end[marks]
    )


def _number(mark: str) -> int | None:
    digits = mark.removeprefix(labels.STEP_MARK)
    return int(digits) if _DIGITS.fullmatch(digits) else None


def _whole(trace: Trace) -> MarkedSteps:
    """One step over everything; its thread is the one that ran most operators, or labels, or calls.

    What runs in nodes of autograd does not count: on a device a thread of its own runs these, and often more of them
    than the loop runs itself.
    """
    calls = trace.rows(*HOST)
    rows = trace.rows(*HOST, *DEVICE_WORK) if device.clocks(trace).agree else calls
    if not len(rows):
        none = np.empty(0, np.int64)
        return MarkedSteps([], none, none, none)
    outside = host.tree(trace).row[autograd.find(trace).inside < 0]
    counted = outside if len(outside) else calls
    thread = np.bincount(trace.thread[counted]).argmax() if len(counted) else -1
    return MarkedSteps(
        [None], np.array([thread]), trace.start[rows].min(keepdims=True), trace.end[rows].max(keepdims=True)
    )


def step_of(steps: MarkedSteps, time: Ints) -> Ints:
    """The step inside which each moment lies, or -1; of two that overlap, the later."""
    if not len(steps.start):
        return np.full(len(time), -1, np.int64)
    place = np.searchsorted(steps.start, time, "right") - 1
    return np.where((place >= 0) & (time < steps.end[place]), place, -1)


def per_step(steps: MarkedSteps, time: Ints) -> Ints:
    """How many of some moments lie inside each step."""
    step = step_of(steps, time)
    return np.bincount(step[step >= 0], minlength=len(steps.number))
