"""Find lasting changes of the step time in a series of runs: a piecewise constant fit with a penalty per piece.

Source: asv (airspeed velocity, ``step_detect.py``). A single outlier run is not a lasting change.
"""

from __future__ import annotations

import math
from bisect import insort
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.analysis.comparison.difference import PROCESS_SD
from perfhooks.core.statistics import OF_NORMAL

if TYPE_CHECKING:
    from collections.abc import Sequence

SHORTEST: Final = 2
"""Minimum runs before and after a change: a single outlier run is no change."""
PRICE: Final = (4.0, 1.5)
"""Penalty ``a + b * log(runs)`` of a change, in standard deviations. With this penalty, at most 1% of simulated series
of equal runs have a change.
"""


def noise(values: Sequence[float]) -> float:
    changes = np.abs(np.diff(values))
    return max(float(np.median(changes)) / (OF_NORMAL * math.sqrt(2)), PROCESS_SD) if len(changes) else PROCESS_SD


def change_points(values: Sequence[float]) -> list[int]:
    """Return the indices at which the step time changes. ``values`` are logarithms of step times."""
    price = noise(values) * (PRICE[0] + PRICE[1] * math.log(max(len(values), 1)))
    return fit(values, price)


def fit(values: Sequence[float], price: float) -> list[int]:
    """Fit a piecewise constant function. Return the first index of each piece except the first piece.

    The pieces minimize the sum of absolute deviations from the medians of the pieces, plus ``price`` per piece.
    """
    count = len(values)
    best = [0.0] + [math.inf] * count
    begins = [0] * (count + 1)
    for first in range(count):
        if math.isinf(best[first]):
            continue
        for last, deviation in _sum_deviations(values, first):
            total = best[first] + deviation + price
            if last - first >= min(SHORTEST, count) and total < best[last]:
                best[last], begins[last] = total, first
    indices, index = [], begins[count]
    while index:
        indices.append(index)
        index = begins[index]
    return indices[::-1]


def _sum_deviations(values: Sequence[float], first: int) -> list[tuple[int, float]]:
    ordered: list[float] = []
    sums = []
    for last in range(first, len(values)):
        insort(ordered, values[last])
        half = len(ordered) // 2
        sums.append((last + 1, sum(ordered[-half:]) - sum(ordered[:half]) if half else 0.0))
    return sums
