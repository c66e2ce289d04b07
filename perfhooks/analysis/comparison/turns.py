"""How sure one can be that two programs differ that were run in turns, block by block (``perfhooks compare --run``).

    pair 1   A B A B A B ...     each letter is a block: some steps in a row of one of two processes that live together
    pair 2   B A B A B A ...     two processes more

What disturbs the machine disturbs neighbouring blocks alike, so within a pair it is their ratios that are looked at.
That leaves what one process differs from the next by, which only more pairs tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.analysis.comparison.verdict import OFTEN, StepPair, Variance, missing_steps, of_pairs
from perfhooks.core.statistics import is_near
from perfhooks.run.circumstances import BUSY
from perfhooks.run.steps import FEWEST_FIRST, MOST_FIRST, OF_FIRST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.analysis.comparison.verdict import Clock, Ratio, Verdict
    from perfhooks.core.statistics import Values
    from perfhooks.run.steps import Flags

FEWEST_PAIRS: Final = 3
MOST_PAIRS: Final = 8
"""Of processes. After each from the third on it is asked whether the verdict is decided."""
_SHARES: Final = (0.01, 0.04, 0.4, 0.15, 0.15, 0.25)
"""Part of the 1% of wrong verdicts that may come after each number of pairs, from three on. Three pairs agree by chance
most often, and most users wait for five. ``python benchmarks/noises.py --turns`` measures the sum."""
LEAST_BLOCKS: Final = 5
"""Of each side, in a pair that counts: fewer do not tell how blocks differ."""
_FEWEST: Final = 2
"""Blocks that differ: one says nothing of how."""
COMPUTING: Final = 0.9
"""The share of its time in which a thread computes, or could: from there on the processor's time tells what a step
takes. Of a program that waits for data or for a device it does not."""
_CLEARLY: Final = 4.0
"""Factor of missing steps from which on a process is too short: twice its error."""
_TRIMMED: Final = 0.2
"""Of the blocks, at either end, that the typical one does without."""


class Block(NamedTuple):
    """Steps of one program in a row, in nanoseconds; of several ranks the slowest one's wall time, and sums."""

    steps: int
    wall_ns: int
    cpu_ns: int
    """What all threads computed."""
    busy_ns: int
    """What the threads of the steps computed, as a mean of the ranks."""
    waited_ns: int | None
    """How long these waited for a processor; None where the system does not tell."""


@dataclass(frozen=True, kw_only=True)
class ProcessPair:
    """Two processes: of each the blocks, in their order."""

    a: Sequence[Block]
    b: Sequence[Block]
    is_together: bool = True
    """Whether they lived together, so that blocks of equal place are neighbours."""

    @cached_property
    def counted(self) -> tuple[Sequence[Block], Sequence[Block]]:
        """Those that count of each: not the first ones, and of two that lived together only neighbours."""
        first = _first(self.a), _first(self.b)
        if not self.is_together:
            return self.a[first[0] :], self.b[first[1] :]
        kept = slice(max(first), min(len(self.a), len(self.b)))
        return self.a[kept], self.b[kept]

    @property
    def counts(self) -> bool:
        """Whether there are blocks enough."""
        return min(map(len, self.counted)) >= LEAST_BLOCKS


class Judgement(NamedTuple):
    """What can be said after some pairs."""

    verdict: Verdict
    """Undecided where there are fewer than `FEWEST_PAIRS`."""
    other: Ratio
    """The typical step, by the other clock."""
    blocks: int
    """That counted, of both sides."""
    far: tuple[int, int]
    """Blocks of more than three times the median: of evaluations, checkpoints, pauses."""
    missing_steps: float = 1.0
    """How many times as many steps each process needs, so that `MOST_PAIRS` pairs decide."""

    @property
    def is_short(self) -> bool:
        """Whether processes have by far too few steps: one pair measures their error to a factor of two."""
        return self.missing_steps > _CLEARLY

    @property
    def is_hopeless(self) -> bool:
        """Whether more pairs will not decide: a process has too few steps, or processes differ by too much."""
        return self.is_short or (self.verdict.runs_a > FEWEST_PAIRS and self.verdict.more_runs is None)


def judged(pairs: Sequence[ProcessPair], *, tolerance: float) -> Judgement:
    """Judge the typical step and the mean step of both sides, see `verdict.of_pairs`.

    Args:
        pairs: Each with `ProcessPair.counts`, at least one.
        tolerance: What share of difference is none.
    """
    clock = _clock(pairs)
    other = _found(pairs, "wall" if clock == "processor" else "processor", tolerance)
    return _found(pairs, clock, tolerance)._replace(other=other.verdict.typical)


def _found(pairs: Sequence[ProcessPair], clock: Clock, tolerance: float) -> Judgement:
    seen = [_SeenPair.of(pair, clock) for pair in pairs]
    sides = [[each.sides[place] for each in seen] for place in range(2)]
    rates = [_rate(side) for side in sides]
    is_far_counted = max(rates) >= OFTEN
    found = of_pairs(
        [each.typical for each in seen],
        [each.mean(is_far_counted=is_far_counted) for each in seen],
        tolerance=tolerance,
        share=share,
    )
    if len(pairs) < FEWEST_PAIRS:
        found = replace(found, outcome="undecided")
    if (found.more_runs or 0) > MOST_PAIRS or len(pairs) < FEWEST_PAIRS:
        found = replace(found, more_runs=None)
    return Judgement(
        verdict=replace(
            found,
            clock=clock,
            is_far_counted=is_far_counted,
            far_a=rates[0],
            far_b=rates[1],
            waited_a=_waited([pair.counted[0] for pair in pairs]),
            waited_b=_waited([pair.counted[1] for pair in pairs]),
        ),
        other=found.typical,
        missing_steps=missing_steps(
            [each.mean(is_far_counted=is_far_counted) for each in seen], MOST_PAIRS, tolerance=tolerance, share=share
        ),
        blocks=sum(len(each.steps) for side in sides for each in side),
        far=(_far(sides[0]), _far(sides[1])),
    )


