"""The recorder itself is what takes the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.words import ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding

_RECORD_LESS: Final = (
    "The host's part of every figure of this window is too large, small operators most. Record less at a time: stacks "
    "cost most, then shapes and memory. Compare with a window recorded without them before acting on what the host "
    "does."
)
_NOTHING_TO_LEAVE_OUT: Final = (
    "The host's part of every figure of this window is too large, small operators most, and nothing was recorded that "
    "could be left out: believe the unrecorded steps, and here the order of things more than how long they took."
)


def profiler_overhead(seen: Evidence) -> Iterator[Finding]:
    """A recorded step takes half as long again as one that was not recorded, or more.

    Source: `LARGE`; the medians of the run's own clock. Nothing is gained here but the truth of the other figures.

    Measured: there is no gain to measure.
    """
    cost = seen.capture.cost
    if not cost.is_large or seen.capture.circumstances.is_busy:
        return
    wanted = [name for name in ("with_stack", "profile_memory", "record_shapes") if seen.capture.options.get(name)]
    yield from seen.finding(
        "profiler-overhead",
        None,
        title=f"Recording makes a step {cost.slowdown:.1f} times as long as it is.",
        estimate="No gain for the training: it runs at full speed when nobody records.",
        evidence=[
            f"{ms(cost.recorded_step_ms or 0.0)} when recorded, {ms(cost.idle_step_ms or 0.0)} otherwise (medians)",
            *([f"recorded with {', '.join(map(seen.option, wanted))}"] if wanted else []),
        ],
        advice=_RECORD_LESS if wanted else _NOTHING_TO_LEAVE_OUT,
        code=_less(seen, wanted),
    )


def _less(seen: Evidence, wanted: list[str]) -> str:
    """What to write in order to leave out what was asked for."""
    if seen.told.is_launched:
        return f"perfhooks run ...   # without {' '.join(map(seen.option, wanted))}" if wanted else ""
    return ", ".join(f"{name}=False" for name in wanted)
