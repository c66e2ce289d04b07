"""Statistics of step times: the only ones in the house.

Steps of one run are no independent samples: what slows one step slows the next, so a test that counts them as
independent alarms in half of all comparisons of equal runs. So it is blocks of steps that are drawn (`level`).
Ranks of one run are compared step by step (`behind`): what slows all of them is in no difference.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import numpy as np

from perfhooks.errors import OptionError

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from numpy.typing import ArrayLike, NDArray

    Values = NDArray[np.float64]
    Flags: TypeAlias = NDArray[np.bool_]
    Matrix: TypeAlias = np.ndarray[tuple[int, int], np.dtype[Any]]
    """Of each rank (row) in each step (column); NaN where it has no such step."""

CONFIDENCE: Final = 0.99
"""How often an interval contains the truth: a gate in CI that alarms wrongly more often is switched off."""
LEAST_STEPS: Final = 20
"""Fewer steps than this say nothing: they are not even one block."""
OF_NORMAL: Final = NormalDist().inv_cdf(0.75)
"""Median deviation of a normal distribution from its middle, in standard deviations."""

SLOW: Final = 0.1
"""A rank is slow in a step if that takes it this much of the step longer than the others."""
MANY: Final = 8
"""From so many ranks on, it is enough to stand out: to take `MANY_SLOW` of the step and `FAR` longer."""
MANY_SLOW: Final = 0.02
FAR: Final = 6.0
"""Median deviations of all ranks from the others; about four standard deviations."""
CHANCE: Final = 0.01
"""How often at most any of the ranks of a window may be named though all have equal work: a page that is looked at
every day, and false once in a hundred windows, is still believed."""
MOST_PERCENT: Final = 75.0
"""A rank is slow if it is so in this many of 100 steps."""

_LEAST_BLOCK: Final = 20
_LEAST_BLOCKS: Final = 5
"""A run is cut into no fewer blocks, or there is nothing to tell how they differ."""
_PLACES: Final = np.concatenate([[0.005, 0.01, 0.02], np.linspace(0.04, 0.96, 25), [0.98, 0.99, 0.995]])
"""The quantiles at which the distribution of a median is worked out; between them it is a line."""
_PARTS: Final = 8
"""Into so many a run is cut, to see whether it drifts."""
_POINTS: Final = 20_001
"""Angles at which Student's density is summed: its quantiles are then exact to five digits."""
_NEARLY_NORMAL: Final = 200
"""Degrees of freedom from which on the expansion around the normal distribution is exact to eight digits."""


@functools.lru_cache(maxsize=256)
def student(tail: float, freedom: float) -> float:
    """Beyond which Student's t lies with a probability of ``tail``: for 0.005 and 1 degree of freedom 63.66.

    With t = sqrt(n) tan a, its density is that of cos(a)^(n - 1), which is summed; for many degrees of freedom the
    expansion of Cornish and Fisher takes its place (Abramowitz & Stegun 26.7.5).

    Args:
        tail: A probability, below one half.
        freedom: Degrees of freedom, n; 1 or more, and no integer need be.
    """
    if freedom > _NEARLY_NORMAL:
        z = NormalDist().inv_cdf(1 - tail)
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    angle = np.linspace(0.0, np.pi / 2, _POINTS)
    density = np.cos(angle) ** (freedom - 1)
    above = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1])[::-1])))[::-1]
    place = np.interp(-2 * tail, -above / above[0], angle)
    return float(np.sqrt(freedom) * np.tan(place))


_Logarithm = Annotated[float, msgspec.Meta(ge=-50, le=50)]
"""Of any time from what no clock tells to longer than there is, and of any ratio of two."""
_Deviation = Annotated[float, msgspec.Meta(ge=0, le=50)]


@dataclass(frozen=True)
class Level:
    """The median step time of one run, and how well its steps tell it; logarithms, so that a ratio is a difference."""

    log: _Logarithm
    below: _Deviation
    """How far the interval reaches below."""
    above: _Deviation
    steps: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    spread: _Deviation = 0.0
    """How much steps differ, as a standard deviation by the middle half of them: what disturbs is not counted twice."""
    drift: _Deviation = 0.0
    """How much the medians of the eighths of the run differ, as a standard deviation, beyond what single steps do to
    them: it is 0 where nothing but chance tells one part from the next."""

    @property
    def median(self) -> float:
        """The median itself, in the unit of the steps."""
        return math.exp(self.log)

    def divided(self, count: float) -> Level:
        """That of a part of a step, of which there are so many in each."""
        return replace(self, log=self.log - math.log(count))


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
    reach = student((1 - CONFIDENCE) / 2, max(blocks - 1, 1)) * deviation * math.sqrt(length / len(values))
    excess = below.mean(axis=0) - 0.5
    low = _crossing(places, excess + reach)
    high = _crossing(places, excess - reach)
    spread = float(np.subtract(*np.quantile(values, [0.75, 0.25]))) / (2 * OF_NORMAL)
    return Level(middle, max(middle - low, 0.0), max(high - middle, 0.0), len(values), spread, _drift(values))