def share(pairs: int) -> float:
    """The part of the wrong answers that may be given after so many pairs."""
    return _SHARES[min(max(pairs, FEWEST_PAIRS), MOST_PAIRS) - FEWEST_PAIRS]


class _Side(NamedTuple):
    """The blocks of one process."""

    steps: Values
    times: Values
    """Of a block, in milliseconds."""
    step: Values
    """What a step took, of each block."""
    is_near: Flags

    @classmethod
    def of(cls, blocks: Sequence[Block], clock: Clock) -> _Side:
        steps = np.array([float(block.steps) for block in blocks])
        times = np.maximum([block.wall_ns if clock == "wall" else block.cpu_ns for block in blocks], 1.0) / 1e6
        return cls(steps, times, times / steps, is_near(times / steps))


class _SeenPair(NamedTuple):
    """Two processes, by one clock."""

    sides: tuple[_Side, _Side]
    is_together: bool

    @classmethod
    def of(cls, pair: ProcessPair, clock: Clock) -> _SeenPair:
        a, b = (_Side.of(blocks, clock) for blocks in pair.counted)
        return cls((a, b), pair.is_together)

    @property
    def kept(self) -> tuple[Flags, Flags]:
        """Which blocks are not far, nor neighbours of those that are; all, where that leaves too few."""
        a, b = (side.is_near for side in self.sides)
        if not self.is_together:
            return a, b
        both = a & b if (a & b).sum() >= _FEWEST else np.ones_like(a)
        return both, both

    @property
    def typical(self) -> StepPair:
        """The typical step of both; of two that lived together, B's as a multiple of A's is that of neighbours."""
        a, b = (np.log(side.step[kept]) for side, kept in zip(self.sides, self.kept, strict=True))
        compared = [b - a] if self.is_together else [a, b]
        middle = _trimmed(a)
        above = _trimmed(b - a) + middle if self.is_together else _trimmed(b)
        return StepPair(math.exp(middle), math.exp(above), [_error_of_trimmed(each) for each in compared])

    def mean(self, *, is_far_counted: bool) -> StepPair:
        """The mean step of both."""
        means, beyond = [], []
        for side, kept in zip(self.sides, self.kept, strict=True):
            steps, times = (each[kept | is_far_counted] for each in (side.steps, side.times))
            means.append(float(times.sum() / steps.sum()))
            beyond.append((times - means[-1] * steps) / times.mean())
        compared = [beyond[1] - beyond[0]] if self.is_together else beyond
        return StepPair(means[0], means[1], [_error(each, len(each) - 1) for each in compared])


def _rate(sides: Sequence[_Side]) -> float:
    """In what share of its steps a program does what makes a block far, if that comes at any of them.

    A block of a hundred steps is far if one of them is an evaluation. So blocks are not what is counted: how many have
    nothing of the kind tells how often it comes.
    """
    blocks = sum(len(side.steps) for side in sides)
    return -math.log1p(-_far(sides) / blocks) * blocks / float(sum(side.steps.sum() for side in sides))


def _far(sides: Sequence[_Side]) -> int:
    return sum(int((~side.is_near).sum()) for side in sides)


def _first(blocks: Sequence[Block]) -> int:
    """The place of the first block that counts: first steps start what is started once, see `perfhooks.run.steps`."""
    before = np.cumsum([0, *(block.steps for block in blocks)])
    first = min(max(int(before[-1]) // OF_FIRST, FEWEST_FIRST), MOST_FIRST)
    return min(int(np.searchsorted(before, first)), len(blocks))


def _trimmed(values: Values) -> float:
    """Their mean without the extremes."""
    return float(np.sort(values)[_inner(values)].mean())


def _error_of_trimmed(values: Values) -> Variance:
    """Of that mean, from values whose extremes are drawn in.

    Source: Tukey and McLaughlin, Less vulnerable confidence and significance procedures (1963).
    """
    inner = np.sort(values)[_inner(values)]
    return _error(np.clip(values, inner[0], inner[-1]) * (len(values) / len(inner)), len(inner) - 1)


def _inner(values: Values) -> slice:
    cut = int(_TRIMMED * len(values))
    return slice(cut, len(values) - cut)


def _error(values: Values, freedom: int) -> Variance:
    """Of the mean of some values: how neighbours differ says nothing of how the next ones do."""
    return Variance(float(values.var(ddof=1)) / len(values), freedom)


def _clock(pairs: Sequence[ProcessPair]) -> Clock:
    """The wall clock, but where it tells of others, and the processor's time tells of the steps."""
    sides = [[pair.counted[place] for pair in pairs] for place in range(2)]
    is_busy = max(_waited(side) or 0.0 for side in sides) >= BUSY
    return "processor" if is_busy and min(map(_computed, sides)) >= COMPUTING else "wall"


def _waited(side: Sequence[Sequence[Block]]) -> float | None:
    """What share of its time it waited for a processor."""
    blocks = [block for process in side for block in process]
    known = [block.waited_ns for block in blocks if block.waited_ns is not None]
    return sum(known) / sum(block.wall_ns for block in blocks) if len(known) == len(blocks) else None


def _computed(side: Sequence[Sequence[Block]]) -> float:
    """The share of its time in which the thread of the steps computed, or could have."""
    blocks = [block for process in side for block in process]
    return sum(block.busy_ns + (block.waited_ns or 0) for block in blocks) / sum(block.wall_ns for block in blocks)
