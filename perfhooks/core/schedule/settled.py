"""The schedule of who gave none: one window, once the pace of the steps has settled."""

from __future__ import annotations

import math
from statistics import median, median_low
from typing import TYPE_CHECKING, Final

from perfhooks.core.schedule.phases import Planned
from perfhooks.core.schedule.unplanned import WHEN_SETTLED, OnRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

_S: Final = 1e9
"""Nanoseconds."""

LONGEST_WAIT_S: Final = 20.0
"""A window begins after so long, however the pace is: a person who waits for a page waits no longer."""
FEWEST_STEPS: Final = 3
SHORTEST_S: Final = 0.3
"""Fewer and shorter steps than these say what one of them happened to do, and not what a step takes."""
MOST_STEPS: Final = 100
ENOUGH_OPERATORS: Final = 5_000
"""Operators after which a recording needs no further steps. They take the training 0.03 s and 13 MB of memory."""

_LOOKS: Final = (10, 15, 22, 33, 50)
"""Steps after which the pace is looked at. Ten show what the first ones paid for, as the workers of a loader or code
that is compiled; of 50 whose pace has not settled, the next 50 are not going to be more even."""
MOST_LOOKED_AT: Final = 50
_OF_STEPS: Final = 0.4
"""Last steps that are compared with as many before them: the first fifth of all is in neither."""
_EVEN: Final = 0.1
"""Two medians that differ by no more are the same pace: those of four steps of an even training do so by chance."""
_WARMUP: Final = 2
_WARMUP_S: Final = 10.0
"""Longer warm-up than this tells nothing: the recorder's start takes a second at most, and is over before a step."""
_ROUND: Final = (3, 10, 30, 100)
"""Lengths of windows on several ranks, whose clocks never say quite the same."""


class WhenSettled(OnRequest):
    """One window, which begins when the pace has settled, or after `LONGEST_WAIT_S` or 50 steps, whichever is first.

    ::

        step    0 1 2 3 4 5 6 7 8 9                            a look after 10, 15, 22, 33 steps:
                    [before][ last]  warm-up, window           the pace has settled where the medians of both are even

    It lasts `FEWEST_STEPS` and `SHORTEST_S` at least, `MOST_STEPS` at most, unless its budget is spent earlier.
    Recording makes steps longer, stacks ten times. So one rank alone ends the window as soon as `is_enough`.

    Several ranks must record the same steps, and cannot ask each other. They look at each of the first ten steps, and
    begin after these, or when `LONGEST_WAIT_S` have gone by since the first one ended, which their collectives make the
    same moment for all.
    """

    def __init__(self) -> None:
        self._origin: int | None = None
        """The step that was current at the start."""
        self._since = 0
        """From when on it has been waited, in nanoseconds."""
        self._look_at = 0
        """The next step at which there is something to decide."""

    def begin(self, step: int, now: int) -> None:
        """The loop begins with a step, or goes on with it, as a training that is resumed from before.

        Args:
            step: The step that begins.
            now: The clock's reading, in nanoseconds.
        """
        if self._origin is None or step < self._origin:
            self._origin, self._since, self._look_at = step, now, step + 1

    def next_change(self, step: int) -> int:
        """The next step at which its window may begin."""
        return max(self._look_at, step + 1)

    def decided(self, step: int, now: int, walls: Sequence[int], *, together: bool) -> Planned | None:
        """Its window; None as long as it does not begin with this step.

        Args:
            step: The step that begins.
            now: The clock's reading, in nanoseconds.
            walls: What the steps before it took, in nanoseconds; the last `MOST_LOOKED_AT` are enough.
            together: Whether other ranks must come to the same.
        """
        if step < self._look_at:
            return None
        ended = step - (self._origin or 0)
        if together and ended == 1:
            self._since = now
        # of a loop that was watched for longer, no more may be known
        compared = max(1, int(_OF_STEPS * min(ended, len(walls))))
        before, last = walls[-2 * compared : -compared], walls[-compared:]
        if not before:
            self._look_at = step + 1
            return None
        pace, left_s = max(median(last), 1), LONGEST_WAIT_S - (now - self._since) / _S
        is_settled = ended >= _LOOKS[0] and (together or _is_even(median(before), pace))
        if is_settled or ended >= _LOOKS[-1] or left_s <= 0:
            # of two steps the shorter one is usual: an evaluation before the first update is common
            usual = pace if is_settled else max(median_low([*before, *last]), 1)
            return _window(step, usual, together=together)
        ahead = 1 if together else next(look for look in _LOOKS if look > ended) - ended
        self._look_at = step + min(ahead, max(1, math.ceil(left_s * _S / pace)))
        return None

    def __str__(self) -> str:
        """As a user writes it, and what it means."""
        return (
            f"{WHEN_SETTLED}\none window, once the pace has settled or after {LONGEST_WAIT_S:g} s: "
            f"{FEWEST_STEPS} steps and {SHORTEST_S:g} s at least, "
            f"{MOST_STEPS} steps or {ENOUGH_OPERATORS} operators at most"
        )


def _is_even(before: float, last: float) -> bool:
    return abs(before - last) <= _EVEN * max(before, last)


def is_enough(walls: Sequence[int], operators: float) -> bool:
    """Return whether a window of one rank needs no further steps.

    Args:
        walls: Times of its steps so far, in nanoseconds.
        operators: Operators in them.
    """
    if len(walls) < FEWEST_STEPS:
        return False
    return operators >= ENOUGH_OPERATORS or len(walls) >= _active(max(median(walls), 1))


def _active(pace: float) -> int:
    return min(max(FEWEST_STEPS, math.ceil(SHORTEST_S * _S / pace)), MOST_STEPS)


def _window(step: int, pace: float, *, together: bool) -> Planned:
    active = _active(pace)
    if together:
        active = next(steps for steps in _ROUND if steps >= active)
    begin = step + min(_WARMUP, int(_WARMUP_S * _S / pace))
    return Planned(step, begin, begin + active - 1)
