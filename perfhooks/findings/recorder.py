"""The recorder itself is what takes the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.words import ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding

LARGE: Final = 1.5
"""Times the unrecorded step. Recording a step that waits for the host costs 25 to 45%; beyond half as much again,
shares of a step are no longer those of the training."""


def profiler_overhead(seen: Evidence) -> Iterator[Finding]:
    """A recorded step takes half as long again as one that was not recorded, or more.

    Source: `LARGE`; the medians of the run's own clock. Nothing is gained here but the truth of the other figures.

    Measured: there is no gain to measure.
    """
    cost = seen.capture.cost
    if not cost.idle_step_ms or cost.recorded_step_ms is None or cost.recorded_step_ms < LARGE * cost.idle_step_ms:
        return
    wanted = [name for name in ("with_stack", "profile_memory", "record_shapes") if seen.capture.options.get(name)]
    yield from seen.finding(
        "profiler-overhead",
        None,
        title=f"Recording makes a step {cost.recorded_step_ms / cost.idle_step_ms:.1f} times as long as it is.",
        estimate="No gain for the training: it runs at full speed when nobody records.",
        evidence=[
            f"{ms(cost.recorded_step_ms)} when recorded, {ms(cost.idle_step_ms)} otherwise (medians)",
            *([f"recorded with {', '.join(wanted)}"] if wanted else []),
        ],
        advice=(
            "The host's part of every figure of this window is too large, small operators most. Record less at a time: "
            "stacks cost most, then shapes and memory. Compare with a window recorded without them before acting on "
            "what the host does."
        ),
        code="perfhooks.Profiler(schedule=..., with_stack=False, profile_memory=False)",
    )
