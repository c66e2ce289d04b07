from __future__ import annotations

import functools
import math
import statistics as medians
from dataclasses import dataclass
from timeit import Timer
from typing import TYPE_CHECKING, Any, Final

from torch.utils.benchmark import timer

from perfhooks.analysis.comparison.difference import (
    Outcome,
    compare_paired,
)
from perfhooks.core.errors import OptionError
from perfhooks.core.statistics import LEAST_STEPS
from perfhooks.trials.loader_results import TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.trials.ready import PreparedCall

    Clock = Callable[[], float]

BLOCK_S: Final = 1e-3
"""Minimum length of a block in s, for which the overhead of the clock is below 0.01%."""
PAIRS: Final = LEAST_STEPS
MOST_PAIRS: Final = 160
SECONDS: Final = 0.8
"""Default time limit in s, with which ten operators with five variants take a minute."""
LONGEST_S: Final = 20.0
_MOST: Final = 1 << 30
"""Maximum calls per block. No call takes less than a picosecond."""
UNBOUNDED: Final = 1e9
"""Upper end of the interval if there are too few blocks."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    outcome: Outcome
    ratio: float
    """Time of B divided by time of A: the median of all pairs of blocks."""
    low: float
    high: float
    """Upper end of the 99% interval; `UNBOUNDED` for too few blocks."""
    a: tuple[float, ...]
    b: tuple[float, ...]

    @property
    def times(self) -> float:
        return 1 / self.ratio

    @property
    def columns(self) -> dict[str, Any]:
        is_known = self.high < UNBOUNDED
        return {
            "times": self.times,
            "low": 1 / self.high if is_known else None,
            "high": 1 / self.low if is_known else None,
            "verdict": self.outcome,
        }


class Blocks:
    """Times one call in blocks. The default clock is that of ``torch.utils.benchmark``, which waits for devices."""

    def __init__(self, call: PreparedCall, clock: Clock | None = None) -> None:
        self._call = call
        self._saved = [tensor.clone() for tensor in call.written]
        operate = functools.partial(call.operator, *call.arguments, **call.keywords)
        self._timer = Timer(operate, self.refresh, timer=clock or timer)
        self.number = 1
        self._calibrate()

    def refresh(self) -> None:
        for tensor, saved in zip(self._call.written, self._saved, strict=True):
            tensor.copy_(saved)

    def _calibrate(self) -> None:
        self._seconds(1)
        while (block_s := self._seconds(self.number)) < BLOCK_S:
            self.number = max(self.number * 2, math.ceil(self.number * BLOCK_S * 1.2 / block_s) // 2)
            if self.number > _MOST:
                raise OptionError("clock must advance while calls run: it measured no time for a billion calls")

    def seconds(self) -> float:
        """Run one block and return the seconds per call."""
        return self._seconds(self.number) / self.number

    def _seconds(self, number: int) -> float:
        # Inputs that each call multiplies in place become subnormal numbers, which slow down CPUs.
        calls_per_reset = 256 if self._call.written else number
        counts = [min(calls_per_reset, number - first) for first in range(0, number, calls_per_reset)]
        with self._call.running():
            # a coarse clock may not advance in a short block
            return max(sum(map(self._timer.timeit, counts)), 1e-9)


def time_interleaved(
    a: Blocks, b: Blocks, *, seconds: float = SECONDS, longest: float = LONGEST_S, tolerance: float = TOLERANCE
) -> Timing:
    """Time two calls in blocks (A B B A) until the comparison is decided, or for ``seconds``.

    If fewer than `PAIRS` rounds are complete, the limit is ``longest``.
    """
    times_a: list[float] = []
    times_b: list[float] = []
    elapsed_s, next_check = 0.0, PAIRS
    while len(times_a) < MOST_PAIRS and elapsed_s <= (longest if len(times_a) < PAIRS else seconds):
        elapsed_s += _round(a, b, times_a, times_b)
        if len(times_a) >= next_check:
            if _compare(times_a, times_b, tolerance).outcome != "undecided":
                break
            next_check *= 2
    return _compare(times_a, times_b, tolerance)


def _round(a: Blocks, b: Blocks, times_a: list[float], times_b: list[float]) -> float:
    """Time each call twice and return the elapsed time. In the order A B B A, a drift affects both calls equally."""
    a_1, b_1 = a.seconds(), b.seconds()
    b_2, a_2 = b.seconds(), a.seconds()
    times_a += a_1, a_2
    times_b += b_1, b_2
    return (a_1 + a_2) * a.number + (b_1 + b_2) * b.number


def _compare(a: Sequence[float], b: Sequence[float], tolerance: float) -> Timing:
    if len(a) < PAIRS:
        ratio = medians.median(after / before for before, after in zip(a, b, strict=True))
        return Timing(outcome="undecided", ratio=ratio, low=1 / UNBOUNDED, high=UNBOUNDED, a=tuple(a), b=tuple(b))
    comparison = compare_paired(a, b, tolerance=tolerance)
    return Timing(
        outcome=comparison.outcome,
        ratio=comparison.ratio,
        low=comparison.low,
        high=comparison.high,
        a=tuple(a),
        b=tuple(b),
    )
