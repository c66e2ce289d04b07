"""How long the steps of a loop take, as they go by."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Final

from perfhooks.run.steps import FAR, FEWEST_FIRST, MOST_FIRST

if TYPE_CHECKING:
    from collections.abc import Sequence

LATELY: Final = 50
"""Steps whose median is the pace: more would follow a change of pace too late, fewer would jump."""
MORE_NS: Final = 50_000_000
"""A step is slow if it is far from the median, and by so much: of shorter steps, the scheduler of the system makes some
three times as long."""


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

    def add(self, walls: Sequence[int]) -> None:
        """Take the wall times of steps that have ended, in nanoseconds."""
        first = max(0, FEWEST_FIRST - self._passed)
        self._passed += len(walls)
        self._walls.extend(walls[first:][-LATELY:])
        if self._passed >= MOST_FIRST:
            self.median_ns = median(self._walls)
            self.limit_ns = FAR * self.median_ns + MORE_NS
