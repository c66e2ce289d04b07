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
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import numpy as np

from perfhooks.core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from numpy.typing import ArrayLike, NDArray

    Values = NDArray[np.float64]
    Flags: TypeAlias = NDArray[np.bool_]
    Ints: TypeAlias = NDArray[np.int64]
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

OUTLIER: Final = 3.0
"""Multiple of the median from which a step is an outlier: it validates, saves a checkpoint, or pauses."""
_KINDS: Final = 3
"""How often all kinds are split again: into eight at most."""
_FEWEST: Final = 3
"""Steps that are never split."""
_SAME: Final = 0.05
"""Steps whose times differ by less, in proportion, are of one kind: so exact is the step time that is reported."""
_TRIMMED: Final = 0.05
"""Of the steps on a side of a gap, the part that is left out at each end."""
_ROUNDING: Final = 1e-12
"""Values that differ by less are equal."""
_LEAST_BLOCK: Final = 20
_LEAST_BLOCKS: Final = 5
"""A run is cut into no fewer blocks, or there is nothing to tell how they differ."""
_PLACES: Final = np.linspace(-1.0, 1.0, 31)
"""Between the quantiles that a median may have in a draw, where its distribution is worked out; between them it is a
line. They lie the closer to the middle the more steps there are: where the steps are of two kinds, half and half, the
median of 50,000 jumps from the one to the other within half a percent of them."""
_OUTERMOST: Final = 0.495
_ANGLES: Final = np.linspace(0.0, np.pi / 2, 20_001)
"""At which Student's density is summed: its quantiles are then exact to five digits."""
_COSINES: Final = np.cos(_ANGLES)
_NEARLY_NORMAL: Final = 200
"""Degrees of freedom from which on the expansion around the normal distribution is exact to eight digits."""


@functools.lru_cache(maxsize=8192)
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
    density = _COSINES ** (freedom - 1)
    above = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1])[::-1])))[::-1]
    place = np.interp(-2 * tail, -above / above[0], _ANGLES)
    return float(np.sqrt(freedom) * np.tan(place))


_Logarithm = Annotated[float, msgspec.Meta(ge=-50, le=50)]
"""Of any time from what no clock tells to longer than there is, and of any ratio of two."""
_Deviation = Annotated[float, msgspec.Meta(ge=0, le=50)]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A step time of one run, and how well its steps tell it; logarithms, so that a ratio is a difference."""

    log: _Logarithm
    below: _Deviation = 0.0
    """Its standard error towards shorter times: that of a median need not be the same both ways."""
    above: _Deviation = 0.0
    freedom: Annotated[float, msgspec.Meta(ge=1, le=2**53)] = 1.0
    """Degrees of freedom of those errors."""

    @property
    def value(self) -> float:
        """The time itself, in the unit of the steps."""
        return math.exp(self.log)


@dataclass(frozen=True, kw_only=True)
class Level:
    """What a step of one run takes."""

    typical: Estimate
    """The median."""
    mean: Estimate
    """What throughput is about; of the steps that have nothing else in them."""
    whole: Estimate
    """The mean of all steps, far ones as well."""
    steps: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    far: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    """How many more there were that had something else in them."""
    own: Estimate | None = None
    """The mean of all steps without the time in which they waited for a processor; None where nobody measured it."""
    waited: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    """What share of its time the thread that steps waited for a processor; None where nobody measured it."""
    others: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """What share of the machine's processors other programs used meanwhile; None where nobody measured it."""

    @property
    def far_share(self) -> float:
        """The share of those, from 0 to 1."""
        return self.far / (self.steps + self.far)

    @property
    def far_time(self) -> float:
        """And the share of all time that they take."""
        return max(1 - (1 - self.far_share) * self.mean.value / self.whole.value, 0.0)

    def changed(self, change: Callable[[Estimate], Estimate]) -> Level:
        """The same run with other estimates."""
        own = None if self.own is None else change(self.own)
        return replace(self, typical=change(self.typical), mean=change(self.mean), whole=change(self.whole), own=own)

    def divided(self, count: float) -> Level:
        """That of a part of a step, of which there are so many in each."""
        return self.changed(lambda each: replace(each, log=each.log - math.log(count)))


