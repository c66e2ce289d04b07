"""Two calls timed in turn, A B B A, by torch's own timer, and what can be said of them."""

from __future__ import annotations

import math
import statistics as medians
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.benchmark import Timer, timer
from torch.utils.benchmark.utils import common

from perfhooks.comparing import verdict
from perfhooks.comparing.verdict import Outcome  # noqa: TC001 -- msgspec reads the annotation
from perfhooks.statistics import LEAST_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.trying.ready import Ready

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
"""After so long, what is not decided stays so: ten operators with five variants are to take a minute."""
LONGEST_S: Final = 20.0
"""Calls of which not even the least number of blocks fits in here are timed less often, and nothing is decided; unless
less is allowed."""
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


class Blocks:
    """One call, timed in blocks.

    Args:
        call: What to time.
        clock: Tells seconds; None is the one of ``torch.utils.benchmark``, which waits for devices.
    """

    def __init__(self, call: Ready, clock: Clock | None = None) -> None:
        self._call = call
        self._saved = [each.clone() for each in call.written]
        self._threads = call.threads or torch.get_num_threads()
        given: dict[str, Any] = {
            "operator": call.operator,
            "arguments": call.arguments,
            "keywords": call.keywords,
            "refresh": self.refresh,
        }
        self._timer = Timer(
            "operator(*arguments, **keywords)" if call.keywords else "operator(*arguments)",
            "refresh()" if call.written else "pass",
            globals=given,
            label=call.name,
            num_threads=self._threads,
            timer=clock or timer,
        )
        self.number = 1
        self.task = self._timer._task_spec  # noqa: SLF001 -- what Measurement wants, for Compare
        self._settle()

    def refresh(self) -> None:
        """Give the call its inputs back as they were."""
        for each, saved in zip(self._call.written, self._saved, strict=True):
            each.copy_(saved)

    def _settle(self) -> None:
        """Find out how many calls make a block."""
        self._seconds(1)  # the first one is slow for reasons of its own
        while (taken := self._seconds(self.number)) < BLOCK_S:
            self.number = max(self.number * 2, math.ceil(self.number * BLOCK_S * 1.2 / max(taken, 1e-9)) // 2)

    def seconds(self) -> float:
        """What one call takes, by one block."""
        return self._seconds(self.number) / self.number

    def _seconds(self, number: int) -> float:
        piece = PIECE if self._call.written else number
        pieces = [min(piece, number - done) for done in range(0, number, piece)]
        # Timer.timeit would run two calls before every block, which triples what slow ones cost
        with self._call.running(), common.set_torch_threads(self._threads):
            return sum(self._timer._timeit(each) for each in pieces)  # noqa: SLF001


def alone(call: Ready, *, blocks: int = 5, clock: Clock | None = None) -> float:
    """The median seconds of one call by itself."""
    timed = Blocks(call, clock)
    return medians.median(timed.seconds() for _ in range(blocks))


def beside(
    a: Ready,
    b: Ready,
    *,
    clock: Clock | None = None,
    seconds: float = SECONDS,
    longest: float = LONGEST_S,
    tolerance: float = TOLERANCE,
) -> Timing:
    """Time two calls in turn, until it can be said which is faster.

    Args:
        a: What things are held against.
        b: What is held against it.
        clock: See `Blocks`.
        seconds: How long to go on where it cannot be said.
        longest: How long to go on at all.
        tolerance: What share of difference is none.
    """
    return against(Blocks(a, clock), Blocks(b, clock), seconds=seconds, longest=longest, tolerance=tolerance)


def against(
    a: Blocks, b: Blocks, *, seconds: float = SECONDS, longest: float = LONGEST_S, tolerance: float = TOLERANCE
) -> Timing:
    """The same of calls that are ready to be timed."""
    first: list[float] = []
    second: list[float] = []
    spent, wanted = 0.0, PAIRS
    while len(first) < MOST_PAIRS:
        spent += _round(a, b, first, second)
        if spent > longest and len(first) < PAIRS:
            return _unknown(first, second)
        if len(first) >= wanted:
            found = verdict.in_turn(first, second, tolerance=tolerance)
            if found.outcome != "undecided" or spent > seconds:
                break
            wanted *= 2
        elif spent > seconds and len(first) >= PAIRS:
            break
    found = verdict.in_turn(first, second, tolerance=tolerance)
    return Timing(
        outcome=found.outcome, ratio=found.ratio, low=found.low, high=found.high, a=tuple(first), b=tuple(second)
    )


def _round(a: Blocks, b: Blocks, first: list[float], second: list[float]) -> float:
    """A B B A: what drifts evenly disturbs both alike. How long that took."""
    before, after = a.seconds(), b.seconds()
    later, last = b.seconds(), a.seconds()
    first += before, last
    second += after, later
    return (before + last) * a.number + (after + later) * b.number


def _unknown(first: Sequence[float], second: Sequence[float]) -> Timing:
    ratio = medians.median(b / a for a, b in zip(first, second, strict=True))
    return Timing(outcome="undecided", ratio=ratio, low=1 / UNBOUNDED, high=UNBOUNDED, a=tuple(first), b=tuple(second))
