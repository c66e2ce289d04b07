from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from perfhooks.core.statistics import CONFIDENCE, Estimate, level, student

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import ArrayLike

    from perfhooks.core.statistics import Values

TOLERANCE: Final = 0.02
"""Default tolerance: step times of unchanged code differ by 2%."""
PROCESS_SD: Final = 0.01
"""Relative standard deviation between equal processes on a quiet machine."""
PROCESS_FREEDOM: Final = 4
"""Degrees of freedom of the assumption `PROCESS_SD`. Five measured pairs of runs have as many."""
EDGE_CONFIDENCE: Final = 0.9
_MOST_STEPS: Final = 1000
"""Messages suggest at most this multiple of the number of steps."""
_POWER: Final = 0.84
_TAIL: Final = (1 - CONFIDENCE) / 4
"""Tail probability of each of four tests: slower and faster, for the mean and for the median step."""
_EDGE_TAIL: Final = (1 - EDGE_CONFIDENCE) / 2

Outcome = Literal["slower", "faster", "same", "undecided"]


class Ratio(NamedTuple):
    outcome: Outcome
    ratio: float
    """Step time of B divided by the step time of A."""
    low: float
    high: float
    """Upper end of the 99% interval, or of the 90% interval if the outcome is ``same``."""
    a: float
    b: float


class Variance(NamedTuple):
    variance: float
    freedom: float


class StepPair(NamedTuple):
    a: float
    b: float
    errors: Sequence[Variance] = ()


