from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.analysis.findings import frameworks
from perfhooks.analysis.findings.finding import MAJOR
from perfhooks.trace.kinds import Kind
from perfhooks.trace.nesting import intervals, starts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.analysis.findings.texts import EvidenceLine
    from perfhooks.trace.nesting.intervals import Intervals

SOONEST: Final = 10
"""Recommended minimum steps before the first recorded step. After 10 steps, kernels are loaded and compiled."""


def recorded_start(window: Evidence) -> Iterator[Finding]:
    """Report one-time work that takes at least 10% of the profiled time (`MAJOR`).

    Also report that only first steps (the first three of a process) were profiled. One-time work includes loading
    kernels, creating a context, the first compilation, capturing graphs and trying convolution algorithms
    (`perfhooks.trace.nesting.starts`). If the last profiled step compiles too, `recompilation` reports the
    compilations.
    """
    startup = window.startup
    one_time = intervals.joined(*startup.values())
    start_ms = window.per_step(one_time)
    if window.share(start_ms) < MAJOR and not window.is_start:
        return
    wait = max(SOONEST, _last_start_step(window, one_time) + 1)
    circumstances = window.circumstances
    schedule = window.option("schedule", f"wait={wait} warmup=2 active=3 repeat=1")
    text = window.texts(
        "recorded-start",
        "" if window.share(start_ms) >= MAJOR else "first-steps",
        "framework" if circumstances.is_launched or circumstances.framework else "",
        start_ms=start_ms,
        step_ms=window.step_ms,
        wait=wait,
        recording=frameworks.recording(schedule, circumstances),
    )
    kinds = [text("kind", kind=name, time_ms=window.per_step(moments)) for name, moments in startup.items()]
    calls = _call_lines(window, one_time) or [text("steps", steps=window.numbers)]
    yield from window.finding(text, None, evidence=[*kinds, *calls], doubts_others=True)


def _last_start_step(window: Evidence, moments: Intervals) -> int:
    inside = intervals.within(moments, window.marks.start, window.marks.end) > 0
    return max((int(window.marks.number[index] or 0) for index in np.flatnonzero(inside).tolist()), default=-1)


def _call_lines(window: Evidence, moments: Intervals) -> list[EvidenceLine]:
    trace = window.trace
    calls = trace.rows(Kind.RUNTIME)
    calls = calls[intervals.within(moments, trace.start[calls], trace.end[calls]) >= starts.LOADING_NS]
    return window.by_name(calls)[:3]