def _drift(values: Values) -> float:
    """See `Level.drift`."""
    medians = np.array([np.median(part) for part in np.array_split(values, _PARTS)])
    # what one step differs from the next by, drift left out; of two values of one distribution, sqrt(2) times as much
    single = float(np.median(np.abs(np.diff(values)))) / (OF_NORMAL * math.sqrt(2))
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


@dataclass(frozen=True)
class Behind:
    """How far each rank is behind the others."""

    excess: Values
    """What a step takes it longer than the median of the other ranks takes in the same step: the median over the
    steps; NaN where there are no others."""
    slow_percent: Values
    """In how many of 100 steps that is `SLOW` of the step or more; among `MANY` ranks, `MANY_SLOW` of it and `FAR` more
    than is usual."""
    certain: Flags
    """Whether it is more than chance makes of equal work."""

    @property
    def is_slow(self) -> Flags:
        """Which ranks the others wait for: the one rule of the house."""
        return are_slow(self.excess, self.slow_percent, self.certain)


def behind(times: Matrix, step: float) -> Behind:
    """Compare ranks.

    Args:
        times: What steps took each rank.
        step: What a step takes in all, in the same unit; `times` may be those of a part of it.
    """
    excess = beyond_others(times)
    limit = SLOW * step
    if len(excess) >= MANY and np.isfinite(excess).any():
        limit = max(MANY_SLOW * step, FAR * float(np.nanmedian(np.abs(excess))))
    counted = np.isfinite(excess).sum(axis=1)
    slow = np.divide(
        (excess >= limit).sum(axis=1) * 100.0, counted, where=counted > 0, out=np.full(len(excess), np.nan)
    )
    # of one step of many ranks, how they differ among each other is in the limit
    return Behind(medians(excess), slow, _certain(excess, alone=len(excess) >= MANY))


def are_slow(excess: Values, slow_percent: Values, certain: Flags) -> Flags:
    """See `Behind`. Where more than half of the ranks are slow, none is: then it is the others that are fast."""
    found: Flags = (excess > 0) & (slow_percent >= MOST_PERCENT) & certain
    return found if 2 * found.sum() <= len(found) else np.zeros(len(found), np.bool_)


def beyond_others(values: Matrix) -> Matrix:
    """What each value of a column has more than the median of the other values in it; NaN where there is no other."""
    order = np.argsort(values, axis=0)  # NaN come last
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(values))[:, None], axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    others = np.isfinite(values).sum(axis=0) - 1
    low, high = np.maximum(others - 1, 0) // 2, np.maximum(others, 0) // 2
    # the value itself is left out of those that are ordered
    low, high = (np.minimum(each + (each >= place), len(values) - 1) for each in (low, high))
    middle = (np.take_along_axis(ordered, low, axis=0) + np.take_along_axis(ordered, high, axis=0)) / 2
    found: Matrix = np.where(others > 0, values - middle, np.nan)
    return found


def medians(values: Matrix) -> Values:
    """The median of each row; NaN where nothing is known."""
    known = np.isfinite(values).any(axis=1)
    found = np.full(len(values), np.nan)
    if known.any():
        found[known] = np.nanmedian(values[known], axis=1)
    return found


def _certain(excess: Matrix, *, alone: bool) -> Flags:
    """Which ranks' excess is more than chance makes of equal work: one by Student's t for each, shared by all ranks.

    The mean excess is divided by its error, from how much a rank's excess differs from step to step: its own, or that
    of all ranks together where that is more. The limit is the quantile for `CHANCE`, divided by the number of ranks. So
    two steps that agree are evidence, and three that do not are none.

    Args:
        excess: of each rank (row) in each step (column); NaN where it has no such step.
        alone: what to say where no rank has two steps, so that nothing is known of how steps differ.
    """
    known = np.isfinite(excess)
    steps = known.sum(axis=1)
    values = np.where(known, excess, 0.0)
    mean = values.sum(axis=1) / np.maximum(steps, 1)
    squares = np.where(known, (values - mean[:, None]) ** 2, 0.0).sum(axis=1)
    free = int(np.maximum(steps - 1, 0).sum())
    if not free:
        return np.full(len(excess), alone)
    spread = np.maximum(squares.sum() / free, squares / np.maximum(steps - 1, 1))
    error = np.sqrt(spread / np.maximum(steps, 1))
    # what one rank has more, the others have less: there is one independent excess less than there are ranks
    independent = max(free * (len(excess) - 1) // len(excess), 1)
    found: Flags = (steps > 0) & (mean > student(CHANCE / len(excess), independent) * error)
    return found
