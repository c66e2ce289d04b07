"""What a loop touches at each of its steps, and nothing besides."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from perfhooks.run.timeline import Timeline

NEVER: Final = sys.maxsize


def _ignore(*_: object) -> None:
    """Takes the clock where nobody keeps the time."""


class StepClock:
    """The count of a loop's steps, and what takes the clock for each: slots, as a training reads them at every step."""

    __slots__ = ("arrive", "ask", "due", "end_step", "is_recording", "passed_back", "set_aside", "step")

    def __init__(self) -> None:
        self.step = 0
        """The number of the current step."""
        self.due = 0
        """The next step at whose beginning there is something to do; the first one, as long as nobody started."""
        self.is_recording = False
        """Whether labels are worth their while now."""
        self._listen(*(_ignore,) * 5)

    def begin(self, timeline: Timeline, counting: Callable[[Callable[[int], None]], Callable[[int], None]]) -> None:
        """Keep the time from now on.

        Args:
            timeline: Gets the clock readings.
            counting: Makes what ends a step do what else each end of a step is to do.
        """
        keeping = (timeline.data_arrived, timeline.data_asked, timeline.set_aside, timeline.passed_back)
        self._listen(counting(timeline.end_step), *keeping)

    def rest(self) -> None:
        """Count steps, and nothing else."""
        self.due = NEVER
        self._listen(*(_ignore,) * 5)

    def _listen(
        self,
        end_step: Callable[[int], None],
        arrive: Callable[[int], None],
        ask: Callable[[int], None],
        set_aside: Callable[..., None],
        passed_back: Callable[[Iterable[int]], None],
    ) -> None:
        self.end_step = end_step
        """Takes the clock at the end of a step."""
        self.arrive = arrive
        """Takes the clock when a step has its batch."""
        self.ask = ask
        """Takes the clock when a batch, or a pass over a loader, is asked for: what came before is no wait for data."""
        self.set_aside = set_aside
        """Takes when a validation or a checkpoint began and ended, which part it is, and the line that called it."""
        self.passed_back = passed_back
        """Takes when a backward pass began and when it ended."""

    def current(self) -> int:
        """The number of the current step, for another thread."""
        return self.step

    def wake(self) -> None:
        """Another thread has something for the loop: look when the step ends."""
        self.due = 0
