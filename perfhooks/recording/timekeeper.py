"""Writing the times of a loop's steps into its run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfhooks.guard import guard

if TYPE_CHECKING:
    from perfhooks.errors import OnError
    from perfhooks.recording.handover import Handover
    from perfhooks.watching.loops import WatchedLoop


class Timekeeper:
    """Takes the steps that have ended out of a loop's timeline, and has them written; a failure ends that for good.

    Args:
        loop: Whose steps.
        handover: Has them written.
        on_error: What a failure does.
    """

    def __init__(self, loop: WatchedLoop, handover: Handover, on_error: OnError) -> None:
        self._loop = loop
        self._handover = handover
        self._on_error = on_error
        self._has_failed = False

    def write(self) -> None:
        """Do it now; where writing has failed once, the steps are forgotten."""
        loop = self._loop
        with loop.timeline.taking:
            rows = loop.timeline.rows()
            if self._has_failed:
                return
            self._has_failed = True
            with guard("writing the timeline", self._on_error):
                self._handover.keep_time(rows, more=loop.wrote_steps)
                loop.wrote_steps = self._has_failed = False
