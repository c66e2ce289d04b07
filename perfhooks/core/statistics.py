"""Statistics of step times.

Steps of one run depend on each other: a test that assumes independence finds a difference in half of all comparisons of
equal runs.
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

CONFIDENCE: Final = 0.99
"""Probability that an interval contains the true value. CI jobs with more false alarms get disabled."""
LEAST_STEPS: Final = 20
"""Minimum steps for statistics of a series. Fewer steps do not fill one bootstrap block."""
OF_NORMAL: Final = NormalDist().inv_cdf(0.75)
"""Median absolute deviation of a normal distribution, in standard deviations."""

SLOW: Final = 0.1
"""Minimum delay of a slow rank, as a fraction of the step time."""
MANY: Final = 8
"""Minimum number of ranks for which `MANY_SLOW` and `FAR` apply instead of `SLOW`."""
MANY_SLOW: Final = 0.02
FAR: Final = 6.0
"""Minimum delay of a slow rank among `MANY` ranks, in median absolute deviations. Six of them are about four standard
deviations.
"""
CHANCE: Final = 0.01
"""Maximum probability that a window names a slow rank although all ranks have equal work."""

OUTLIER: Final = 3.0
"""Minimum ratio of the time of an outlier to the median step time."""
_FEWEST: Final = 3
_ROUNDING: Final = 1e-12
_MEDIAN_GRID: Final = np.linspace(-1.0, 1.0, 31)
"""Grid of quantiles around the median, as fractions of the median's largest possible error."""
_ANGLES: Final = np.linspace(0.0, np.pi / 2, 20_001)
"""Support points for the integral of Student's density. Quantiles are exact to five digits."""
_COSINES: Final = np.cos(_ANGLES)
_NEARLY_NORMAL: Final = 200
"""Degrees of freedom from which the expansion of Cornish and Fisher is exact to eight digits."""


@functools.lru_cache(maxsize=8192)
def student(tail: float, freedom: float) -> float:
    """Return the quantile of Student's t for the upper tail ``tail`` below 0.5: 63.66 for ``student(0.005, 1)``.

    With t = sqrt(n) tan a, the density becomes cos(a)^(n - 1), which is integrated numerically. For many degrees of
    freedom the expansion of Cornish and Fisher is used (Abramowitz & Stegun 26.7.5).
    """
    if freedom > _NEARLY_NORMAL:
        z = NormalDist().inv_cdf(1 - tail)
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    density = _COSINES ** (freedom - 1)
    upper_tail = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1])[::-1])))[::-1]
    angle = np.interp(-2 * tail, -upper_tail / upper_tail[0], _ANGLES)
    return float(np.sqrt(freedom) * np.tan(angle))


_Logarithm = Annotated[float, msgspec.Meta(ge=-50, le=50)]
_Deviation = Annotated[float, msgspec.Meta(ge=0, le=50)]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The step time of one run, as logarithms, so that ratios are differences."""

    log: _Logarithm
    below: _Deviation = 0.0
    """Standard error towards smaller values. The error of a median can be asymmetric."""
    above: _Deviation = 0.0
    freedom: Annotated[float, msgspec.Meta(ge=1, le=2**53)] = 1.0

    @property
    def value(self) -> float:
        return math.exp(self.log)


@dataclass(frozen=True, kw_only=True)
class Level:
    typical: Estimate
    mean: Estimate
    """Mean step time without outliers, which determines the throughput."""
    whole: Estimate
    steps: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    far: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    """Number of outliers, which are not included in ``steps``."""
    own: Estimate | None = None
    """Mean step time minus run-queue wait; None if unknown."""
    waited: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    """Run-queue wait of the stepping thread as a fraction of the time."""
    others: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """CPU time of other programs as a fraction of the host's CPUs."""

    @property
    def far_share(self) -> float:
        return self.far / (self.steps + self.far)

    @property
    def far_time(self) -> float:
        """Ratio of the time in outliers to the total time."""
        return max(1 - (1 - self.far_share) * self.mean.value / self.whole.value, 0.0)

    def changed(self, change: Callable[[Estimate], Estimate]) -> Level:
        own = None if self.own is None else change(self.own)
        return replace(self, typical=change(self.typical), mean=change(self.mean), whole=change(self.whole), own=own)

    def divided(self, count: float) -> Level:
        return self.changed(lambda estimate: replace(estimate, log=estimate.log - math.log(count)))


