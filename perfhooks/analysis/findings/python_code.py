from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.analysis.findings import frameworks
from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.analysis.findings.finding import MAJOR, UNNAMED
from perfhooks.core import labels
from perfhooks.run.capture import LARGE
from perfhooks.trace.kinds import Kind
from perfhooks.trace.nesting import intervals, parts
from perfhooks.trace.nesting.intervals import MOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Intervals

LEAST_CALLS: Final = 500
"""Minimum calls in a step: networks have fewer layers."""
SMALL_NS: Final = 30_000
"""Maximum median duration in ns."""
_ELSEWHERE: Final = (labels.DATA, labels.TRANSFER, labels.BACKWARD, labels.OPTIMIZER, labels.VALIDATION)


def unnamed_time(window: Evidence) -> Iterator[Finding]:
    """Report code outside of torch while no device works, if it takes at least 20% of a training step.

    The threshold is 1 - `intervals.MOST`. There is no finding if a profiled step takes at least 1.5 times as long as an
    unprofiled one, because the time may be profiler overhead. If the training waited for CPUs, the step with the
    smallest share of code outside of torch counts.
    """
    is_recorder = window.step_ms >= LARGE * window.unprofiled_ms and not window.capture.explains
    if _unnamed_share(window) <= 1 - MOST or not window.mean("backward_ms") or is_recorder:
        return
    unnamed_ms, has_stacks = window.per_step(window.unnamed), bool(window.trace.rows(Kind.PYTHON).size)
    text = window.texts(
        UNNAMED,
        "" if has_stacks else "without-stacks",
        unnamed_ms=unnamed_ms,
        option=window.option("with_stack"),
        recording=frameworks.stacks(window.circumstances),
    )
    evidence = [text("time"), *top_lines(window.own_time_in(window.unnamed))]
    yield from window.finding(text, min(unnamed_ms, window.host_limit_ms), evidence=evidence, of=window.unnamed)


def _unnamed_share(window: Evidence) -> float:
    if not window.is_busy:
        return 1 - window.named_share
    step_ns = intervals.within(window.windows, window.marks.start, window.marks.end)
    unnamed_ns = intervals.within(window.unnamed, window.marks.start, window.marks.end)
    shares = unnamed_ns[step_ns > 0] / step_ns[step_ns > 0]
    return float(shares.min(initial=1.0)) if len(shares) else 0.0


def operator_loop(window: Evidence) -> Iterator[Finding]:
    """Report small operators that run at least 500 times each, if they take at least 10% of the step (`MAJOR`).

    The thresholds are `LEAST_CALLS` and `SMALL_NS`. Parts of `_ELSEWHERE` do not count. There is no finding if they
    launch device work. The time includes the Python code between calls.
    """
    rows = _repeated(window)
    loop = _with_code_between(window, rows)
    loop_ms = window.per_step(loop)
    if window.share(loop_ms) < MAJOR:
        return
    text = window.texts("operator-loop", loop_ms=loop_ms)
    evidence = [text("calls", count=window.count_per_step(rows)), *(window.by_line(rows) or window.by_name(rows))]
    yield from window.finding(text, min(loop_ms, window.host_limit_ms), evidence=evidence, of=loop)


def _repeated(window: Evidence) -> Ints:
    trace = window.trace
    rows = trace.rows(Kind.OP)
    rows = rows[(trace.thread[rows] == window.thread) & window.inside(trace.start[rows])]
    by_part = parts.of_thread(trace, window.thread)
    elsewhere = intervals.joined(*(by_part[part] for part in _ELSEWHERE))
    rows = window.outermost(rows[~intervals.covers(elsewhere, trace.start[rows])])
    _, of_row, counts = np.unique(trace.name[rows], return_inverse=True, return_counts=True)
    length = (trace.end - trace.start)[rows]
    many = np.flatnonzero(counts >= LEAST_CALLS * window.count)
    small = [index for index in many.tolist() if np.median(length[of_row == index]) < SMALL_NS]
    repeated: Ints = rows[np.isin(of_row, small)]
    return repeated[:0] if window.runs_on_device(repeated) else repeated


def _with_code_between(window: Evidence, rows: Ints) -> Intervals:
    trace = window.trace
    start, end = trace.start[rows], trace.end[rows]
    following = np.append(start[1:], end[-1:])
    return window.clipped(intervals.union(start, np.where(following - end < SMALL_NS, following, end)))
