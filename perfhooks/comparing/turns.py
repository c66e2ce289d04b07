"""How sure one can be that two programs differ that were run in turns, block by block (``perfhooks compare --run``).

    pair 1   A B A B A B ...     each letter is a block: some 0.2 s of steps of one of two processes that live together
    pair 2   B A B A B A ...     two processes more

What disturbs the machine disturbs neighbouring blocks alike, so within a pair it is their ratios that are looked at.
That leaves what one process differs from the next by, which only more pairs tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from perfhooks.run.steps import FEWEST_FIRST, MOST_FIRST, OF_FIRST, is_near
from perfhooks.statistics import CONFIDENCE, student

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.comparing.verdict import Outcome
    from perfhooks.statistics import Values

FEWEST_PAIRS: Final = 3
MOST_PAIRS: Final = 8
"""Of processes. After each from the third on it is asked whether the verdict is decided."""
LEAST_BLOCKS: Final = 5
"""Of each side, in a pair that counts: fewer do not tell how blocks differ."""
PROCESS_SD: Final = 0.01
"""By what share a process is expected to differ from the next of the same program, as a standard deviation."""
PROCESS_FREEDOM: Final = 4
"""How much that expectation weighs beside what pairs show: as much as five pairs would."""
WAITED: Final = 0.05
"""The share of its time for which a thread may wait for a processor before the wall clock tells of others."""
BUSY: Final = 0.9
"""The share of its time in which a thread computes, or could: from there on the processor's time tells what a step
takes. Of a program that waits for data or for a device it does not."""
_TRIMMED: Final = 0.2
"""Of the ratios of blocks, at either end, that the typical one does without."""

Clock = Literal["wall", "processor"]


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

    @property
    def counts(self) -> bool:
        """Whether there are blocks enough."""
        return min(len(side) - _first(side) for side in (self.a, self.b)) >= LEAST_BLOCKS


class Interval(NamedTuple):
    """B's time as a multiple of A's, above 1 is slower; 99% over all looks."""

    ratio: float
    low: float
    high: float

    def outcome(self, tolerance: float) -> Outcome:
        """What it says."""
        edge = 1 + tolerance
        if self.low > edge:
            return "slower"
        if self.high < 1 / edge:
            return "faster"
        return "same" if self.low >= 1 / edge and self.high <= edge else "undecided"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What can be said after some pairs."""

    outcome: Outcome
    tolerance: float
    clock: Clock
    """By which it was judged."""
    typical: Interval
    """Of the typical block."""
    mean: Interval
    """Of the mean block: of throughput."""
    other: Interval
    """Of the typical block, by the other clock."""
    step_ms: tuple[float, float]
    """The mean step of A and of B, by the clock."""
    pairs: int
    blocks: int
    """Pairs of blocks that counted."""
    waited: tuple[float | None, float | None]
    """The share of its time for which each side waited for a processor."""
    far: tuple[int, int]
    """Blocks of more than three times the median, which are left out: evaluations, checkpoints, pauses."""

    @property
    def is_decided(self) -> bool:
        """Whether anything else can be said than that."""
        return self.outcome != "undecided"

    @property
    def decided_by(self) -> Interval:
        """The interval that decides: that of the mean, where the typical block does not."""
        of_typical, of_mean = self.typical.outcome(self.tolerance), self.mean.outcome(self.tolerance)
        is_mean = of_mean == self.outcome != of_typical
        return self.mean if is_mean else self.typical


def judged(pairs: Sequence[ProcessPair], *, tolerance: float) -> Judgement:
    """Whether B is slower than A, by the typical block and by the mean one.

    The interval comes from Student's distribution over pairs. To what pairs differ by is added what processes are
    expected to (`PROCESS_SD`) and what the blocks of a pair leave open, with the weight of `PROCESS_FREEDOM`. As it is
    asked after every pair, the chance of a wrong answer, 1%, is split equally over all looks that there may be.

    Args:
        pairs: Each with `ProcessPair.counts`, at least one.
        tolerance: What share of difference is none.

    Returns:
        ``slower`` where the interval of the typical block or of the mean one is above 1 + tolerance, ``faster`` where
        one of them is below 1 / (1 + tolerance), ``same`` where both are between, else ``undecided``, as always where
        there are fewer than `FEWEST_PAIRS`.
    """
    clock = _clock(pairs)
    seen = [_SeenPair.of(pair, clock) for pair in pairs]
    typical, mean = _interval([each.typical for each in seen]), _interval([each.mean for each in seen])
    other = [_SeenPair.of(pair, "wall" if clock == "processor" else "processor").typical for pair in pairs]
    return Judgement(
        outcome=_outcome(typical, mean, tolerance) if len(pairs) >= FEWEST_PAIRS else "undecided",
        tolerance=tolerance,
        clock=clock,
        typical=typical,
        mean=mean,
        other=_interval(other),
        step_ms=(_middle([each.step_ms[0] for each in seen]), _middle([each.step_ms[1] for each in seen])),
        pairs=len(pairs),
        blocks=sum(each.blocks for each in seen),
        waited=(_waited([pair.a for pair in pairs]), _waited([pair.b for pair in pairs])),
        far=(sum(each.far[0] for each in seen), sum(each.far[1] for each in seen)),
    )