def level(
    steps: ArrayLike,
    is_far: ArrayLike | None = None,
    usual: ArrayLike | None = None,
    waited: ArrayLike | None = None,
) -> Level:
    """Return the step times of one run, with errors from a moving-block bootstrap.

    The bootstrap draws blocks of consecutive steps with replacement (circular, Politis & Romano 1992). The standard
    errors are computed without random samples: the mean of a sample, and the number of steps below a limit, are sums
    over blocks and therefore nearly normal.

    Args:
        steps: Step times above 0 in execution order, with at least `LEAST_STEPS` that are not outliers.
        is_far: Mask of outliers.
        usual: Expected time of each step, from all runs with the same data. Only deviations from the
            expected time count as variation.
        waited: Ratio of run-queue wait in each step; NaN if not measured.

    Raises:
        OptionError: There are fewer than `LEAST_STEPS` such steps, or times that are not above 0.
    """
    times = np.asarray(steps, np.float64)
    is_outlier = np.zeros(len(times), np.bool_) if is_far is None else np.asarray(is_far, np.bool_)
    profile = np.ones(len(times)) if usual is None else np.asarray(usual, np.float64)
    regular = times[~is_outlier]
    if len(regular) < LEAST_STEPS or not (times > 0).all():
        raise OptionError(
            f"steps must contain at least {LEAST_STEPS} step times, all above 0, got {len(regular)}: {times[:3]}..."
        )
    mean = _mean(regular, profile[~is_outlier])
    whole = _mean(times, profile) if is_outlier.any() else mean
    contention: dict[str, Any] = {}
    if waited is not None:
        own = times * (1 - np.asarray(waited, np.float64))
        contention = {"own": _mean(own, profile), "waited": float(1 - own.sum() / times.sum())}
    typical = _median(regular, profile[~is_outlier])
    return Level(typical=typical, mean=mean, whole=whole, steps=len(regular), far=int(is_outlier.sum()), **contention)


def _mean(steps: Values, profile: Values) -> Estimate:
    mean = float(steps.mean())
    # variation that follows the profile is expected, so it adds no error
    residuals = (steps - profile * (mean / profile.mean())) / mean
    return _estimate(math.log(mean), residuals)


def _estimate(log: float, residuals: Values) -> Estimate:
    if np.ptp(residuals) < _ROUNDING:
        return Estimate(log=log, freedom=max(len(residuals) - 1.0, 1.0))
    length, memory = block_length(residuals), _memory(residuals)
    error = float(_deviation(residuals[:, None], length, memory)[0])
    return Estimate(log=log, below=error, above=error, freedom=_freedom(residuals, length))


def _median(steps: Values, profile: Values) -> Estimate:
    values = np.log(steps / profile)
    middle = float(np.median(values))
    log = middle + float(np.median(np.log(profile)))
    if np.ptp(values) < _ROUNDING:
        return Estimate(log=log, freedom=len(values) - 1.0)
    length, memory = block_length(values), _memory(values)
    freedom = _freedom(values, length)
    outer_quantile = student((1 - CONFIDENCE) / 4, freedom)
    # the variance is largest if each block contains one kind of steps
    reach = min(
        outer_quantile * 0.5 * math.sqrt(length / len(values) / _visible_variance(len(values), length, memory)),
        0.495,
    )
    grid = np.quantile(values, 0.5 + reach * _MEDIAN_GRID)
    below = _shares_below(values, grid)
    deviation, excess = _deviation(below, length, memory), below.mean(axis=0) - 0.5
    low, high = 0.0, 0.0
    # with two kinds of steps the median jumps between them, so a narrow interval is not enough
    for quantile in (1.0, outer_quantile):
        low = max(low, (middle - _crossing(grid, excess + quantile * deviation)) / quantile)
        high = max(high, (_crossing(grid, excess - quantile * deviation) - middle) / quantile)
    return Estimate(log=log, below=low, above=high, freedom=freedom)


def _freedom(values: Values, length: int) -> float:
    return max(len(values) / length - 1, 1.0)