def level(
    steps: ArrayLike,
    is_far: ArrayLike | None = None,
    usual: ArrayLike | None = None,
    waited: ArrayLike | None = None,
) -> Level:
    """What a step of one run takes, with errors by a moving-block bootstrap.

    Blocks of consecutive steps are drawn with replacement (circular, Politis & Romano 1992) and the mean and the median
    of each draw taken. That is worked out here for infinitely many draws: the mean of a draw is a sum over blocks, and
    its median lies below x where at least half of its steps do, whose number is a sum over blocks as well; both are
    nearly normal with the mean and variance that blocks have. So there is no chance in the result. As blocks are few,
    the errors have degrees of freedom.

    Args:
        steps: Their times, above 0, in the order in which they ran; at least `LEAST_STEPS` that are not far.
        is_far: Which of them had something else in them; None for none.
        usual: What each of them takes in all runs that saw the same data: then they differ by what is left.
        waited: The share of each in which it waited for a processor, as far as that is known; None where nobody knows.

    Raises:
        OptionError: They are fewer, or not above 0.
    """
    given = np.asarray(steps, np.float64)
    far = np.zeros(len(given), np.bool_) if is_far is None else np.asarray(is_far, np.bool_)
    profile = np.ones(len(given)) if usual is None else np.asarray(usual, np.float64)
    near = given[~far]
    if len(near) < LEAST_STEPS or not (given > 0).all():
        raise OptionError(f"steps must be at least {LEAST_STEPS} times above 0, got {len(near)} of {given[:3]}...")
    mean = _mean(near, profile[~far])
    whole = _mean(given, profile) if far.any() else mean
    known: dict[str, Any] = {}
    if waited is not None:
        own = given * (1 - np.asarray(waited, np.float64))
        known = {"own": _mean(own, profile), "waited": float(1 - own.sum() / given.sum())}
    typical = _median(near, profile[~far])
    return Level(typical=typical, mean=mean, whole=whole, steps=len(near), far=int(far.sum()), **known)


def _mean(steps: Values, profile: Values) -> Estimate:
    mean = float(steps.mean())
    # the mean of steps that all take what is usual, times a factor, is known without error
    rest = (steps - profile * (mean / profile.mean())) / mean
    return _estimate(math.log(mean), rest)


def _estimate(log: float, rest: Values) -> Estimate:
    """The mean of something whose values differ from it by ``rest``."""
    if np.ptp(rest) < _ROUNDING:
        return Estimate(log=log, freedom=max(len(rest) - 1.0, 1.0))
    length, memory = block_length(rest), _memory(rest)
    error = float(_deviation(rest[:, None], length, memory)[0])
    return Estimate(log=log, below=error, above=error, freedom=_freedom(rest, length))


def _median(steps: Values, profile: Values) -> Estimate:
    values = np.log(steps / profile)
    middle = float(np.median(values))
    log = middle + float(np.median(np.log(profile)))
    if np.ptp(values) < _ROUNDING:
        return Estimate(log=log, freedom=len(values) - 1.0)
    length, memory = block_length(values), _memory(values)
    freedom = _freedom(values, length)
    furthest = student((1 - CONFIDENCE) / 4, freedom)
    # shares of steps differ most where a block is all of one kind
    reach = min(furthest * 0.5 * math.sqrt(length / len(values) / _seen(len(values), length, memory)), _OUTERMOST)
    places = np.quantile(values, 0.5 + reach * _PLACES)
    below = _shares_below(values, places)
    deviation, excess = _deviation(below, length, memory), below.mean(axis=0) - 0.5
    low, high = 0.0, 0.0
    # where the steps are of two kinds, the median jumps from the one to the other, however narrow the interval is
    for quantile in (1.0, furthest):
        low = max(low, (middle - _crossing(places, excess + quantile * deviation)) / quantile)
        high = max(high, (_crossing(places, excess - quantile * deviation) - middle) / quantile)
    return Estimate(log=log, below=low, above=high, freedom=freedom)


def _freedom(values: Values, length: int) -> float:
    """What blocks say of how they differ, they say with one degree of freedom less than there are."""
    return max(len(values) / length - 1, 1.0)