class _Log(NamedTuple):
    """A logarithm of a ratio, and the square of its error as far as blocks tell."""

    value: float
    variance: float


class _SeenPair(NamedTuple):
    """What one pair says."""

    typical: _Log
    mean: _Log
    step_ms: tuple[float, float]
    blocks: int
    far: tuple[int, int]

    @classmethod
    def of(cls, pair: ProcessPair, clock: Clock) -> _SeenPair:
        first = (_first(pair.a), _first(pair.b))
        if pair.is_together:  # the first ones of either side are left out of both
            first = (max(first), max(first))
        a, b = _steps(pair.a[first[0] :], clock), _steps(pair.b[first[1] :], clock)
        if pair.is_together:
            count = min(len(a), len(b))
            a, b = a[:count], b[:count]
        near = (is_near(a), is_near(b))
        far = (int((~near[0]).sum()), int((~near[1]).sum()))
        if pair.is_together:
            both = near[0] & near[1]
            a, b = a[both], b[both]
            typical, spread = _trimmed(np.log(b / a)), b / b.mean() - a / a.mean()
            error = float(spread.var(ddof=1)) / len(spread)
        else:
            a, b = a[near[0]], b[near[1]]
            of_a, of_b = _trimmed(np.log(a)), _trimmed(np.log(b))
            typical = _Log(of_b.value - of_a.value, of_a.variance + of_b.variance)
            error = sum(float((each / each.mean()).var(ddof=1)) / len(each) for each in (a, b))
        mean = _Log(math.log(b.mean() / a.mean()), error)
        return cls(typical, mean, (float(a.mean()), float(b.mean())), min(len(a), len(b)), far)


def _first(blocks: Sequence[Block]) -> int:
    """The place of the first block that counts: first steps start what is started once, see `perfhooks.run.steps`."""
    before = np.cumsum([0, *(block.steps for block in blocks)])
    first = min(max(int(before[-1]) // OF_FIRST, FEWEST_FIRST), MOST_FIRST)
    return min(int(np.searchsorted(before, first)), len(blocks))


def _steps(blocks: Sequence[Block], clock: Clock) -> Values:
    """What a step took, of each block, in milliseconds."""
    times = [block.wall_ns if clock == "wall" else block.cpu_ns for block in blocks]
    return np.maximum(times, 1.0) / [1e6 * block.steps for block in blocks]


def _trimmed(values: Values) -> _Log:
    """Their mean without the extremes, and its variance (Yuen 1974)."""
    cut = int(_TRIMMED * len(values))
    ordered = np.sort(values)
    kept = ordered[cut : len(values) - cut]
    squares = float(((np.clip(ordered, kept[0], kept[-1]) - np.clip(ordered, kept[0], kept[-1]).mean()) ** 2).sum())
    freedom = len(kept) * (len(kept) - 1)
    return _Log(float(kept.mean()), squares / freedom if freedom else 0.0)


def _interval(logs: Sequence[_Log]) -> Interval:
    values = np.array([each.value for each in logs])
    expected = 2 * PROCESS_SD**2 + float(np.mean([each.variance for each in logs]))
    seen, freedom = len(values) - 1, PROCESS_FREEDOM + len(values) - 1
    squares = float(((values - values.mean()) ** 2).sum())
    joined = (PROCESS_FREEDOM * expected + squares) / freedom
    # where pairs differ by more than was expected, they are believed: of processes that differ by 5% three in a hundred
    # equal ones were told apart otherwise
    variance = max(joined, squares / seen if seen else 0.0)
    tail = (1 - CONFIDENCE) / 2 / (MOST_PAIRS - FEWEST_PAIRS + 1)
    reach = student(tail, freedom) * math.sqrt(variance / len(values))
    centre = float(values.mean())
    return Interval(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))


def _outcome(typical: Interval, mean: Interval, tolerance: float) -> Outcome:
    both = (typical.outcome(tolerance), mean.outcome(tolerance))
    either: tuple[Outcome, ...] = ("slower", "faster")
    return next((each for each in either if each in both), both[0] if both[0] == both[1] else "undecided")


def _clock(pairs: Sequence[ProcessPair]) -> Clock:
    """The wall clock, but where it tells of others, and the processor's time tells of the steps."""
    sides = ([pair.a for pair in pairs], [pair.b for pair in pairs])
    waited = [_waited(side) for side in sides]
    if max(each or 0.0 for each in waited) <= WAITED:
        return "wall"
    return "processor" if min(_computed(side) for side in sides) >= BUSY else "wall"


def _waited(side: Sequence[Sequence[Block]]) -> float | None:
    counted = _counted(side)
    known = [block.waited_ns for block in counted if block.waited_ns is not None]
    return sum(known) / sum(block.wall_ns for block in counted) if len(known) == len(counted) else None


def _computed(side: Sequence[Sequence[Block]]) -> float:
    """The share of its time in which the thread of the steps computed, or could have."""
    counted = _counted(side)
    could = sum(block.busy_ns + (block.waited_ns or 0) for block in counted)
    return could / sum(block.wall_ns for block in counted)


def _counted(side: Sequence[Sequence[Block]]) -> list[Block]:
    return [block for blocks in side for block in blocks[_first(blocks) :]]


def _middle(values: Sequence[float]) -> float:
    return math.exp(float(np.log(values).mean()))
