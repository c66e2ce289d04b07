"""How long the steps of a loop take, as they go by."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

LATELY: Final = 50
"""Steps whose median is the pace: more would follow a change of pace too late, fewer would jump."""
FIRST: Final = 10
"""Steps without which there is no pace: the first ones of a training start what is started once."""
TIMES: Final = 3.0
"""A step is slow beyond so many medians ..."""
MORE_NS: Final = 50_000_000
"""... and so many nanoseconds: of shorter steps, the scheduler of the system makes some three times as long."""


class Pace:
    """The running median of the steps of a loop, and the time beyond which one is slow."""

    def __init__(self) -> None:
        self._walls: deque[int] = deque(maxlen=LATELY)
        self._passed = 0
        self.median_ns: float | None = None
        """None until `FIRST` steps have ended."""
        self.limit_ns: float | None = None
        """A step that takes longer is slow."""

    def add(self, walls: Sequence[int]) -> None:
        """Take the wall times of steps that have ended, in nanoseconds."""
        warming_up = max(0, FIRST // 2 - self._passed)
        self._passed += len(walls)
        self._walls.extend(walls[warming_up:][-LATELY:])
        if self._passed >= FIRST:
            self.median_ns = median(self._walls)
            self.limit_ns = TIMES * self.median_ns + MORE_NS
