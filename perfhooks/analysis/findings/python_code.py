from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.analysis.findings import frameworks
from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.analysis.findings.finding import MAJOR, UNNAMED
from perfhooks.core import labels
from perfhooks.run.capture import LARGE
from perfhooks.trace.kinds import Kind
from perfhooks.trace.nesting import device, intervals, parts
from perfhooks.trace.nesting.intervals import MOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Intervals

LEAST_CALLS: Final = 500
"""Minimum calls in a sequence: networks have fewer layers."""
SMALL_NS: Final = 30_000
"""Maximum median duration in ns."""
_LONGEST_BODY: Final = 20
"""Maximum operators from one repeated operator to the next if those in between belong to the loop."""
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
    """Report loops of small operators that run at least 500 times in a sequence and take at least 10% of the step.

    The thresholds are `LEAST_CALLS`, `SMALL_NS` and `MAJOR`. Parts of `_ELSEWHERE` and device work do not count.
    """
    rows, loop = _repeated(window)
    loop_ms = window.per_step(loop)
    if window.share(loop_ms) < MAJOR:
        return
    text = window.texts("operator-loop", loop_ms=loop_ms)
    evidence = [text("calls", count=window.count_per_step(rows)), *(window.by_line(rows) or window.by_name(rows))]
    yield from window.finding(text, min(loop_ms, window.host_limit_ms), evidence=evidence, of=loop)


def _repeated(window: Evidence) -> tuple[Ints, Intervals]:
    """Return operators and intervals of loops. A large operator, part or step ends a sequence.

    A loop includes the rarer small operators between two repeated ones.
    """
    trace = window.trace
    rows = trace.rows(Kind.OP)
    rows = window.outermost(rows[(trace.thread[rows] == window.thread) & window.inside(trace.start[rows])])
    start, end, name = trace.start[rows], trace.end[rows], trace.name[rows]
    by_part = parts.of_thread(trace, window.thread)
    elsewhere = intervals.joined(*(by_part[part] for part in _ELSEWHERE))
    large = [index for index in np.unique(name).tolist() if np.median((end - start)[name == index]) >= SMALL_NS]
    is_other = np.isin(name, large) | intervals.covers(elsewhere, start)
    borders = np.sort(np.concatenate([elsewhere[:, 0], window.marks.start]))
    sequence = np.cumsum(is_other) + np.searchsorted(borders, start, "right")
    launching = device.around(trace, device.launch_calls(trace), rows)
    is_small = ~is_other & (end - start < SMALL_NS) & ~np.isin(rows, launching)
    _, group, counts = np.unique(
        np.stack([sequence, name])[:, is_small], axis=1, return_inverse=True, return_counts=True
    )
    small = np.flatnonzero(is_small)
    looping = _with_inner(small[counts[group.ravel()] >= LEAST_CALLS], small, sequence)
    if window.runs_on_device(rows[looping]):
        looping = looping[:0]
    following = np.append(start[1:], end[-1:])[looping]
    end = end[looping]
    return rows[looping], window.clipped(
        intervals.union(start[looping], np.where(following - end < SMALL_NS, following, end))
    )


def _with_inner(repeated: Ints, small: Ints, sequence: Ints) -> Ints:
    """Return the repeated operators, and the small ones between two of them in the same sequence."""
    if not len(repeated):
        return repeated
    place = np.searchsorted(repeated, small, "right")
    before, after = repeated[np.maximum(place - 1, 0)], repeated[np.minimum(place, len(repeated) - 1)]
    is_near = (before <= small) & (small <= after) & (after - before <= _LONGEST_BODY)
    is_same = (sequence[before] == sequence[small]) & (sequence[small] == sequence[after])
    looping: Ints = small[(before == small) | (is_near & is_same)]
    return looping