def block_length(values: Values) -> int:
    """Return the number of correlated steps: twice the lag at which the autocorrelation falls below 1/e."""
    return max(1, min(max(20, 2 * _memory(values)), len(values) // 5))


def _memory(values: Values) -> int:
    centred = values - values.mean()
    spectrum = np.fft.rfft(centred, 2 * len(values))
    correlation = np.fft.irfft(spectrum * np.conj(spectrum))[: len(values)]
    low = np.flatnonzero(correlation < correlation[0] / math.e)
    return int(low[0]) if len(low) else len(values)


def certainty(values: Values, chance: float) -> float:
    """Return the mean of correlated values, divided by the significance limit of this mean for ``chance``."""
    mean = float(values.mean())
    length, memory = block_length(values), _memory(values) if values.std() else 1
    error = float(_deviation(values[:, None], length, memory)[0])
    limit = error * student(chance, _freedom(values, length))
    return mean / limit if limit > 0 else math.inf if mean > 0 else 0.0


def _shares_below(values: Values, grid: Values) -> Values:
    column = values[:, None]
    return (column < grid) * 0.5 + (column <= grid) * 0.5


def _deviation(columns: Matrix, length: int, memory: int) -> Values:
    wrapped = np.concatenate([np.zeros((1, columns.shape[1])), columns, columns[: length - 1]])
    sums = np.cumsum(wrapped, axis=0)
    means = (sums[length:] - sums[:-length]) / length
    visible = _visible_variance(len(columns), length, memory)
    deviation: Values = means.std(axis=0) * math.sqrt(length / len(columns) / visible)
    return deviation


def _visible_variance(count: int, length: int, memory: int) -> float:
    """Return the variance between correlated blocks, divided by the variance between independent blocks.

    In an autoregressive process, correlation lowers the variance between blocks by the fraction (1 - exp(-x)) / x,
    where x is the block length divided by ``memory``, the number of correlated steps.
    """
    memories = length / max(memory, 1)
    return (1 - length / count) * (1 + math.expm1(-memories) / memories)


def _crossing(positions: Values, values: Values) -> float:
    rising = np.maximum.accumulate(values)
    return float(np.interp(0.0, rising, positions))


def least_delay(means: Values, step: float) -> float:
    """Return the minimum mean delay per step of a late rank.

    Args:
        means: Mean per step of each rank. With `MANY` or more ranks, the limit is a multiple of the deviation
            between the means.
        step: Step time, in the same unit.
    """
    finite = means[np.isfinite(means)]
    if len(means) < MANY or not len(finite):
        return SLOW * step
    return max(MANY_SLOW * step, FAR * float(np.median(np.abs(finite - np.median(finite)))))


def are_late(delays: Matrix, step: float, least: float, chance: float) -> Flags:
    """Return which ranks are late, so that the other ranks wait.

    A rank is late if its mean delay is at least ``least`` and statistically significant. Each delay is limited to one
    step, so that a long pause is no evidence. In series of `LEAST_STEPS` or more, neighbours may be correlated, see
    `certainty`.

    Args:
        delays: Delay of each rank (row) in each step (column); NaN if the rank has no such step.
        step: Step time, in the same unit.
        least: Result of `least_delay`.
        chance: Maximum probability that a rank with the mean delay 0 is late.
    """
    bounded = np.clip(delays, -step, step)
    is_long = np.isfinite(bounded).sum(axis=1) >= LEAST_STEPS
    late: Flags = (means_of(bounded) >= least) & (is_long | _are_certain(bounded, chance))
    for row in np.flatnonzero(late & is_long):
        late[row] = certainty(bounded[row, np.isfinite(bounded[row])], chance) >= 1
    return late


def fewer_than_others(late: Flags) -> Flags:
    """Return the late ranks; none if more than half are late, because the other ranks would be early."""
    return late if 2 * late.sum() <= len(late) else np.zeros(len(late), np.bool_)


def chance_of(count: int, number: int, share: float) -> float:
    """Return an upper limit for the probability of ``count`` or more hits in ``number`` draws.

    Each draw hits with the probability ``share``. Source: the bound of Chernoff, exp(-n KL(count / n, share)).
    """
    ratio = count / number
    if ratio <= share:
        return 1.0
    miss = (1 - ratio) * math.log((1 - ratio) / (1 - share)) if ratio < 1 else 0.0
    return math.exp(-number * (ratio * math.log(ratio / share) + miss))


def beyond_others(values: Matrix) -> Matrix:
    """Return the excess of each value over the median of the column's other values; NaN without others."""
    order = np.argsort(values, axis=0)
    rank_order = np.empty_like(order)
    np.put_along_axis(rank_order, order, np.arange(len(values))[:, None], axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    other_count = np.isfinite(values).sum(axis=0) - 1
    low, high = np.maximum(other_count - 1, 0) // 2, np.maximum(other_count, 0) // 2
    low, high = (np.minimum(index + (index >= rank_order), len(values) - 1) for index in (low, high))
    middle = (np.take_along_axis(ordered, low, axis=0) + np.take_along_axis(ordered, high, axis=0)) / 2
    excess: Matrix = np.where(other_count > 0, values - middle, np.nan)
    return excess


def means_of(values: Matrix) -> Values:
    """Return the mean of each row; NaN for rows without values."""
    counts = np.isfinite(values).sum(axis=1)
    means: Values = np.divide(np.nansum(values, axis=1), counts, where=counts > 0, out=np.full(len(values), np.nan))
    return means


def _are_certain(delays: Matrix, chance: float) -> Flags:
    """Return which ranks have a significant mean delay, by Student's t.

    The standard error comes from the variation between steps: of the rank, or of all ranks if larger. With one step per
    rank, all ranks are significant if there are `MANY` or more, because `least_delay` includes the variation between
    ranks.
    """
    is_measured = np.isfinite(delays)
    steps = is_measured.sum(axis=1)
    values = np.where(is_measured, delays, 0.0)
    mean = values.sum(axis=1) / np.maximum(steps, 1)
    squares = np.where(is_measured, (values - mean[:, None]) ** 2, 0.0).sum(axis=1)
    total_freedom = int(np.maximum(steps - 1, 0).sum())
    if not total_freedom:
        return np.full(len(delays), len(delays) >= MANY)
    spread = np.maximum(squares.sum() / total_freedom, squares / np.maximum(steps - 1, 1))
    error = np.sqrt(spread / np.maximum(steps, 1))
    # the delays of all ranks in a step sum to about 0, so one delay is not independent
    independent = max(total_freedom * (len(delays) - 1) // len(delays), 1)
    are_certain: Flags = (steps > 0) & (mean > student(chance, independent) * error)
    return are_certain


def is_near(wall: Values | Ints) -> Flags:
    mask: Flags = wall <= OUTLIER * np.median(wall) if len(wall) else np.zeros(0, np.bool_)
    return mask


def most_common(wall: Values) -> Flags:
    """Return the mask of the most common kind of steps.

    Two kinds of steps are separate if the gap between their times exceeds the spread of the kind with more steps, both
    as ratios. The spread of a kind is from its 5th to its 95th percentile.
    """
    groups = [np.argsort(wall, kind="stable")]
    for _ in range(3):
        groups = [part for group in groups for part in np.split(group, _gap(np.log(wall[group])))]
    mask: Flags = np.zeros(len(wall), np.bool_)
    mask[max(groups, key=len)] = True
    return mask


def _gap(scale: Values) -> list[int]:
    size, below = len(scale), np.arange(1, len(scale))
    if size <= _FEWEST:
        return []
    lower = _edges(scale, np.zeros_like(below), below - 1)
    upper = _edges(scale, below, np.full_like(below, size - 1))
    spread = np.where(2 * below >= size, lower[1] - lower[0], upper[1] - upper[0])
    # kinds differ by at least 5%, the accuracy of the reported step time
    is_gap = upper[0] - lower[1] > np.maximum(spread, 0.05)
    split = int(np.where(is_gap, np.diff(scale), -1).argmax())
    return [int(below[split])] if is_gap[split] else []


def _edges(values: Values, first: Ints, last: Ints) -> tuple[Values, Values]:
    trimmed = (0.05 * (last - first)).astype(np.int64)
    return values[first + trimmed], values[last - trimmed]
