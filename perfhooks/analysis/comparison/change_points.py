"""Where a series of runs changes its level: a piecewise constant fit with a price for each piece.

Source: the way of asv (airspeed velocity, ``step_detect.py``): least absolute deviations, so that one run that was
disturbed bends no piece.
"""

from __future__ import annotations

import math
from bisect import insort
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.core.statistics import OF_NORMAL

if TYPE_CHECKING:
    from collections.abc import Sequence

SHORTEST: Final = 2
"""Runs of a piece: one run alone is no new level."""
LEAST_NOISE: Final = 0.01
"""What equal processes differ by at least, as a standard deviation of the logarithm."""
PRICE: Final = (4.0, 1.5)
"""Of a piece, in standard deviations: the first, and the second for each logarithm of the number of runs.

Of simulated series of 4 to 100 equal runs at most 1% then have a change. Of series of ten runs that differ by 2%, half
of which became slower by 10%, 97% have it where it is, give or take one run.
"""


def noise(values: Sequence[float]) -> float:
    """By how much one run differs from the next where the level stays, as a standard deviation; robust to changes."""
    apart = np.abs(np.diff(values))
    return max(float(np.median(apart)) / (OF_NORMAL * math.sqrt(2)), LEAST_NOISE) if len(apart) else LEAST_NOISE


def change_points(values: Sequence[float]) -> list[int]:
    """The places at which a new level begins.

    Args:
        values: Logarithms of step times, in the order of the runs.
    """
    price = noise(values) * (PRICE[0] + PRICE[1] * math.log(max(len(values), 1)))
    return fit(values, price)


def fit(values: Sequence[float], price: float) -> list[int]:
    """Where the pieces begin, but the first, of the fit whose deviations and prices sum to least.

    Args:
        values: Any.
        price: Of each piece.
    """
    count = len(values)
    best = [0.0] + [math.inf] * count
    begins = [0] * (count + 1)
    for first in range(count):
        if math.isinf(best[first]):
            continue
        for last, deviation in _deviations(values, first):
            total = best[first] + deviation + price
            if last - first >= min(SHORTEST, count) and total < best[last]:
                best[last], begins[last] = total, first
    places, place = [], begins[count]
    while place:
        places.append(place)
        place = begins[place]
    return places[::-1]


def _deviations(values: Sequence[float], first: int) -> list[tuple[int, float]]:
    """For each end of a piece the sum of its deviations from its median."""
    ordered: list[float] = []
    found = []
    for last in range(first, len(values)):
        insort(ordered, values[last])
        half = len(ordered) // 2
        found.append((last + 1, sum(ordered[-half:]) - sum(ordered[:half]) if half else 0.0))
    return found
