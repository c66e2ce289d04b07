"""How long the steps of a loop take, as they go by."""

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
"""Steps whose median is the pace: more would follow a change of pace too late, fewer would jump."""
MORE_NS: Final = 50_000_000
"""A step is slow if it is far from the median, and by so much: of shorter steps, the scheduler of the system makes some
three times as long."""
_VARIES: Final = 6.0
"""A step is slow, too, if it is so many times further from the median than one step in ten is: as of noise, one in a
billion is. Steps of 5 s that vary by 4% are slow from 6.6 s on."""
_LEAST_MORE: Final = 1.3
"""And if it takes so many medians: what is shorter is no reason to look, however even steps are."""
_DOUBT: Final = 0.25
"""Of the way from the median to where a step is slow, it is looked at from here on: later, half of it would be over."""
_ENOUGH: Final = 20
"""Of fewer steps, nobody can say by what they vary."""


class Pace:
    """The running median of the steps of a loop, and the time beyond which one is slow.

    Which steps count is what `perfhooks.run.steps` says, as far as that can be told while they go by: the fewest that
    may be first ones are left out. By the time that there are more of those, `LATELY` has no room for them.
    """

    def __init__(self) -> None:
        self._walls: deque[int] = deque(maxlen=LATELY)
        self._passed = 0
        self.median_ns: float | None = None
        """None until `MOST_FIRST` steps have ended: of fewer, all may be first ones."""
        self.limit_ns: float | None = None
        """A step that takes longer is slow."""
        self.doubt_ns: float | None = None
        """A step that takes longer may become slow: from here on it is looked at, for what it does before it is."""

    def add(self, walls: Sequence[int]) -> None:
        """Take the wall times of steps that have ended, in nanoseconds."""
        first = max(0, FEWEST_FIRST - self._passed)
        self._passed += len(walls)
        self._walls.extend(walls[first:][-LATELY:])
        if self._passed >= MOST_FIRST:
            self.median_ns = median(self._walls)
            self.limit_ns = min(OUTLIER * self.median_ns, self._far_from_others(self.median_ns)) + MORE_NS
            self.doubt_ns = self.median_ns + _DOUBT * (self.limit_ns - self.median_ns)

    def _far_from_others(self, median_ns: float) -> float:
        if len(self._walls) < _ENOUGH:
            return math.inf
        one_in_ten = sorted(self._walls)[len(self._walls) * 9 // 10]
        return max(_LEAST_MORE * median_ns, median_ns + _VARIES * (one_in_ten - median_ns))
