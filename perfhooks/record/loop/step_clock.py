from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from perfhooks.run.timeline import Timeline

NEVER: Final = sys.maxsize


def _ignore(*_: object) -> None:
    pass


class StepClock:
    __slots__ = ("arrive", "ask", "due", "end_step", "is_recording", "passed_back", "set_aside", "step")

    def __init__(self) -> None:
        self.step = 0
        self.due = 0
        """Number of the next step at whose start perfhooks has work. With the initial 0, the first call of ``step()``
        detects a profiler that was not started.
        """
        self.is_recording = False
        self._set_functions(*(_ignore,) * 5)

    def begin(self, timeline: Timeline, counting: Callable[[Callable[[int], None]], Callable[[int], None]]) -> None:
        keeping = (timeline.data_arrived, timeline.data_asked, timeline.set_aside, timeline.passed_back)
        self._set_functions(counting(timeline.end_step), *keeping)

    def stop(self) -> None:
        self.due = NEVER
        self._set_functions(*(_ignore,) * 5)

    def _set_functions(
        self,
        end_step: Callable[[int], None],
        arrive: Callable[[int], None],
        ask: Callable[[int], None],
        set_aside: Callable[..., None],
        passed_back: Callable[[Iterable[int]], None],
    ) -> None:
        self.end_step = end_step
        self.arrive = arrive
        self.ask = ask
        self.set_aside = set_aside
        """Function to report a validation or a checkpoint: its begin, end, part and calling line."""
        self.passed_back = passed_back

    def current(self) -> int:
        return self.step

    def wake(self) -> None:
        """Request work at the end of the current step, from another thread."""
        self.due = 0
