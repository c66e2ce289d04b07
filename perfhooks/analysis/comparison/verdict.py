"""Decide whether two trainings differ, by confidence intervals of the ratio of their step times.

Processes of the same program differ by more than the spread of their steps explains, so one run per side has a wide
interval.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from perfhooks.core.errors import OptionError
from perfhooks.core.statistics import CONFIDENCE, Estimate, level, student
from perfhooks.run.circumstances import BUSY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import ArrayLike

    from perfhooks.core.statistics import Level, Values

TOLERANCE: Final = 0.02
"""Default tolerance: step times of unchanged code vary by as much."""
PROCESS_SD: Final = 0.01
"""Relative standard deviation between equal processes on a quiet machine."""
PROCESS_FREEDOM: Final = 4
"""Degrees of freedom of `PROCESS_SD`: it counts as much as five measured pairs."""
EDGE_CONFIDENCE: Final = 0.9
"""Confidence that a change exceeds the tolerance."""
OFTEN: Final = 0.02
"""Outlier rate of throughput: evaluations and checkpoints are rarer."""
_MOST_STEPS: Final = 1000
"""Maximum factor of the number of steps that is suggested to decide a comparison."""
_POWER: Final = 0.84
"""Standard deviations for a power of 80%."""
_TAIL: Final = (1 - CONFIDENCE) / 4
"""Tail probability at each end, for two questions with two directions each."""
_EDGE_TAIL: Final = (1 - EDGE_CONFIDENCE) / 2

Outcome = Literal["slower", "faster", "same", "undecided"]
Question = Literal["mean", "typical"]
Clock = Literal["wall", "processor"]


class Ratio(NamedTuple):
    outcome: Outcome
    ratio: float
    """A value above 1 means that B is slower."""
    low: float
    high: float
    """End of the 99% interval; of the 90% interval if the outcome is ``same``."""
    a: float
    b: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    outcome: Outcome
    by: Question
    typical: Ratio
    mean: Ratio
    tolerance: float
    process_sd: float
    process_freedom: int
    runs_a: int
    runs_b: int
    runs_earlier: int = 0
    steps_a: int = 0
    steps_b: int = 0
    far_a: float = 0.0
    far_b: float = 0.0
    is_far_counted: bool = False
    is_paired: bool = False
    """Whether both sides read the same data in equal steps."""
    clock: Clock = "wall"
    waited_a: float | None = None
    waited_b: float | None = None
    """Highest run-queue wait of a run, as a fraction."""
    others_a: float | None = None
    others_b: float | None = None
    """Highest CPU use by other programs, as a fraction of all CPUs."""
    is_withheld: bool = False
    """Whether CPU contention without measured waits prevents a decision."""
    more_steps: int | None = None
    more_runs: int | None = None
    """None if 99 are not enough."""

    @property
    def decisive(self) -> Ratio:
        return self.mean if self.by == "mean" else self.typical

    @property
    def is_in_turns(self) -> bool:
        return self.is_paired and not self.steps_a

    @property
    def is_busy(self) -> bool:
        return self.clock == "processor" or self.is_withheld

    @property
    def is_beside_others(self) -> bool:
        return max(self.others_a or 0.0, self.others_b or 0.0) >= BUSY

    @property
    def ratio(self) -> float:
        return self.decisive.ratio

    @property
    def low(self) -> float:
        return self.decisive.low

    @property
    def high(self) -> float:
        return self.decisive.high


def verdict(
    a: Sequence[Level], b: Sequence[Level], *, earlier: Sequence[Sequence[Level]] = (), tolerance: float = TOLERANCE
) -> Verdict:
    """Compare the step times of the runs of two trainings.

    The error of the ratio combines the error of each run's level and the deviation between processes. Earlier runs can
    only lower the deviation, because a higher one may come from a changed program.

    Returns:
        ``slower`` if, for the mean or the typical step, the 99% interval lies above 1 and the 90% interval above 1 +
        tolerance. ``faster`` is the mirror image. ``same`` if the mean differs by less than the tolerance, its 90%
        interval lies within 2.5 times the tolerance, and the typical step does not differ. Otherwise
        ``undecided``. Single runs are never the same.
    """
    runs = [*a, *b]
    is_far_counted = max(_outlier_rate(a), _outlier_rate(b)) >= OFTEN
    clock = _choose_clock(runs)
    # runs on a quiet machine do not show the deviation on a busy one
    quiet = [] if _is_disturbed(runs) else [[run for run in side if not _is_disturbed([run])] for side in earlier]
    sides, earlier_estimates = (
        [[_select_estimates(run, clock, is_far_counted=is_far_counted) for run in side] for side in group]
        for group in ((a, b), quiet)
    )
    typical, mean = (
        _Difference.of(
            [run[index] for run in sides[0]],
            [run[index] for run in sides[1]],
            _assume_sd(runs),
            [[run[index] for run in side] for side in earlier_estimates],
        )
        for index in range(2)
    )
    result = _build_verdict(
        typical,
        mean,
        tolerance,
        clock=clock,
        waited_a=_highest(a, "waited"),
        waited_b=_highest(b, "waited"),
        others_a=_highest(a, "others"),
        others_b=_highest(b, "others"),
        runs_a=len(a),
        runs_b=len(b),
        runs_earlier=mean.earlier,
        steps_a=sum(run.steps for run in a),
        steps_b=sum(run.steps for run in b),
        far_a=_outlier_rate(a),
        far_b=_outlier_rate(b),
        is_far_counted=is_far_counted,
    )
    is_withheld = clock == "wall" and _is_busy(runs)
    return (
        replace(result, outcome="undecided", is_withheld=True, more_steps=None, more_runs=None)
        if is_withheld
        else result
    )


def _select_estimates(run: Level, clock: Clock, *, is_far_counted: bool) -> tuple[Estimate, Estimate]:
    if clock == "processor" and run.own is not None:
        # waits are whole time slices in some steps, so the typical step without waits is unknown
        return run.own, run.own
    return run.typical, run.whole if is_far_counted else run.mean


def _choose_clock(runs: Sequence[Level]) -> Clock:
    return "processor" if _is_busy(runs) and all(run.own is not None for run in runs) else "wall"


def _is_busy(runs: Sequence[Level]) -> bool:
    return any((run.waited or 0.0) >= BUSY for run in runs)


def _is_disturbed(runs: Sequence[Level]) -> bool:
    return _is_busy(runs) or any((run.others or 0.0) >= BUSY for run in runs)


def _assume_sd(runs: Sequence[Level]) -> float:
    """Return `PROCESS_SD`, increased by run-queue waits and by the CPU load of other programs.

    The means of 45 equal runs that waited 29 to 60% of their time differed by 11 to 16%.
    """
    waited, load = (max(getattr(run, name) or 0.0 for run in runs) for name in ("waited", "others"))
    return PROCESS_SD + 0.1 * waited / (1 - waited) + 0.2 * load


def _highest(side: Sequence[Level], name: Literal["waited", "others"]) -> float | None:
    ratios = [ratio for run in side if (ratio := getattr(run, name)) is not None]
    return max(ratios) if len(ratios) == len(side) else None


def _outlier_rate(side: Sequence[Level]) -> float:
    return sum(run.far for run in side) / sum(run.steps + run.far for run in side)


class Variance(NamedTuple):
    variance: float
    freedom: float


class StepPair(NamedTuple):
    a: float
    b: float
    errors: Sequence[Variance] = ()


def of_pairs(
    typical: Sequence[StepPair],
    mean: Sequence[StepPair],
    *,
    tolerance: float = TOLERANCE,
    share: Callable[[int], float] = lambda _: 1.0,
) -> Verdict:
    """Compare two trainings that ran at the same time in pairs of processes.

    ``share`` returns the fraction of the 1% error budget for a number of pairs, because each pair repeats the test.
    """
    pairs = len(mean)
    differences = _Difference.of_pairs(typical), _Difference.of_pairs(mean)
    return _build_verdict(*differences, tolerance, share, runs_a=pairs, runs_b=pairs, is_paired=True)


def missing_steps(
    pairs: Sequence[StepPair], most: int, *, tolerance: float, share: Callable[[int], float] = lambda _: 1.0
) -> float:
    """Return the factor by which each process must run longer, so that ``most`` pairs suffice; inf above 1,000."""
    difference = _Difference.of_pairs(pairs)
    more = most - len(pairs)
    if difference.with_more_runs(more).is_decided(tolerance, share(most)):
        return 1.0
    equal = replace(difference, logs=(0.0, 0.0), squares=0.0)

    def is_enough(times: float) -> bool:
        return equal.with_more_steps(times).with_more_runs(more).is_decided(tolerance, share(most))

    factors = np.geomspace(1, _MOST_STEPS, 72)
    index = bisect_left(factors, 1, key=is_enough)
    return float(factors[index]) if index < len(factors) else math.inf


def smallest_detectable(side: Sequence[Level]) -> float:
    runs = [run.mean for run in side]
    difference = _Difference.of(runs, runs, _assume_sd(side))
    return math.exp(difference.detectable(math.log1p(TOLERANCE)))


def compare_paired(a: ArrayLike, b: ArrayLike, *, tolerance: float = TOLERANCE) -> Ratio:
    """Return the median ratio of alternating measurements of A and B in one process, with a 99% interval.

    Raises:
        OptionError: There are fewer than `LEAST_STEPS` times, unequally many, or times of 0 or below.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if len(first) != len(second) or not (first > 0).all():
        raise OptionError(f"a and b must be equally many times above 0, got {len(first)} and {len(second)}")
    ratio = level(second / first).typical
    tail = (1 - CONFIDENCE) / 2
    half_width = student(tail, ratio.freedom)
    low, high = ratio.log - half_width * ratio.below, ratio.log + half_width * ratio.above
    times = (float(np.median(first)), float(np.median(second)))
    return Ratio(_classify(low, high, math.log1p(tolerance)), ratio.value, math.exp(low), math.exp(high), *times)


