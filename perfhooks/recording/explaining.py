"""A second, short window with stacks and shapes, where nobody said what to record: it explains the first one.

::

    step    12 13 14   | 15          | 16       | 17         18
            first      | its calls   | warms up | explained
            window     | are counted |          |

Times come from the first window, which records nothing but operators; lines, modules and shapes from the second. Stacks
make a step several times as long, and what they leave takes the end of a window long, by the number of Python's calls;
so these are counted before, in one step, and where it would cost too much there is no second window.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from perfhooks import words
from perfhooks.guard import logger
from perfhooks.run.capture import EXPLAINS
from perfhooks.watching.loops import Asked

if TYPE_CHECKING:
    from perfhooks.watching.loops import WatchedLoop

RECORDED: Final = {"with_stack": True, "record_shapes": True}

BUDGET_S: Final = 0.02 * 60
"""Seconds of the training: 2% of its first minute."""
_SURE: Final = 0.6
"""Of the budget: estimates were right within a factor of 1.5."""
_TIMES_BYTES: Final = 6
"""As much of the end of a window as the events of the first one took with neither stacks nor shapes: 4 to 5 times for
torch to find the stack of each, and what recording them adds to the step."""
_CALL_BYTES: Final = 300
"""Of the trace, for a call of Python's."""
_CALL_S: Final = 1e-6
"""For a call of Python's to be recorded: 0.5 us were measured."""
_LEAST_S_A_BYTE: Final = 5e-9
"""At the end of a window: 12 to 50 ns were measured."""
_LEFT_OUT: Final = (
    "no second window with stacks and shapes: it would take about %s of the training; the options with_stack and "
    "record_shapes record them whatever it takes"
)


class _CallCount:
    """Counts Python's calls in the thread that begins; of more than ``most`` it hears no more.

    Args:
        most: Calls.
    """

    def __init__(self, most: float) -> None:
        self._most = 2 * most
        self._heard = 0

    def begin(self) -> bool:
        """Count from here on; whether nobody else listens."""
        if sys.getprofile() is not None:
            return False
        sys.setprofile(self._hear)
        return True

    def end(self) -> None:
        """Count no more."""
        if sys.getprofile() == self._hear:
            sys.setprofile(None)

    @property
    def count(self) -> float:
        """Calls that were heard, each with its return."""
        return self._heard / 2

    def _hear(self, _frame: Any, _event: str, _argument: Any) -> None:
        self._heard += 1
        if self._heard > self._most:
            sys.setprofile(None)


class SecondWindow:
    """The second window of a loop: asked for when it is known what it costs.

    Args:
        loop: Hears of it.
        is_wanted: Whether there is to be one.
    """

    def __init__(self, loop: WatchedLoop, *, is_wanted: bool) -> None:
        self._loop = loop
        self._is_wanted = is_wanted
        self._s_a_byte = self._bytes = 0.0
        """What the end of the first window took for each byte of its trace, and the bytes of a step of it."""
        self._calls: _CallCount | None = None

    @property
    def is_due(self) -> bool:
        """Whether there is something to do at the end of the step."""
        return self._is_wanted and self._bytes > 0

    def follow(self, steps: int, size: int, waited_s: float) -> None:
        """The first window has been recorded.

        Args:
            steps: How many it has.
            size: Bytes of its trace.
            waited_s: What its end took of the loop, in seconds.
        """
        self._bytes = size / max(steps, 1)
        self._s_a_byte = max(waited_s / max(size, 1), _LEAST_S_A_BYTE)

    def turn(self) -> None:
        """A step begins, between windows: count its calls, or ask for the window."""
        calls = self._calls
        if calls is None:
            self._calls = _CallCount(BUDGET_S / self._for_call_s)
            self._is_wanted = self._calls.begin()
            return
        self.rest()
        self._is_wanted = False
        of_step_s = self._s_a_byte * _TIMES_BYTES * self._bytes + self._for_call_s * calls.count
        steps = next((steps for steps in (2, 1) if steps * of_step_s <= _SURE * BUDGET_S), 0)
        if steps:
            self._loop.inbox.append(Asked(EXPLAINS, steps, options=RECORDED))
            return
        logger.info(_LEFT_OUT, words.ms(1e3 * of_step_s))

    @property
    def _for_call_s(self) -> float:
        return _CALL_S + _CALL_BYTES * self._s_a_byte

    def rest(self) -> None:
        """Count no more for now: the loop is left."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.end()
