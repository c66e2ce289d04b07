from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Final

from perfhooks.core.statistics import OUTLIER
from perfhooks.run.steps import FEWEST_FIRST, MOST_FIRST

if TYPE_CHECKING:
    from collections.abc import Sequence

LATELY: Final = 50
"""Steps in the running median. More would follow changes too late, fewer would be noisy."""
MORE_NS: Final = 50_000_000
"""Minimum excess over the limit. Below it, OS scheduling alone can triple a step."""
_SPREADS: Final = 6.0
"""Multiple of the distance from the median to the 90th percentile. One in a billion steps exceeds it by noise."""
_MIN_MEDIANS: Final = 1.3
"""Minimum multiple of the median, for steps that hardly vary."""
_SAMPLED_FROM: Final = 0.25
"""Share of the distance from the median to the limit. Later sampling would miss half of the step."""
_MIN_STEPS: Final = 20
"""Steps before the 90th percentile is used."""


class Pace:
    def __init__(self) -> None:
        self._walls: deque[int] = deque(maxlen=LATELY)
        self._count = 0
        self.median_ns: float | None = None
        self.limit_ns: float | None = None
        self.doubt_ns: float | None = None
        """Sampling starts at this step time."""

    def add(self, walls: Sequence[int]) -> None:
        first = max(0, FEWEST_FIRST - self._count)
        self._count += len(walls)
        self._walls.extend(walls[first:][-LATELY:])
        if self._count >= MOST_FIRST:
            self.median_ns = median(self._walls)
            self.limit_ns = min(OUTLIER * self.median_ns, self._outlier_limit_ns(self.median_ns)) + MORE_NS
            self.doubt_ns = self.median_ns + _SAMPLED_FROM * (self.limit_ns - self.median_ns)

    def _outlier_limit_ns(self, median_ns: float) -> float:
        if len(self._walls) < _MIN_STEPS:
            return math.inf
        one_in_ten = sorted(self._walls)[len(self._walls) * 9 // 10]
        return max(_MIN_MEDIANS * median_ns, median_ns + _SPREADS * (one_in_ten - median_ns))
