"""The window recorded a start: what a step takes later is not in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.analysis.findings import faces
from perfhooks.core.words import ms
from perfhooks.trace.kinds import Kind
from perfhooks.trace.nesting import intervals, starts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.trace.nesting.intervals import Intervals

START: Final = 0.1
"""Of the recorded steps. What is done once and takes a tenth of a window makes its means those of no step."""
SOONEST: Final = 10
"""Steps to wait for at least: by then kernels are loaded and chosen, and the first compilations are over."""
WARMUP: Final = 2
"""Steps with the recorder on whose results are thrown away, so that its own start is not in the window either."""

_SHOWN: Final = 3


def recorded_start(window: Evidence) -> Iterator[Finding]:
    """One-time work takes a tenth of the recorded time or more, or only first steps of the program were recorded.

    Source: `START`, `SOONEST`, `WARMUP`; the first steps are the first three of a process. One-time work is loading
    kernels and making a context, the first compilation, capturing graphs, trying out convolutions
    (`perfhooks.trace.nesting.starts`). Compiling in the last recorded step as well is no start but `recompilation`.

    Measured: there is no gain to measure.
    """
    spent = window.startup
    every = intervals.joined(*spent.values())
    taken = window.per_step(every)
    if window.share(taken) < START and not window.is_start:
        return
    wait = max(SOONEST, _last(window, every) + 1)
    yield from window.finding(
        "recorded-start",
        None,
        title=(
            f"One-time work takes {ms(taken)} of a {window.unit} of {ms(window.step_ms)}."
            if window.share(taken) >= START
            else "Only first steps of the program were recorded, so there is no advice about its steps."
        ),
        estimate="No gain: this finding explains why these figures are not those of later steps.",
        evidence=[f"{name}: {ms(window.per_step(each))}" for name, each in spent.items()]
        + (_calls(window, every) or [f"recorded: {window.numbers}"]),
        advice=(
            "The figures of this window are not those of later steps. In the first steps libraries are imported, "
            "kernels are loaded, code is compiled, graphs are captured and convolutions are tried. Record later, and "
            "let the recorder warm up for some steps. If the start itself is too slow, this window shows why."
        ),
        code=_later(window, wait),
        doubts_others=True,
    )


def _later(window: Evidence, wait: int) -> str:
    """What to write in order to record later."""
    line = faces.recording(
        window.option("schedule", f"wait={wait} warmup={WARMUP} active=3 repeat=1"), window.circumstances
    )
    torch = f"torch.profiler.schedule(wait={wait}, warmup={WARMUP}, active=3, repeat=1)   # with torch's own"
    return line if window.circumstances.is_launched or window.circumstances.framework else f"{line}\n{torch}"


def _last(window: Evidence, moments: Intervals) -> int:
    """The number of the last step in which some of a start lies; -1 without numbers."""
    inside = intervals.within(moments, window.marks.start, window.marks.end) > 0
    return max((int(window.marks.number[place] or 0) for place in np.flatnonzero(inside).tolist()), default=-1)


def _calls(window: Evidence, moments: Intervals) -> list[str]:
    """The longest calls of the runtime in some moments."""
    trace = window.trace
    calls = trace.rows(Kind.RUNTIME)
    calls = calls[intervals.within(moments, trace.start[calls], trace.end[calls]) >= starts.LOADING_NS]
    return window.by_name(calls)[:_SHOWN]
