"""The default schedule: one window, when the step times have settled."""

from __future__ import annotations

import math
from statistics import median, median_low
from typing import TYPE_CHECKING, Final

from perfhooks.core.schedule.phases import Planned
from perfhooks.core.schedule.unplanned import WHEN_SETTLED, OnRequest

if TYPE_CHECKING:
    from collections.abc import Sequence


LONGEST_WAIT_S: Final = 20.0
"""Maximum time before the window in s, because a user waits for the report."""
FEWEST_STEPS: Final = 3
"""Minimum steps of a window. Windows after a signal or a slow step have this length."""
SHORTEST_S: Final = 0.3
"""Minimum time of a window in s. A shorter window may contain only unusual steps."""
MOST_STEPS: Final = 100
ENOUGH_OPERATORS: Final = 5_000
"""Number of recorded operators after which a window ends. Recording them costs the training 0.03 s and 13 MB of memory.
"""

_LOOKS: Final = (10, 15, 22, 33, 50)
"""Numbers of steps after which the step times are compared. The first ten steps include the start-up costs."""
MOST_LOOKED_AT: Final = 50
_EVEN: Final = 0.1
"""Maximum relative difference of the medians of two groups of settled steps. Noise alone changes medians of four steps
by as much.
"""
_WARMUP_S: Final = 10.0
"""Maximum time of the warm-up steps in s. Longer steps need none: the recorder starts within a tenth of a step."""
_ROUND: Final = (3, 10, 30, 100)
"""Possible lengths of windows with several ranks, in steps. Ranks measure slightly different times, and must choose
the same length.
"""


class WhenSettled(OnRequest):
    """One window, which begins when step times have settled, after `LONGEST_WAIT_S` or after 50 steps.

    ::

        step    0 1 2 3 4 5 6 7 8 9                            compared after 10, 15, 22, 33 steps:
                    [before][ last]  warm-up, window           settled if the medians of both groups are close

    Recorded steps are slower, with stacks tenfold, so a single rank ends the window as soon as `is_enough`. All ranks
    must record the same steps, but do not communicate. Several ranks wait for ten steps, or until `LONGEST_WAIT_S`
    after the end of the first step, which ends at the same time on all ranks because of collectives.
    """

    def __init__(self) -> None:
        self._origin: int | None = None
        self._since = 0
        """Time in ns at which the wait for settled steps began."""
        self._look_at = 0

    def begin(self, step: int, now: int) -> None:
        """Start the wait at a time in ns. A lower step number restarts the wait, for example in a resumed training."""
        if self._origin is None or step < self._origin:
            self._origin, self._since, self._look_at = step, now, step + 1

    def next_change(self, step: int) -> int:
        return max(self._look_at, step + 1)

    def decided(
        self, step: int, now: int, walls: Sequence[int], *, together: bool, shortest_wait_s: float = 0.0
    ) -> Planned | None:
        """Return the window if it begins with ``step``, else None. All times are in nanoseconds.

        ``walls`` are the last `MOST_LOOKED_AT` step times or more. ``together``: all ranks must decide for the same
        step. The window begins after ``shortest_wait_s`` at the earliest.
        """
        if step < self._look_at:
            return None
        ended = step - (self._origin or 0)
        if together and ended == 1:
            self._since = now
        # two groups, without the first fifth; the caller may keep fewer times than steps
        compared = max(1, int(0.4 * min(ended, len(walls))))
        before, last = walls[-2 * compared : -compared], walls[-compared:]
        if not before:
            self._look_at = step + 1
            return None
        waited_s = (now - self._since) / 1e9
        pace, remaining_s = max(median(last), 1), LONGEST_WAIT_S - waited_s
        if waited_s < shortest_wait_s:
            # the steps may become slower, so compare again at the latest when the number of steps has doubled
            self._look_at = step + max(1, min(ended, math.ceil((shortest_wait_s - waited_s) * 1e9 / pace)))
            return None
        is_settled = ended >= _LOOKS[0] and (together or _is_even(median(before), pace))
        if is_settled or ended >= _LOOKS[-1] or remaining_s <= 0:
            usual = pace if is_settled else max(median_low([*before, *last]), 1)
            return _window(step, usual, together=together)
        next_look = 1 if together else next(look for look in _LOOKS if look > ended) - ended
        self._look_at = step + min(next_look, max(1, math.ceil(remaining_s * 1e9 / pace)))
        return None

    def __str__(self) -> str:
        return (
            f"{WHEN_SETTLED}\none window, which begins when step times have settled or after {LONGEST_WAIT_S:g} s, and "
            f"lasts at least {FEWEST_STEPS} steps and {SHORTEST_S:g} s, "
            f"at most {MOST_STEPS} steps or {ENOUGH_OPERATORS} operators"
        )


def _is_even(before: float, last: float) -> bool:
    return abs(before - last) <= _EVEN * max(before, last)


def is_enough(walls: Sequence[int], operators: float) -> bool:
    """Return whether a window of one rank needs no further steps."""
    if len(walls) < FEWEST_STEPS:
        return False
    return operators >= ENOUGH_OPERATORS or len(walls) >= _active(max(median(walls), 1))


def _active(pace: float) -> int:
    return min(max(FEWEST_STEPS, math.ceil(SHORTEST_S * 1e9 / pace)), MOST_STEPS)


def _window(step: int, pace: float, *, together: bool) -> Planned:
    active = _active(pace)
    if together:
        active = next(steps for steps in _ROUND if steps >= active)
    # torch's recorder needs at most one second to start
    begin = step + min(2, int(_WARMUP_S * 1e9 / pace))
    return Planned(step, begin, begin + active - 1)
