"""The allocator asks the device for memory again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.core.words import ms
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import runtime_calls
from perfhooks.trace.nesting import intervals, starts
from perfhooks.trace.tables import device_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.trace.model import Ints

OFTEN: Final = 1.0
"""Calls in a step, on average: once warm, torch's allocator makes none."""

STARTING: Final = 0.5
"""Of the recorded steps. Where more than that is done once, what is asked for is asked for the first time: cuDNN tries
convolutions with memory that it gives back, and so does the capture of a graph."""


def allocator_churn(window: Evidence) -> Iterator[Finding]:
    """Steps call ``cudaMalloc`` or ``cudaFree`` once each or more, for 1% of their time or more.

    Source: `OFTEN`, `evidence.NOTABLE`. A recording without marks of steps may be the start of a program, where memory
    is taken for the first time: there only calls count that come after the first one which gave memory back, and that
    after a tenth of all launches (`perfhooks.trace.nesting.starts.FIRST`). Where most of what was recorded is a start
    (`STARTING`) nothing is said.

    Measured: never; the gain is an upper bound.
    """
    rows = window.named(runtime_calls.ALLOCATOR, Kind.RUNTIME)
    if not window.are_numbered:
        rows = _asked_again(window, rows)
    spent = window.per_step(window.spans(rows))
    gain = min(spent, window.per_step(window.idle_for(device_time.MEMORY)) if window.is_device_traced else spent)
    if len(rows) < OFTEN * window.count or not window.is_worth(gain):
        return
    if window.share(window.per_step(intervals.joined(*window.startup.values()))) > STARTING:
        return
    yield from window.finding(
        "allocator-churn",
        gain,
        title=f"The device is asked for memory anew for {ms(spent)} of a {window.unit}.",
        estimate=(
            "The time of these calls in which no device worked."
            if window.is_device_traced
            else "The time of these calls: when the device worked is unknown."
        ),
        evidence=[
            f"{window.count_per_step(rows)} calls in a {window.unit}",
            *window.by_name(rows),
            *window.by_line(rows),
        ],
        advice=(
            "Once warm, torch's allocator serves every step from what it holds. It goes back to the device if memory "
            "is nearly full or fragmented by changing shapes, if the loop calls torch.cuda.empty_cache(), which only "
            "makes the next step slower, or if PYTORCH_NO_CUDA_MEMORY_CACHING turns it off. Let segments grow, keep "
            "shapes alike, or use a little less memory."
        ),
        code="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True   # in the environment; no empty_cache() in the loop",
        of=window.spans(rows),
    )


def _asked_again(window: Evidence, rows: Ints) -> Ints:
    """The calls from the first one on that gives memory back, once the program runs."""
    start = window.trace.start[rows]
    given_back = np.isin(rows, window.named(runtime_calls.RELEASE, Kind.RUNTIME)) & ~starts.is_first(window.trace, rows)
    return rows[start >= start[given_back].min()] if given_back.any() else rows[:0]
