"""Decide whether two programs differ that ran in interleaved blocks (``perfhooks compare --run``).

    pair 1   A B A B A B ...     each letter is a block of consecutive steps; both processes exist at the same time
    pair 2   B A B A B A ...     another pair of processes

Noise affects neighbouring blocks equally, so the ratios of neighbouring blocks are compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.analysis.comparison.difference import StepDifference, StepPair, Variance
from perfhooks.analysis.comparison.verdict import OFTEN, of_pairs
from perfhooks.core.statistics import is_near
from perfhooks.run.circumstances import BUSY
from perfhooks.run.steps import FEWEST_FIRST, MOST_FIRST, OF_FIRST
from perfhooks.trace.nesting.intervals import NEARLY_ALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.analysis.comparison.difference import Ratio
    from perfhooks.analysis.comparison.verdict import Clock, Verdict
    from perfhooks.core.statistics import Values
    from perfhooks.run.steps import Flags

FEWEST_PAIRS: Final = 3
"""Minimum pairs of processes before a verdict. Fewer pairs do not measure the variance between processes."""
MOST_PAIRS: Final = 8
"""Maximum pairs of processes in an undecided comparison."""
_ERROR_SPLIT: Final = (0.01, 0.04, 0.4, 0.15, 0.15, 0.25)
"""Fractions of the 1% error budget for the decisions after 3, 4, 5, 6, 7 and 8 pairs."""
LEAST_BLOCKS: Final = 5
"""Minimum blocks of each process for a verdict, because the longest and shortest blocks are discarded."""
_MAX_MISSING_FACTOR: Final = 4.0
"""No further pair is started if a decision needs more than this multiple of the recorded steps."""


class Block(NamedTuple):
    """Consecutive steps of one program.

    If there are several ranks, ``wall_ns`` is the maximum over the ranks, and ``cpu_ns`` the sum.
    """

    steps: int
    wall_ns: int
    cpu_ns: int
    busy_ns: int
    """CPU time in ns of the threads that run the steps, as a mean over the ranks."""
    waited_ns: int | None
    """Run-queue wait in ns of the threads that run the steps; None if unknown."""


@dataclass(frozen=True, kw_only=True)
class ProcessPair:
    a: Sequence[Block]
    b: Sequence[Block]
    is_together: bool = True

    @cached_property
    def counted(self) -> tuple[Sequence[Block], Sequence[Block]]:
        """Blocks of A and of B after the first steps of each program.

        If both programs ran interleaved, blocks with the same index ran one after the other.
        """
        first = _first_index(self.a), _first_index(self.b)
        if not self.is_together:
            return self.a[first[0] :], self.b[first[1] :]
        common = slice(max(first), min(len(self.a), len(self.b)))
        return self.a[common], self.b[common]

    @property
    def counts(self) -> bool:
        return min(map(len, self.counted)) >= LEAST_BLOCKS


class Judgement(NamedTuple):
    verdict: Verdict
    other: Ratio
    blocks: int
    far: tuple[int, int]
    missing_steps: float = 1.0

    @property
    def is_short(self) -> bool:
        return self.missing_steps > _MAX_MISSING_FACTOR

    @property
    def is_hopeless(self) -> bool:
        return self.is_short or (self.verdict.runs_a > FEWEST_PAIRS and self.verdict.more_runs is None)


def judge(pairs: Sequence[ProcessPair], *, tolerance: float) -> Judgement:
    clock = _choose_clock(pairs)
    by_other_clock = _judge(pairs, "wall" if clock == "processor" else "processor", tolerance)
    return _judge(pairs, clock, tolerance)._replace(other=by_other_clock.verdict.typical)


def _judge(pairs: Sequence[ProcessPair], clock: Clock, tolerance: float) -> Judgement:
    measured = [_MeasuredPair.of(process_pair, clock) for process_pair in pairs]
    sides = [[pair.sides[index] for pair in measured] for index in range(2)]
    rates = [_outlier_rate(side) for side in sides]
    is_far_counted = max(rates) >= OFTEN
    means = [pair.mean(is_far_counted=is_far_counted) for pair in measured]
    result = of_pairs([pair.typical for pair in measured], means, tolerance=tolerance, share=share)
    if len(pairs) < FEWEST_PAIRS:
        result = replace(result, outcome="undecided")
    if (result.more_runs or 0) > MOST_PAIRS or len(pairs) < FEWEST_PAIRS:
        result = replace(result, more_runs=None)
    return Judgement(
        verdict=replace(
            result,
            clock=clock,
            is_far_counted=is_far_counted,
            far_a=rates[0],
            far_b=rates[1],
            waited_a=_wait_ratio([process_pair.counted[0] for process_pair in pairs]),
            waited_b=_wait_ratio([process_pair.counted[1] for process_pair in pairs]),
        ),
        other=result.typical,
        missing_steps=StepDifference.of_pairs(means, tolerance, share).missing_steps(MOST_PAIRS),
        blocks=sum(len(pair.steps) for side in sides for pair in side),
        far=(_count_outliers(sides[0]), _count_outliers(sides[1])),
    )


def share(pairs: int) -> float:
    return _ERROR_SPLIT[min(max(pairs, FEWEST_PAIRS), MOST_PAIRS) - FEWEST_PAIRS]


class _Side(NamedTuple):
    steps: Values
    times: Values
    step: Values
    is_near: Flags

    @classmethod
    def of(cls, blocks: Sequence[Block], clock: Clock) -> _Side:
        steps = np.array([float(block.steps) for block in blocks])
        times = np.maximum([block.wall_ns if clock == "wall" else block.cpu_ns for block in blocks], 1.0) / 1e6
        return cls(steps, times, times / steps, is_near(times / steps))


class _MeasuredPair(NamedTuple):
    sides: tuple[_Side, _Side]
    is_together: bool

    @classmethod
    def of(cls, pair: ProcessPair, clock: Clock) -> _MeasuredPair:
        a, b = (_Side.of(blocks, clock) for blocks in pair.counted)
        return cls((a, b), pair.is_together)

    @property
    def selected(self) -> tuple[Flags, Flags]:
        a, b = (side.is_near for side in self.sides)
        if not self.is_together:
            return a, b
        common = a & b if (a & b).sum() > 1 else np.ones_like(a)
        return common, common

    @property
    def typical(self) -> StepPair:
        a, b = (np.log(side.step[is_kept]) for side, is_kept in zip(self.sides, self.selected, strict=True))
        compared = [b - a] if self.is_together else [a, b]
        typical_a = _trimmed_mean(a)
        typical_b = _trimmed_mean(b - a) + typical_a if self.is_together else _trimmed_mean(b)
        return StepPair(math.exp(typical_a), math.exp(typical_b), [_trimmed_variance(values) for values in compared])

    def mean(self, *, is_far_counted: bool) -> StepPair:
        means, residuals = [], []
        for side, is_kept in zip(self.sides, self.selected, strict=True):
            steps, times = (column[is_kept | is_far_counted] for column in (side.steps, side.times))
            means.append(float(times.sum() / steps.sum()))
            residuals.append((times - means[-1] * steps) / times.mean())
        compared = [residuals[1] - residuals[0]] if self.is_together else residuals
        return StepPair(means[0], means[1], [_mean_variance(column, len(column) - 1) for column in compared])


def _outlier_rate(sides: Sequence[_Side]) -> float:
    blocks = sum(len(side.steps) for side in sides)
    return -math.log1p(-_count_outliers(sides) / blocks) * blocks / float(sum(side.steps.sum() for side in sides))


def _count_outliers(sides: Sequence[_Side]) -> int:
    return sum(int((~side.is_near).sum()) for side in sides)


def _first_index(blocks: Sequence[Block]) -> int:
    before = np.cumsum([0, *(block.steps for block in blocks)])
    first = min(max(int(before[-1]) // OF_FIRST, FEWEST_FIRST), MOST_FIRST)
    return min(int(np.searchsorted(before, first)), len(blocks))


def _trimmed_mean(values: Values) -> float:
    return float(np.sort(values)[_inner_slice(values)].mean())


def _trimmed_variance(values: Values) -> Variance:
    """Return the variance of the trimmed mean, from winsorized values.

    Source: Tukey and McLaughlin, Less vulnerable confidence and significance procedures (1963).
    """
    inner = np.sort(values)[_inner_slice(values)]
    return _mean_variance(np.clip(values, inner[0], inner[-1]) * (len(values) / len(inner)), len(inner) - 1)


def _inner_slice(values: Values) -> slice:
    cut = int(0.2 * len(values))
    return slice(cut, len(values) - cut)


def _mean_variance(values: Values, freedom: int) -> Variance:
    return Variance(float(values.var(ddof=1)) / len(values), freedom)


def _choose_clock(pairs: Sequence[ProcessPair]) -> Clock:
    sides = [[pair.counted[index] for pair in pairs] for index in range(2)]
    is_busy = max(_wait_ratio(side) or 0.0 for side in sides) >= BUSY
    return "processor" if is_busy and min(map(_runnable_ratio, sides)) >= NEARLY_ALL else "wall"


def _wait_ratio(side: Sequence[Sequence[Block]]) -> float | None:
    blocks = [block for process in side for block in process]
    waits = [block.waited_ns for block in blocks if block.waited_ns is not None]
    return sum(waits) / sum(block.wall_ns for block in blocks) if len(waits) == len(blocks) else None


def _runnable_ratio(side: Sequence[Sequence[Block]]) -> float:
    blocks = [block for process in side for block in process]
    return sum(block.busy_ns + (block.waited_ns or 0) for block in blocks) / sum(block.wall_ns for block in blocks)
