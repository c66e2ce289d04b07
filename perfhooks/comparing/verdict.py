"""How sure one can be that two trainings differ: intervals of the ratio of their step times.

A process differs from the next by more than its own steps tell: so one run a side is known less well than its steps
suggest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from perfhooks.errors import OptionError
from perfhooks.statistics import CONFIDENCE, Level, level, student

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from perfhooks.statistics import Values

TOLERANCE: Final = 0.02
"""A ratio that is this close to 1 is no difference, unless said otherwise: unchanged code moves by as much."""
PROCESS_SD: Final = 0.02
"""By what share the same training differs from one process to the next, as a standard deviation, where too few runs
were made to measure it: memory layout, clocks. The value is an assumption for quiet machines."""
PROCESS_OF_STEPS: Final = 0.3
"""And no less than by this share of how much their steps differ: what disturbs a machine within a run, as others that
use it do, disturbs one run more than the next. Of steps that differ by 5%, as on a quiet machine, that is below 2%."""
PROCESS_OF_DRIFT: Final = 2.0
"""And no less than by so many times what the parts of a run differ by (see `Level.drift`): a machine that is slower for
half a second is slower for a minute as well. Of 24 equal runs whose median step took 1.5 to 3.1 ms, by what others did
on the same machine, 55 of all 276 pairs were told apart without this, 3 with it."""
_MOST_STEPS: Final = 1000
"""Nobody records a thousand times as many steps to decide one question."""
MOST_RUNS: Final = 99
"""Nobody records more runs a side to decide one question."""

Outcome = Literal["slower", "faster", "same", "undecided"]

_MEASURED: Final = 4
"""From so many degrees of freedom on (three runs a side) the runs themselves say how much processes differ."""
_TAIL: Final = (1 - CONFIDENCE) / 2
_Z: Final = NormalDist().inv_cdf(1 - _TAIL)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What can be said about B's step time as a multiple of A's."""

    outcome: Outcome
    ratio: float
    """B's median over A's; above 1 is slower."""
    low: float
    high: float
    tolerance: float
    median_a: float
    median_b: float
    """In the unit of the steps."""
    runs_a: int
    runs_b: int
    steps_a: int
    steps_b: int
    is_process_known: bool
    """Whether there were runs enough to measure how much processes differ, instead of assuming it."""
    process_sd: float
    """By what share one process is taken to differ from the next, as a standard deviation."""
    more_steps: int | None = None
    """Of an undecided one: how many steps more in each run would decide, with the runs that there are."""
    more_runs: int | None = None
    """And how many runs more a side; None where `MOST_RUNS` are not enough."""


def verdict(a: Sequence[Level], b: Sequence[Level], *, tolerance: float = TOLERANCE) -> Verdict:
    """Compare the step times of two trainings.

    The ratio is that of the runs' medians, of several runs a side of their geometric means. Its interval (99%) has two
    parts, of which the larger counts where both are measured: how well the steps of each run tell its median (see
    `level`), and how much runs of one side differ, which three runs a side or more tell (Student's distribution,
    as drawing from three runs again cannot show more than three values). Where there are fewer, processes are
    taken to differ by `PROCESS_SD`, or more where steps differ much or the runs drift, and both parts are added as
    variances are.

    Args:
        a: The level of each run of one side, at least one.
        b: And of the other.
        tolerance: What share of difference is none.

    Returns:
        ``slower`` where the whole interval is above 1 + tolerance, ``faster`` where it is below 1 / (1 + tolerance),
        ``same`` where it is between, else ``undecided``; B against A is the mirror of A against B.
    """
    sides = (a, b)
    logs = [np.array([each.log for each in side]) for side in sides]
    centre = float(logs[1].mean() - logs[0].mean())
    process = _Process.of(logs, _assumed([*a, *b]))
    downwards = math.hypot(_reach(sides[1], "below"), _reach(sides[0], "above"))
    upwards = math.hypot(_reach(sides[1], "above"), _reach(sides[0], "below"))
    low, high = centre - process.joined(downwards), centre + process.joined(upwards)
    edge = math.log1p(tolerance)
    outcome = _outcome(low, high, edge)
    more: tuple[int | None, int | None] = (None, None)
    if outcome == "undecided":
        open_question = (abs(abs(centre) - edge), max(downwards, upwards), process)
        more = _more_steps(*open_question, max(each.steps for each in (*a, *b))), _more_runs(*open_question)
    return Verdict(
        outcome=outcome,
        ratio=math.exp(centre),
        low=math.exp(low),
        high=math.exp(high),
        tolerance=tolerance,
        median_a=math.exp(logs[0].mean()),
        median_b=math.exp(logs[1].mean()),
        runs_a=len(a),
        runs_b=len(b),
        steps_a=sum(each.steps for each in a),
        steps_b=sum(each.steps for each in b),
        is_process_known=process.is_measured,
        process_sd=process.deviation,
        more_steps=more[0],
        more_runs=more[1],
    )


