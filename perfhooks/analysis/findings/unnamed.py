from __future__ import annotations

from typing import TYPE_CHECKING

from perfhooks.analysis.findings import frameworks
from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.analysis.findings.finding import UNNAMED
from perfhooks.run.capture import LARGE
from perfhooks.trace.kinds import Kind
from perfhooks.trace.nesting import intervals
from perfhooks.trace.nesting.intervals import MOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding


def unnamed_time(window: Evidence) -> Iterator[Finding]:
    """Report code outside of torch while no device works, if it takes at least 20% of a training step.

    The threshold is 1 - `intervals.MOST`. The time is ``other_ms`` of the table of steps, minus operators and device
    work. There is no finding if a profiled step takes at least 1.5 times as long as an unprofiled one, because the time
    may be profiler overhead. If the training waited for CPUs, the step with the smallest share of code outside of torch
    counts, because waits for a CPU hit single steps.
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
