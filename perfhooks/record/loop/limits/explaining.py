"""A second, short window with stacks and shapes, which explains the first window if the user set no schedule.

Times come from the first window, which records operators only. Stacks make a step several times as long, so the second
window has its own limit. The second window is skipped if one step with stacks exceeds `EXPLAINING_S`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from perfhooks.core.guard import logger
from perfhooks.record.loop import stack_support
from perfhooks.record.loop.limits.budget import EXPLAINING_S, Limits
from perfhooks.record.watch.loops import LoopRequest
from perfhooks.run.capture import EXPLAINS

if TYPE_CHECKING:
    from perfhooks.record.loop.window import Window
    from perfhooks.record.watch.loops import WatchedLoop

RECORDED: Final = {"with_stack": True, "record_shapes": True}
LEFT_OUT: Final = (
    "no second window with stacks and shapes: recording one step would exceed %s; set with_stack and "
    "record_shapes to record stacks and shapes anyway"
)

_BUSY: Final = (
    "other threads of the training compute, and recording their stacks would slow them down; set with_stack and "
    "record_shapes to record stacks and shapes anyway"
)
_PROFILED: Final = "a profiler of the program, such as cProfile, is active, and torch's recorder of stacks would end it"


class SecondWindow:
    def __init__(self, loop: WatchedLoop, *, is_wanted: bool) -> None:
        self._loop = loop
        self._is_wanted = is_wanted
        self._operators = 0.0

    def follow(self, steps: int, operators: float, *, has_busy_threads: bool) -> None:
        """Request the second window. ``operators`` is the total number of operators in the first window."""
        if self._is_wanted:
            self._is_wanted = False
            danger = _BUSY if has_busy_threads else _PROFILED if sys.getprofile() else stack_support.danger()
            if danger is not None:
                logger.info("no second window with stacks and shapes: %s", danger)
                return
            self._operators = operators / max(steps, 1)
            self._loop.ask(LoopRequest(EXPLAINS, 1, options=RECORDED))

    def leave_out(self) -> None:
        self._is_wanted = False

    def steps_that_fit(self, window: Window) -> int:
        window.count_calls()
        return min(int(window.budget.steps_that_fit(self._operators)), 1)


def limits(of_size: Limits) -> Limits:
    name = " or ".join(filter(None, [f"the budget of {EXPLAINING_S:g} s", of_size.name]))
    return of_size._replace(training_s=EXPLAINING_S, name=name)