def _assumed(runs: Sequence[Level]) -> float:
    """By what share processes are taken to differ, as a standard deviation, where that was not measured."""
    spread = float(np.median([each.spread for each in runs]))
    drift = math.sqrt(float(np.mean([each.drift**2 for each in runs])))
    return max(PROCESS_SD, PROCESS_OF_STEPS * spread, PROCESS_OF_DRIFT * drift)


def in_turn(a: ArrayLike, b: ArrayLike, *, tolerance: float = TOLERANCE) -> Verdict:
    """Compare two things that were timed in turn in one process: each time of A beside one of B.

    What disturbs the machine for a while disturbs both of a pair, so it is the ratios of the pairs that are looked at,
    by the same interval as everywhere (see `level`); and nothing needs to be assumed of how processes differ.

    Args:
        a: Times above 0, in the order in which they were taken; at least `LEAST_STEPS`.
        b: As many, each taken next to the one of A.
        tolerance: What share of difference is none.

    Returns:
        As `verdict` does.

    Raises:
        OptionError: They are fewer, not as many, or not above 0.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if len(first) != len(second) or not (first > 0).all():
        raise OptionError(f"a must be as many times above 0 as b, got {len(first)} and {len(second)}")
    ratio = level(second / first)
    edge = math.log1p(tolerance)
    low, high = ratio.log - ratio.below, ratio.log + ratio.above
    outcome = _outcome(low, high, edge)
    return Verdict(
        outcome=outcome,
        ratio=ratio.median,
        low=math.exp(low),
        high=math.exp(high),
        tolerance=tolerance,
        median_a=float(np.median(first)),
        median_b=float(np.median(second)),
        runs_a=1,
        runs_b=1,
        steps_a=len(first),
        steps_b=len(second),
        is_process_known=True,
        process_sd=0.0,
    )


@dataclass(frozen=True)
class _Process:
    """How much one run differs from the next, as the reach of an interval of the ratio."""

    deviation: float
    """Of one run, as a standard deviation."""
    runs: tuple[int, int]
    is_measured: bool

    @classmethod
    def of(cls, logs: Sequence[Values], assumed: float) -> _Process:
        runs = (len(logs[0]), len(logs[1]))
        freedom = sum(runs) - 2
        seen = math.sqrt(sum(float(((each - each.mean()) ** 2).sum()) for each in logs) / max(freedom, 1))
        is_measured = freedom >= _MEASURED
        return cls(seen if is_measured else max(seen, assumed), runs, is_measured)

    @property
    def reach(self) -> float:
        """Half the width of the interval of the ratio, if steps told the medians exactly."""
        quantile = student(_TAIL, sum(self.runs) - 2) if self.is_measured else _Z
        return quantile * self.deviation * math.sqrt(sum(1 / count for count in self.runs))

    def with_more(self, runs: int) -> _Process:
        """What to expect with so many runs more a side, as they differ now."""
        counts = (self.runs[0] + runs, self.runs[1] + runs)
        return _Process(self.deviation, counts, sum(counts) - 2 >= _MEASURED)

    def joined(self, steps: float) -> float:
        """The reach of both parts: runs that differ show what their steps add, an assumption does not."""
        return max(self.reach, steps) if self.is_measured else math.hypot(self.reach, steps)


def _reach(side: Sequence[Level], end: Literal["below", "above"]) -> float:
    """How far the mean of the runs of a side may be off, by what their steps tell."""
    return math.sqrt(sum(getattr(each, end) ** 2 for each in side)) / len(side)


def _outcome(low: float, high: float, edge: float) -> Outcome:
    if low > edge:
        return "slower"
    if high < -edge:
        return "faster"
    return "same" if -edge <= low and high <= edge else "undecided"


def _more_steps(distance: float, reach: float, process: _Process, steps: int) -> int | None:
    """How many more steps a run make an interval end before the edge; None if no number does.

    Args:
        distance: From the ratio to the edge.
        reach: What the steps that there are leave open.
        process: What runs leave open, however long they are.
        steps: How many there are in a run.
    """
    # what few steps make of the difference between runs, more steps take away
    of_runs = process.reach**2 - (reach**2 if process.is_measured else 0.0)
    left = distance**2 - max(of_runs, 0.0)
    if left <= 0 or reach**2 > left * _MOST_STEPS:
        return None
    return max(1, math.ceil(steps * (reach**2 / left - 1)))


def _more_runs(distance: float, reach: float, process: _Process) -> int | None:
    """How many more runs a side do; None if `MOST_RUNS` do not."""
    fewest = min(process.runs)
    for more in range(1, MOST_RUNS + 1):
        grown = process.with_more(more)
        if grown.joined(reach * math.sqrt(fewest / (fewest + more))) <= distance:
            return more
    return None
