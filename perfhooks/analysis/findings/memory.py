from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import runtime_calls
from perfhooks.trace.nesting import intervals, starts
from perfhooks.trace.tables import device_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.trace.model import Ints


def allocator_churn(window: Evidence) -> Iterator[Finding]:
    """Steps call ``cudaMalloc`` or ``cudaFree`` at least once each, for 1% of their time or more.

    Source: `evidence.NOTABLE`. A recording without step marks may be the start of a program, which allocates
    memory for the first time. There, calls count from the first release of memory after 10% of all launches
    (`perfhooks.trace.nesting.starts.is_first`). There is no finding if one-time work takes most of the recording.

    Not measured.
    """
    rows = window.matching(runtime_calls.ALLOCATOR, Kind.RUNTIME)
    if not window.are_numbered:
        rows = _calls_after_release(window, rows)
    call_ms = window.per_step(window.spans(rows))
    gain = min(call_ms, window.per_step(window.idle_for(device_time.MEMORY)) if window.is_device_traced else call_ms)
    if len(rows) < window.count or not window.is_worth(gain):
        return
    if 2 * window.share(window.per_step(intervals.joined(*window.startup.values()))) > 1:
        return
    text = window.texts("allocator-churn", "" if window.is_device_traced else "untraced", call_ms=call_ms)
    evidence = [text("count", count=window.count_per_step(rows)), *window.by_name(rows), *window.by_line(rows)]
    yield from window.finding(text, gain, evidence=evidence, of=window.spans(rows))


def _calls_after_release(window: Evidence, rows: Ints) -> Ints:
    start = window.trace.start[rows]
    is_release = np.isin(rows, window.matching(runtime_calls.RELEASE, Kind.RUNTIME)) & ~starts.is_first(
        window.trace, rows
    )
    return rows[start >= start[is_release].min()] if is_release.any() else rows[:0]