def block_length(values: Values) -> int:
    """How many steps belong together: twice the lag at which the autocorrelation has fallen below 1/e.

    Never fewer than 20, nor more than a fifth of all steps.
    """
    return max(1, min(max(_LEAST_BLOCK, 2 * _memory(values)), len(values) // _LEAST_BLOCKS))


def _memory(values: Values) -> int:
    """The lag at which the autocorrelation has fallen below 1/e."""
    centred = values - values.mean()
    spectrum = np.fft.rfft(centred, 2 * len(values))
    correlation = np.fft.irfft(spectrum * np.conj(spectrum))[: len(values)]
    low = np.flatnonzero(correlation < correlation[0] / math.e)
    return int(low[0]) if len(low) else len(values)


def certainty(values: Values, chance: float) -> float:
    """How far the mean of consecutive values is above 0: from 1 on, that is more than chance makes of it.

    Args:
        values: One for each step, in their order, of which neighbours may know of each other.
        chance: How often at most values of mean 0 may come out at 1.
    """
    mean = float(values.mean())
    length, memory = block_length(values), _memory(values) if values.std() else 1
    error = float(_deviation(values[:, None], length, memory)[0])
    limit = error * student(chance, _freedom(values, length))
    return mean / limit if limit > 0 else math.inf if mean > 0 else 0.0


def _shares_below(values: Values, places: Values) -> Values:
    """For each step and place whether the step is below it; one that is equal counts half."""
    column = values[:, None]
    return (column < places) * 0.5 + (column <= places) * 0.5


def _deviation(columns: Matrix, length: int, memory: int) -> Values:
    """The standard error of the mean of each column, by how blocks of its steps differ.

    Where one step knows of the last ``memory`` ones, blocks know of each other, and differ less than blocks do that are
    far apart: of an autoregressive process that is (1 - exp(-x)) / x less, where a block is x memories long. And they
    differ from the mean of the run less than from the true one.
    """
    wrapped = np.concatenate([np.zeros((1, columns.shape[1])), columns, columns[: length - 1]])
    sums = np.cumsum(wrapped, axis=0)
    means = (sums[length:] - sums[:-length]) / length
    seen = _seen(len(columns), length, memory)
    deviation: Values = means.std(axis=0) * math.sqrt(length / len(columns) / seen)
    return deviation


def _seen(count: int, length: int, memory: int) -> float:
    """How much of the variance of blocks that are far apart is seen in those of one run, see `_deviation`."""
    memories = length / max(memory, 1)
    return (1 - length / count) * (1 + math.expm1(-memories) / memories)


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


def is_near(wall: Values | Ints) -> Flags:
    """Return which steps are no outliers, by how long they took."""
    found: Flags = wall <= OUTLIER * np.median(wall) if len(wall) else np.zeros(0, np.bool_)
    return found


def most_common(wall: Values) -> Flags:
    """Which steps are of the most common kind: kinds differ by a gap that is wider than the spread of that kind.

    Noise has no such gap, so its steps are all of one kind. Both are measured on a scale of ratios, from the 5th to
    the 95th percentile of each side.
    """
    groups = [np.argsort(wall, kind="stable")]
    for _ in range(_KINDS):
        groups = [part for group in groups for part in np.split(group, _gap(np.log(wall[group])))]
    found: Flags = np.zeros(len(wall), np.bool_)
    found[max(groups, key=len)] = True
    return found


def _gap(scale: Values) -> list[int]:
    """Return the place of the widest gap of sorted values that is wider than the spread of the larger side, if any."""
    size, below = len(scale), np.arange(1, len(scale))  # how many values are on the lower side of each split
    if size <= _FEWEST:
        return []
    lower = _edges(scale, np.zeros_like(below), below - 1)
    upper = _edges(scale, below, np.full_like(below, size - 1))
    spread = np.where(2 * below >= size, lower[1] - lower[0], upper[1] - upper[0])
    is_gap = upper[0] - lower[1] > np.maximum(spread, _SAME)
    split = int(np.where(is_gap, np.diff(scale), -1).argmax())
    return [int(below[split])] if is_gap[split] else []


def _edges(values: Values, first: Ints, last: Ints) -> tuple[Values, Values]:
    """Return the 5th and the 95th percentile of sorted values, each from a first to a last place."""
    trimmed = (_TRIMMED * (last - first)).astype(np.int64)
    return values[first + trimmed], values[last - trimmed]