@dataclass(frozen=True)
class StepDifference:
    logs: tuple[float, float]
    squares: float
    """Sum of squared deviations of each process's logarithmic step time from the mean of A or B."""
    measured: int
    counts: tuple[int, ...]
    """Number of runs of A and of B. If runs are paired, both numbers are the number of pairs."""
    below: tuple[Variance, ...] = ()
    above: tuple[Variance, ...] = ()
    assumed: float = PROCESS_SD
    earlier: int = 0
    """Number of earlier runs that contribute to the measured deviation between processes."""
    more_freedom: int = 2
    """Degrees of freedom that a further run of each side adds."""
    tolerance: float = TOLERANCE
    share: Callable[[int], float] = lambda _: 1.0
    """Function from the number of pairs to the fraction of the 1% error budget that a decision may use."""

    @classmethod
    def of(
        cls,
        a: Sequence[Estimate],
        b: Sequence[Estimate],
        assumed: float,
        earlier: Sequence[Sequence[Estimate]] = (),
        tolerance: float = TOLERANCE,
    ) -> StepDifference:
        sides = (a, b)
        logs, earlier_logs = (
            [np.array([run.log for run in side]) for side in group if side] for group in (sides, earlier)
        )
        freedom, more_freedom = (sum(len(logs_of_side) - 1 for logs_of_side in group) for group in (logs, earlier_logs))
        step_variance = sum(float(np.mean([(run.below**2 + run.above**2) / 2 for run in side])) for side in sides) / 2
        squares = max(_sum_squares(logs) - freedom * step_variance, 0.0)
        # do not subtract the variance within earlier runs, which would hide that these runs differ
        earlier_squares = _sum_squares(earlier_logs)
        are_alike = squares <= freedom * assumed**2 and earlier_squares <= more_freedom * assumed**2
        return cls(
            logs=(float(logs[0].mean()), float(logs[1].mean())),
            squares=squares + are_alike * earlier_squares,
            measured=freedom + are_alike * more_freedom,
            earlier=sum(len(logs_of_side) for logs_of_side in earlier_logs if len(logs_of_side) > 1)
            if are_alike
            else 0,
            assumed=assumed,
            counts=(len(a), len(b)),
            below=(*_components(b, "below"), *_components(a, "above")),
            above=(*_components(b, "above"), *_components(a, "below")),
            tolerance=tolerance,
        )

    @classmethod
    def of_pairs(cls, pairs: Sequence[StepPair], tolerance: float, share: Callable[[int], float]) -> StepDifference:
        logs = np.log(np.array([pair[:2] for pair in pairs], np.float64))
        differences = logs[:, 1] - logs[:, 0]
        errors = [Variance(part.variance / len(pairs) ** 2, part.freedom) for pair in pairs for part in pair.errors]
        measured = len(pairs) - 1
        squares = float(((differences - differences.mean()) ** 2).sum()) / 2
        step_variance = len(pairs) / 2 * sum(part.variance for part in errors)
        middle = logs.mean(axis=0)
        return cls(
            logs=(float(middle[0]), float(middle[1])),
            squares=max(squares - measured * step_variance, 0.0),
            measured=measured,
            counts=(len(pairs), len(pairs)),
            below=tuple(errors),
            above=tuple(errors),
            more_freedom=1,
            tolerance=tolerance,
            share=share,
        )

    @property
    def process(self) -> Variance:
        """Variance between processes: the assumed and the measured variance, weighted by degrees of freedom.

        If the measured variance exceeds the assumed variance, the measured variance is used alone, with fewer degrees
        of freedom. With all degrees of freedom, 2% of the comparisons of equal programs whose processes vary by 2.5%
        reported a difference.
        """
        joined = PROCESS_FREEDOM * self.assumed**2 + self.squares
        if self.squares > self.measured * self.assumed**2:
            variance = self.squares / self.measured
            return Variance(variance, self.measured + PROCESS_FREEDOM * self.assumed**2 / variance)
        return Variance(joined / (PROCESS_FREEDOM + self.measured), PROCESS_FREEDOM + self.measured)

    @property
    def centre(self) -> float:
        return self.logs[1] - self.logs[0]

    def interval(self, tail: float) -> tuple[float, float]:
        low, high = (self._reach(tail, parts) for parts in (self.below, self.above))
        return self.centre - low, self.centre + high

    def _reach(self, tail: float, by_steps: Sequence[Variance], beyond: float = 0.0) -> float:
        weight = sum(1 / count for count in self.counts)
        process = self.process
        return math.hypot(
            _half_width(tail, [process._replace(variance=process.variance * weight)], beyond),
            _half_width(tail, by_steps, beyond),
        )

    @property
    def _tails(self) -> tuple[float, float, float]:
        """Tail probabilities of three tests: A and B differ, differ by more than the tolerance, are equal.

        The tail probability of the second test rises from 0.25% to 5% with the degrees of freedom of the measured
        variance.
        """
        beyond = _TAIL * math.pow(_EDGE_TAIL / _TAIL, min(self.measured / PROCESS_FREEDOM, 1.0))
        share = self.share(self.counts[0])
        return _TAIL * share, beyond * share, _EDGE_TAIL * share

    @property
    def _edges(self) -> tuple[float, float]:
        """Logarithms of the minimum ratio of a change and the maximum of equality, from ``benchmarks/noises.py``."""
        return math.log1p(self.tolerance), math.log1p(2.5 * self.tolerance)

    @property
    def ratio(self) -> Ratio:
        edge, margin = self._edges
        ends, beyond, inner = map(self.interval, self._tails)
        outcome: Outcome = "undecided"
        if ends[0] > 0 and beyond[0] > edge:
            outcome = "slower"
        elif ends[1] < 0 and beyond[1] < -edge:
            outcome = "faster"
        elif self.measured and abs(self.centre) <= edge and max(-inner[0], inner[1]) <= margin:
            outcome, ends = "same", inner
        low, high = np.clip(ends, -50.0, 50.0).tolist()
        return Ratio(outcome, *(math.exp(log) for log in (self.centre, low, high, *self.logs)))

    @property
    def is_decided(self) -> bool:
        """Whether a repetition of the comparison would be decided with a probability of at least 80%."""
        edge, margin = self._edges
        distance = abs(self.centre)
        outer, beyond, inner = (
            max(self._reach(tail, parts, _POWER) for parts in (self.below, self.above)) for tail in self._tails
        )
        is_same = bool(self.measured) and distance <= edge and inner <= margin - distance
        return is_same or (outer <= distance and beyond <= distance - edge)

    @property
    def smallest_detectable(self) -> float:
        is_different, is_beyond = (self._reach(tail, self.above, _POWER) for tail in self._tails[:2])
        return math.exp(max(is_different, is_beyond + self._edges[0]))

    @property
    def missing_runs(self) -> int | None:
        """Number of further runs per side for a decision; None if more than 99."""
        counts = range(1, 100)
        index = bisect_left(counts, 1, key=lambda more: self.with_more_runs(more).is_decided)
        return counts[index] if index < len(counts) else None

    def step_factor(self, least: float, more_runs: int = 0) -> float:
        """Return by which factor the steps must grow for a decision with ``more_runs`` more runs; inf above 1,000."""
        factors = np.geomspace(least, _MOST_STEPS, 72)
        index = bisect_left(
            factors, 1, key=lambda times: self.with_more_steps(times).with_more_runs(more_runs).is_decided
        )
        return float(factors[index]) if index < len(factors) else math.inf

    def missing_steps(self, most: int) -> float:
        """Return by which factor the steps must grow so that ``most`` pairs of runs can show equality."""
        more = most - self.counts[0]
        if self.with_more_runs(more).is_decided:
            return 1.0
        return replace(self, logs=(0.0, 0.0), squares=0.0).step_factor(1.0, more)

    def with_more_runs(self, more: int) -> StepDifference:
        counts = tuple(count + more for count in self.counts)
        added_freedom = more * self.more_freedom
        # without a measurement, expect half of the assumed deviation between processes
        square = self.squares / self.measured if self.measured else (self.assumed * 0.5) ** 2
        # `of` lists the variances of the runs of B first, then of A
        shares = [count / (count + more) for count in reversed(self.counts) for _ in range(count)]
        return replace(
            self,
            squares=self.squares + added_freedom * square,
            measured=self.measured + added_freedom,
            counts=counts,
            below=_scale_components(self.below, shares),
            above=_scale_components(self.above, shares),
        )

    def with_more_steps(self, times: float) -> StepDifference:
        shares = [1 / times] * len(self.below)
        return replace(self, below=_scale_components(self.below, shares), above=_scale_components(self.above, shares))


