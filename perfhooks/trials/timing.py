"""Two calls timed in turn, A B B A, by torch's own clock, and what can be said of them."""

from __future__ import annotations

import functools
import math
import statistics as medians
from dataclasses import dataclass
from timeit import Timer
from typing import TYPE_CHECKING, Any, Final

from torch.utils.benchmark import timer

from perfhooks.analysis.comparison import verdict
from perfhooks.analysis.comparison.verdict import Outcome  # noqa: TC001 -- msgspec reads the annotation
from perfhooks.core.errors import OptionError
from perfhooks.core.statistics import LEAST_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.trials.ready import Ready

    Clock = Callable[[], float]

BLOCK_S: Final = 1e-3
"""A block takes this long or more: a clock costs below a ten-thousandth of it."""
TOLERANCE: Final = 0.05
"""A difference that is none. An operator is a part of a step: 5% of one that takes a fifth of it is 1% of the step, and
that is what a step varies by anyway."""
PAIRS: Final = LEAST_STEPS
"""Blocks of each side at least: fewer say nothing."""
MOST_PAIRS: Final = 160
SECONDS: Final = 0.8
"""What is not decided after this stays so: ten operators with five variants are to take a minute."""
LONGEST_S: Final = 20.0
"""Calls of which not even the least number of blocks fits in here are timed less often, and nothing is decided; unless
less is allowed."""
_TICK: Final = 1e-9
"""Seconds; no block takes less, whatever a clock says that has not moved on."""
_MOST: Final = 1 << 30
"""Calls in a block: no call takes less than a picosecond."""
UNBOUNDED: Final = 1e9
"""An end of an interval of which nothing is known."""
PIECE: Final = 256
"""Calls that change their inputs begin anew after so many: what is multiplied by 0.9 a thousand times is no longer a
number that a processor multiplies at full speed."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What B takes beside A."""

    outcome: Outcome
    ratio: float
    """B's time over A's, the median of pairs."""
    low: float
    high: float
    """The interval of the ratio, 99%; `UNBOUNDED` where there were too few blocks."""
    a: tuple[float, ...]
    """Seconds a call, of each block."""
    b: tuple[float, ...]

    @property
    def times(self) -> float:
        """How many times as fast B is."""
        return 1 / self.ratio

    @property
    def columns(self) -> dict[str, Any]:
        """Return the cells of a table: the speedup of B, its interval if known, and the verdict."""
        is_known = self.high < UNBOUNDED
        return {
            "times": self.times,
            "low": 1 / self.high if is_known else None,
            "high": 1 / self.low if is_known else None,
            "verdict": self.outcome,
        }


class Blocks:
    """One call, timed in blocks by ``timeit``.

    Args:
        call: What to time.
        clock: Tells seconds; None is the one of ``torch.utils.benchmark``, which waits for devices.
    """

    def __init__(self, call: Ready, clock: Clock | None = None) -> None:
        self._call = call
        self._saved = [tensor.clone() for tensor in call.written]
        operate = functools.partial(call.operator, *call.arguments, **call.keywords)
        self._timer = Timer(operate, self.refresh, timer=clock or timer)
        self.number = 1
        self._settle()

    def refresh(self) -> None:
        """Give the call its inputs back as they were."""
        for tensor, saved in zip(self._call.written, self._saved, strict=True):
            tensor.copy_(saved)

    def _settle(self) -> None:
        """Find out how many calls make a block."""
        self._seconds(1)  # the first one is slow for reasons of its own
        while (taken := self._seconds(self.number)) < BLOCK_S:
            self.number = max(self.number * 2, math.ceil(self.number * BLOCK_S * 1.2 / taken) // 2)
            if self.number > _MOST:
                raise OptionError("clock must move on while calls run: by this one, a billion of them take no time")

    def seconds(self) -> float:
        """What one call takes, by one block."""
        return self._seconds(self.number) / self.number

    def _seconds(self, number: int) -> float:
        piece = PIECE if self._call.written else number
        pieces = [min(piece, number - done) for done in range(0, number, piece)]
        with self._call.running():
            return max(sum(map(self._timer.timeit, pieces)), _TICK)


def in_turn(
    a: Blocks, b: Blocks, *, seconds: float = SECONDS, longest: float = LONGEST_S, tolerance: float = TOLERANCE
) -> Timing:
    """Time two calls in turn, until it can be said which is faster.

    Args:
        a: What things are held against.
        b: What is held against it.
        seconds: How long to go on where it cannot be said.
        longest: How long to go on at all.
        tolerance: What share of difference is none.
    """
    first: list[float] = []
    second: list[float] = []
    spent, asked = 0.0, PAIRS
    while len(first) < MOST_PAIRS and spent <= (longest if len(first) < PAIRS else seconds):
        spent += _round(a, b, first, second)
        if len(first) >= asked:
            if _told(first, second, tolerance).outcome != "undecided":
                break
            asked *= 2
    return _told(first, second, tolerance)


def _round(a: Blocks, b: Blocks, first: list[float], second: list[float]) -> float:
    """A B B A: what drifts evenly disturbs both alike. How long that took."""
    before, after = a.seconds(), b.seconds()
    later, last = b.seconds(), a.seconds()
    first += before, last
    second += after, later
    return (before + last) * a.number + (after + later) * b.number


def _told(a: Sequence[float], b: Sequence[float], tolerance: float) -> Timing:
    """What can be said of times that were taken in turn; nothing where there are too few."""
    if len(a) < PAIRS:
        ratio = medians.median(after / before for before, after in zip(a, b, strict=True))
        return Timing(outcome="undecided", ratio=ratio, low=1 / UNBOUNDED, high=UNBOUNDED, a=tuple(a), b=tuple(b))
    told = verdict.in_turn(a, b, tolerance=tolerance)
    return Timing(outcome=told.outcome, ratio=told.ratio, low=told.low, high=told.high, a=tuple(a), b=tuple(b))