def _log_edges(tolerance: float) -> tuple[float, float]:
    """Return the edge of a change, and the edge of equality (source: ``benchmarks/noises.py``)."""
    return math.log1p(tolerance), math.log1p(2.5 * tolerance)


def _classify(low: float, high: float, edge: float) -> Outcome:
    if low > edge:
        return "slower"
    if high < -edge:
        return "faster"
    return "same" if -edge <= low and high <= edge else "undecided"


@dataclass(frozen=True)
class _Difference:
    logs: tuple[float, float]
    squares: float
    """Sum of squares between the processes of a side."""
    measured: int
    counts: tuple[int, ...]
    """Runs of each side, or the number of pairs twice."""
    below: tuple[Variance, ...] = ()
    above: tuple[Variance, ...] = ()
    assumed: float = PROCESS_SD
    earlier: int = 0
    more_freedom: int = 2

    @classmethod
    def of(
        cls,
        a: Sequence[Estimate],
        b: Sequence[Estimate],
        assumed: float,
        earlier: Sequence[Sequence[Estimate]] = (),
    ) -> _Difference:
        sides = (a, b)
        logs, earlier_logs = (
            [np.array([run.log for run in side]) for side in group if side] for group in (sides, earlier)
        )
        freedom, more_freedom = (sum(len(logs_of_side) - 1 for logs_of_side in group) for group in (logs, earlier_logs))
        step_variance = sum(float(np.mean([(run.below**2 + run.above**2) / 2 for run in side])) for side in sides) / 2
        squares = max(_sum_squares(logs) - freedom * step_variance, 0.0)
        # do not subtract the step error of earlier runs: many uneven runs would count as equal
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
        )

    @classmethod
    def of_pairs(cls, pairs: Sequence[StepPair]) -> _Difference:
        logs = np.log(np.array([pair[:2] for pair in pairs], np.float64))
        differences = logs[:, 1] - logs[:, 0]
        errors = [Variance(part.variance / len(pairs) ** 2, part.freedom) for pair in pairs for part in pair.errors]
        measured = len(pairs) - 1
        squares = float(((differences - differences.mean()) ** 2).sum()) / 2  # a pair has the variance of two processes
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
        )

    @property
    def process(self) -> Variance:
        """Variance between processes.

        The assumption loses degrees of freedom as the runs exceed it. Otherwise 2% of equal pairs whose processes
        differ by 2.5% were classified as different.
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
        """Return half the width of an interval.

        With a common quantile for the process part and the step part, 2% instead of 1% of equal pairs that differ by 5%
        were classified as different.
        """
        weight = sum(1 / count for count in self.counts)
        process = self.process
        return math.hypot(
            _half_width(tail, [process._replace(variance=process.variance * weight)], beyond),
            _half_width(tail, by_steps, beyond),
        )

    def detectable(self, tolerance: float) -> float:
        is_different, is_beyond = (self._reach(tail, self.above, _POWER) for tail in (_TAIL, self._beyond_tail))
        return max(is_different, is_beyond + tolerance)

    @property
    def _beyond_tail(self) -> float:
        """Tail probability beyond the tolerance: 0.25%, or up to 5% if the spread of processes was measured."""
        return _TAIL * math.pow(_EDGE_TAIL / _TAIL, min(self.measured / PROCESS_FREEDOM, 1.0))

    def ratio(self, tolerance: float, share: float) -> Ratio:
        edge, margin = _log_edges(tolerance)
        ends, beyond, inner = (self.interval(tail * share) for tail in (_TAIL, self._beyond_tail, _EDGE_TAIL))
        outcome: Outcome = "undecided"
        if ends[0] > 0 and beyond[0] > edge:
            outcome = "slower"
        elif ends[1] < 0 and beyond[1] < -edge:
            outcome = "faster"
        elif self.measured and abs(self.centre) <= edge and max(-inner[0], inner[1]) <= margin:
            outcome, ends = "same", inner
        low, high = np.clip(ends, -50.0, 50.0).tolist()  # the interval of two pairs can be infinite
        return Ratio(outcome, *(math.exp(log) for log in (self.centre, low, high, *self.logs)))

    def is_decided(self, tolerance: float, share: float) -> bool:
        edge, margin = _log_edges(tolerance)
        distance = abs(self.centre)
        outer, beyond, inner = (
            max(self._reach(tail * share, parts, _POWER) for parts in (self.below, self.above))
            for tail in (_TAIL, self._beyond_tail, _EDGE_TAIL)
        )
        is_same = bool(self.measured) and distance <= edge and inner <= margin - distance
        return is_same or (outer <= distance and beyond <= distance - edge)

    def with_more_runs(self, more: int) -> _Difference:
        counts = tuple(count + more for count in self.counts)
        added_freedom = more * self.more_freedom
        # unmeasured processes usually differ by half of the assumption
        square = self.squares / self.measured if self.measured else (self.assumed * 0.5) ** 2
        # components are ordered as in `of`: B's runs, then A's
        shares = [count / (count + more) for count in reversed(self.counts) for _ in range(count)]
        return replace(
            self,
            squares=self.squares + added_freedom * square,
            measured=self.measured + added_freedom,
            counts=counts,
            below=_scale_components(self.below, shares),
            above=_scale_components(self.above, shares),
        )

    def with_more_steps(self, times: float) -> _Difference:
        shares = [1 / times] * len(self.below)
        return replace(self, below=_scale_components(self.below, shares), above=_scale_components(self.above, shares))


def _sum_squares(sides: Sequence[Values]) -> float:
    return sum(float(((side - side.mean()) ** 2).sum()) for side in sides)


def _half_width(tail: float, parts: Sequence[Variance], beyond: float) -> float:
    """Return half the width of the interval of a sum of errors, by Satterthwaite's degrees of freedom."""
    total = sum(part.variance for part in parts)
    if not total:
        return 0.0
    freedom = total**2 / sum(part.variance**2 / part.freedom for part in parts)
    # in tenths, so that cached quantiles are found
    return (student(tail, max(math.floor(10 * freedom) / 10, 1.0)) + beyond) * math.sqrt(total)


