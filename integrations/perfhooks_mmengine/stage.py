"""One loop that is profiled: its profiler, and the labels that come and go with the profiler's windows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfhooks.guard import OnError, guard
from perfhooks_mmengine.regions import Regions

if TYPE_CHECKING:
    from perfhooks import Profiler


class Stage:
    """The profiler of one loop.

    Args:
        name: The loop: train, validate or test.
        profiler: Takes its steps.
        on_error: What a failure does.
    """

    def __init__(self, name: str, profiler: Profiler, on_error: OnError) -> None:
        self.profiler = profiler
        self.regions = Regions(profiler, name)
        """The labels of its parts."""
        self.data_arrived = profiler.data_arrived
        """Says that the current step has its batch."""
        self._step = profiler.step
        self._on_error = on_error

    def start(self, runner: Any, step: int | None = None) -> None:
        """The loop begins.

        Args:
            runner: Whose loop.
            step: The number of the step that begins; None goes on counting.
        """
        with guard("starting to profile", self._on_error):
            self.profiler.start(step=step, out=Path(runner.log_dir, "perf"), run=runner.timestamp)
            if self.profiler.in_window:
                self.regions.put(runner)

    def step(self, runner: Any) -> None:
        """A step ends, and the next one begins with its wait for data."""
        self._step()
        if self.profiler.in_window is not self.regions.on:
            self._follow(runner)

    def end(self, cause: str | None = None, *, for_good: bool = True) -> None:
        """The loop ends.

        Args:
            cause: What interrupted it, if anything did.
            for_good: Whether it will not begin again.
        """
        with guard("ending the profile", self._on_error):
            self.regions.take_back()
        if for_good:
            self.profiler.stop(cause)
        else:
            self.profiler.pause(cause)

    def _follow(self, runner: Any) -> None:
        """A window has just been opened or closed."""
        with guard("labelling the parts of a step", self._on_error):
            if self.profiler.in_window:
                self.regions.put(runner)
                self.regions.wait_for_data()
            else:
                self.regions.take_back()
