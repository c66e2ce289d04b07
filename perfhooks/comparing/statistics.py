"""How sure one can be that two trainings differ: intervals of the ratio of their step times.

These are the only statistics of the house. Steps of one run are no independent samples: what slows one step slows the
next, so a test that counts them as independent alarms in half of all comparisons of equal runs. And a process differs
from the next by more than its own steps tell: so one run a side is known less well than its steps suggest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from perfhooks.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    Values = NDArray[np.float64]

CONFIDENCE: Final = 0.99
"""How often an interval contains the truth: a gate in CI that alarms wrongly more often is switched off."""
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
LEAST_STEPS: Final = 20
"""Fewer steps than this say nothing: they are not even one block."""
_MOST_STEPS: Final = 1000
"""Nobody records a thousand times as many steps to decide one question."""
MOST_RUNS: Final = 99
"""Nobody records more runs a side to decide one question."""

Outcome = Literal["slower", "faster", "same", "undecided"]

_LEAST_BLOCK: Final = 20
_LEAST_BLOCKS: Final = 5
"""A run is cut into no fewer blocks, or there is nothing to tell how they differ."""
_MEASURED: Final = 4
"""From so many degrees of freedom on (three runs a side) the runs themselves say how much processes differ."""
_PLACES: Final = np.concatenate([[0.005, 0.01, 0.02], np.linspace(0.04, 0.96, 25), [0.98, 0.99, 0.995]])
"""The quantiles at which the distribution of a median is worked out; between them it is a line."""
_OF_NORMAL: Final = 2 * NormalDist().inv_cdf(0.75)
"""How far the quartiles of a normal distribution are apart, in standard deviations."""
_OF_DIFFERENCES: Final = NormalDist().inv_cdf(0.75) * math.sqrt(2)
"""How large the difference of two values of one normal distribution is as a rule, in its standard deviations."""
_PARTS: Final = 8
"""Into so many a run is cut, to see whether it drifts."""
_Z: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


@dataclass(frozen=True)
class Level:
    """The median step time of one run, and how well its steps tell it; logarithms, so that a ratio is a difference."""

    log: float
    below: float
    """How far the interval reaches below."""
    above: float
    steps: int
    spread: float = 0.0
    """How much steps differ, as a standard deviation by the middle half of them: what disturbs is not counted twice."""
    drift: float = 0.0
    """How much the medians of the eighths of the run differ, as a standard deviation, beyond what single steps do to
    them: it is 0 where nothing but chance tells one part from the next."""

    @property
    def median(self) -> float:
        """The median itself, in the unit of the steps."""
        return math.exp(self.log)


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


def level(steps: ArrayLike) -> Level:
    """The median of one run's step times, with a 99% interval by a moving-block bootstrap.

    Blocks of consecutive steps are drawn with replacement (circular, Politis & Romano 1992) and the median of each draw
    taken. That is worked out here for infinitely many draws: the median of a draw lies below x where at least half of
    its steps do, and the number of steps below x is a sum over blocks, so nearly normal with the mean and variance that
    blocks have. So there is no chance in the result. As blocks are few, Student's distribution is used for it.

    Args:
        steps: Their times, above 0, in the order in which they ran; at least `LEAST_STEPS`.

    Raises:
        OptionError: They are fewer, or not above 0.
    """
    given = np.asarray(steps, np.float64)
    if len(given) < LEAST_STEPS or not (given > 0).all():
        raise OptionError(f"steps must be at least {LEAST_STEPS} times above 0, got {len(given)} of {given[:3]}...")
    values = np.log(given)
    middle = float(np.median(values))
    if values.min() == values.max():
        return Level(middle, 0.0, 0.0, len(values))
    length = block_length(values)
    places = np.quantile(values, _PLACES)
    below = _shares_below(values, places)
    deviation = _deviation(below, length)
    blocks = len(values) / length
    # what the blocks say of how they differ, they say with one degree of freedom less than there are
    reach = student(max(blocks - 1, 1)) * deviation * math.sqrt(length / len(values))
    excess = below.mean(axis=0) - 0.5
    low = _crossing(places, excess + reach)
    high = _crossing(places, excess - reach)
    spread = float(np.subtract(*np.quantile(values, [0.75, 0.25]))) / _OF_NORMAL
    return Level(middle, max(middle - low, 0.0), max(high - middle, 0.0), len(values), spread, _drift(values))


def _drift(values: Values) -> float:
    """See `Level.drift`."""
    medians = np.array([np.median(part) for part in np.array_split(values, _PARTS)])
    # what one step differs from the next by, drift left out
    single = float(np.median(np.abs(np.diff(values)))) / _OF_DIFFERENCES
    # a median of n values has pi / 2n of their variance
    by_chance = math.pi / 2 * single**2 * _PARTS / len(values)
    return math.sqrt(max(float(medians.var(ddof=1)) - by_chance, 0.0))


def block_length(values: Values) -> int:
    """How many steps belong together: twice the lag at which the autocorrelation has fallen below 1/e.

    Never fewer than 20, nor more than a fifth of all steps.
    """
    centred = values - values.mean()
    spectrum = np.fft.rfft(centred, 2 * len(values))
    correlation = np.fft.irfft(spectrum * np.conj(spectrum))[: len(values)]
    low = np.flatnonzero(correlation < correlation[0] / math.e)
    lag = int(low[0]) if len(low) else len(values)
    return max(1, min(max(_LEAST_BLOCK, 2 * lag), len(values) // _LEAST_BLOCKS))


def _shares_below(values: Values, places: Values) -> Values:
    """For each step and place whether the step is below it; one that is equal counts half."""
    column = values[:, None]
    return (column < places) * 0.5 + (column <= places) * 0.5


def _deviation(below: Values, length: int) -> Values:
    """The standard deviation, over all blocks, of the share of a block that is below each place, for one block."""
    wrapped = np.concatenate([np.zeros((1, below.shape[1])), below, below[: length - 1]])
    sums = np.cumsum(wrapped, axis=0)
    shares = (sums[length:] - sums[:-length]) / length
    deviation: Values = shares.std(axis=0)
    return deviation


def _crossing(places: Values, values: Values) -> float:
    """The place at which rising values pass 0."""
    rising = np.maximum.accumulate(values)
    return float(np.interp(0.0, rising, places))


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
    distance, reach = abs(abs(ratio.log) - edge), max(ratio.below, ratio.above)
    more = math.ceil(len(first) * ((reach / distance) ** 2 - 1)) if outcome == "undecided" and distance > 0 else None
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
        more_steps=None if more is None or more > len(first) * _MOST_STEPS else max(more, 1),
    )


def student(freedom: float) -> float:
    """Student's quantile for `CONFIDENCE`, by the expansion of Cornish and Fisher (Abramowitz & Stegun 26.7.5).

    Its error is below 0.5% from four degrees of freedom on; below, it is too small.
    """
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


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
        quantile = student(sum(self.runs) - 2) if self.is_measured else _Z
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
