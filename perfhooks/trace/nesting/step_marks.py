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


class MarkedSteps(NamedTuple):
    number: list[int | None]
    thread: Ints
    start: Ints
    end: Ints


@cached_per_trace
def find(trace: Trace) -> MarkedSteps:
    """Return the steps of the ``ProfilerStep`` marks; in a trace without marks, the whole trace as one step."""
    marks = trace.named(Kind.ANNOTATION, prefix=labels.STEP_MARK)
    numbers = {row: _parse_number(trace.names[trace.name[row]]) for row in marks.tolist()}
    marks = marks[[numbers[row] is not None for row in marks.tolist()]] if len(marks) else marks
    if not len(marks):
        return _single_step(trace)
    marks = marks[np.argsort(trace.start[marks], kind="stable")]
    return MarkedSteps(
        [numbers[row] for row in marks.tolist()], trace.thread[marks], trace.start[marks], trace.end[marks]
    )


def _parse_number(mark: str) -> int | None:
    digits = mark.removeprefix(labels.STEP_MARK)
    return int(digits) if _DIGITS.fullmatch(digits) else None


def _single_step(trace: Trace) -> MarkedSteps:
    """Return one step over the whole trace, on the thread with most host slices.

    Slices inside autograd nodes are not counted, because autograd's thread may have more operators than the thread of
    the training loop.
    """
    calls = trace.rows(*HOST)
    rows = trace.rows(*HOST, *DEVICE_WORK) if device.clocks(trace).agree else calls
    if not len(rows):
        empty = np.empty(0, np.int64)
        return MarkedSteps([], empty, empty, empty)
    outside = host.tree(trace).row[autograd.find(trace).inside < 0]
    candidates = outside if len(outside) else calls
    thread = np.bincount(trace.thread[candidates]).argmax() if len(candidates) else -1
    return MarkedSteps(
        [None], np.array([thread]), trace.start[rows].min(keepdims=True), trace.end[rows].max(keepdims=True)
    )


def step_of(steps: MarkedSteps, time: Ints) -> Ints:
    """Return the index of the step that contains each time, or -1; of overlapping steps, the later one."""
    if not len(steps.start):
        return np.full(len(time), -1, np.int64)
    index = np.searchsorted(steps.start, time, "right") - 1
    return np.where((index >= 0) & (time < steps.end[index]), index, -1)


def per_step(steps: MarkedSteps, time: Ints) -> Ints:
    step = step_of(steps, time)
    return np.bincount(step[step >= 0], minlength=len(steps.number))