def _components(side: Sequence[Estimate], end: Literal["below", "above"]) -> Iterator[Variance]:
    for run in side:
        yield Variance((getattr(run, end) / len(side)) ** 2, run.freedom)


def _scale_components(parts: Sequence[Variance], shares: Sequence[float]) -> tuple[Variance, ...]:
    pairs = zip(parts, shares, strict=False)
    return tuple(Variance(part.variance * share, part.freedom / share) for part, share in pairs)


def _build_verdict(
    typical: _Difference,
    mean: _Difference,
    tolerance: float,
    share: Callable[[int], float] = lambda _: 1.0,
    **facts: Any,
) -> Verdict:
    of_mean, of_typical = (difference.ratio(tolerance, share(difference.counts[0])) for difference in (mean, typical))
    by = _choose_question(of_mean.outcome, of_typical.outcome)
    result = Verdict(
        outcome=(of_mean if by == "mean" else of_typical).outcome,
        by=by,
        typical=of_typical,
        mean=of_mean,
        tolerance=tolerance,
        process_sd=math.sqrt(max(typical.process.variance, mean.process.variance)),
        process_freedom=mean.measured,
        **facts,
    )
    if result.outcome != "undecided":
        return result
    needed = _estimate_more_steps(mean, tolerance, result), _estimate_more_runs(mean, tolerance, share)
    return replace(result, more_steps=needed[0], more_runs=needed[1])


def _choose_question(mean: Outcome, typical: Outcome) -> Question:
    if mean in ("slower", "faster"):
        return "mean"
    if typical in ("slower", "faster"):
        return "typical"
    return "mean"


def _estimate_more_steps(mean: _Difference, tolerance: float, result: Verdict) -> int | None:
    steps = max(math.ceil(result.steps_a / result.runs_a), math.ceil(result.steps_b / result.runs_b))
    factors = np.geomspace(1.1, _MOST_STEPS, 72)
    index = bisect_left(factors, 1, key=lambda times: mean.with_more_steps(times).is_decided(tolerance, 1))
    return math.ceil(steps * (factors[index] - 1)) if steps and index < len(factors) else None


def _estimate_more_runs(mean: _Difference, tolerance: float, share: Callable[[int], float]) -> int | None:
    counts = range(1, 100)
    index = bisect_left(counts, 1, key=lambda more: _is_likely_decided(mean.with_more_runs(more), tolerance, share))
    return counts[index] if index < len(counts) else None


def _is_likely_decided(difference: _Difference, tolerance: float, share: Callable[[int], float]) -> bool:
    return difference.is_decided(tolerance, share(difference.counts[0]))
