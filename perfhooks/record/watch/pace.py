from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Final

from perfhooks.core.statistics import LEAST_STEPS, OUTLIER
from perfhooks.run.steps import FEWEST_FIRST, MOST_FIRST

if TYPE_CHECKING:
    from collections.abc import Sequence

MORE_NS: Final = 50_000_000
"""Minimum excess of a slow step over the median in ns. A smaller excess may come from OS scheduling alone, which can
triple a short step.
"""


class Pace:
    def __init__(self) -> None:
        self._walls: deque[int] = deque(maxlen=50)
        self._count = 0
        self.median_ns: float | None = None
        self.limit_ns: float | None = None
        self.doubt_ns: float | None = None
        """Step time in ns above which the running step is sampled."""

    def add(self, walls: Sequence[int]) -> None:
        first = max(0, FEWEST_FIRST - self._count)
        self._count += len(walls)
        self._walls.extend(walls[first:])
        if self._count >= MOST_FIRST:
            self.median_ns = median(self._walls)
            self.limit_ns = min(OUTLIER * self.median_ns, self._outlier_limit_ns(self.median_ns)) + MORE_NS
            self.doubt_ns = self.median_ns + 0.25 * (self.limit_ns - self.median_ns)

    def _outlier_limit_ns(self, median_ns: float) -> float:
        if len(self._walls) < LEAST_STEPS:
            return math.inf
        one_in_ten = sorted(self._walls)[len(self._walls) * 9 // 10]
        # By noise, one step in a billion exceeds six times this spread. The factor 1.3 is for nearly constant steps.
        return max(1.3 * median_ns, median_ns + 6.0 * (one_in_ten - median_ns))