def _sum_squares(sides: Sequence[Values]) -> float:
    return sum(float(((side - side.mean()) ** 2).sum()) for side in sides)


def _half_width(tail: float, parts: Sequence[Variance], beyond: float) -> float:
    total = sum(part.variance for part in parts)
    if not total:
        return 0.0
    freedom = total**2 / sum(part.variance**2 / part.freedom for part in parts)
    # round to tenths, so that quantiles can be cached
    return (student(tail, max(math.floor(10 * freedom) / 10, 1.0)) + beyond) * math.sqrt(total)


def _components(side: Sequence[Estimate], end: Literal["below", "above"]) -> Iterator[Variance]:
    for run in side:
        yield Variance((getattr(run, end) / len(side)) ** 2, run.freedom)


def _scale_components(parts: Sequence[Variance], shares: Sequence[float]) -> tuple[Variance, ...]:
    pairs = zip(parts, shares, strict=False)
    return tuple(Variance(part.variance * share, part.freedom / share) for part, share in pairs)


def compare_paired(a: ArrayLike, b: ArrayLike, *, tolerance: float = TOLERANCE) -> Ratio:
    """Return the median ratio of alternating measurements of A and B in one process, with a 99% interval.

    Raises:
        OptionError: There are fewer than `LEAST_STEPS` times.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    ratio = level(second / first).typical
    tail = (1 - CONFIDENCE) / 2
    half_width = student(tail, ratio.freedom)
    low, high = ratio.log - half_width * ratio.below, ratio.log + half_width * ratio.above
    times = (float(np.median(first)), float(np.median(second)))
    return Ratio(_classify(low, high, math.log1p(tolerance)), ratio.value, math.exp(low), math.exp(high), *times)


def _classify(low: float, high: float, edge: float) -> Outcome:
    if low > edge:
        return "slower"
    if high < -edge:
        return "faster"
    return "same" if -edge <= low and high <= edge else "undecided"
