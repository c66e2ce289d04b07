"""The windows of one profiler: how each is made, and what becomes of it; when they are due is decided elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.guard import guard, logger
from perfhooks.recording.handover import Handover, place_of
from perfhooks.recording.like_torch.accepted import check_recording
from perfhooks.recording.like_torch.face import TorchFace
from perfhooks.recording.membership import Membership
from perfhooks.recording.requested import Requests
from perfhooks.recording.window import Window, recorder_busy
from perfhooks.run import remote
from perfhooks.run.timeline import Timeline
from perfhooks.schedule import Schedule
from perfhooks.watching.loops import WatchedLoop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perfhooks.options import Options
    from perfhooks.recording.handover import HandlerLike
    from perfhooks.recording.requested import RequestedWindow
    from perfhooks.run.folder import Run
    from perfhooks.schedule import CallableSchedule, OnRequest, Phases

STOPPED: Final = "stopped before its last step"


class Wanted(NamedTuple):
    """What the user of a profiler wants of it."""

    options: Options
    """All of them, checked."""
    schedule: Schedule | OnRequest | CallableSchedule | None
    """Which steps to record; None is from start to stop."""
    on_trace_ready: HandlerLike | Sequence[HandlerLike] | None
    """What to make of each window."""
    recording: Mapping[str, Any]
    """What torch's recorder takes, of what was given."""


class Windows(TorchFace):
    """Makes the windows of one loop, and hands over what they recorded.

    Args:
        wanted: What the user gave.

    Raises:
        OptionError: torch refuses an option, or a handler is none.
    """

    def __init__(self, wanted: Wanted) -> None:
        options, schedule, on_trace_ready, recording = wanted
        self._options = options
        self._schedule = schedule
        super().__init__(check_recording(recording), on_trace_ready)
        self._on_error = options["on_error"]
        out = options["out"]
        nothing = on_trace_ready is None and schedule is None and out is None
        self._handover = Handover(
            [] if nothing else on_trace_ready,
            {**self._recording_options, "communication": self._options["communication"]},
            background=self._options["background"] and not (out is not None and remote.in_this_process(out)),
            keep_windows=self._options["keep_windows"],
            on_error=self._on_error,
        )
        self._writes = self._options["out"] is not None or bool(self._handover.recipes)
        if self._schedule is not None:
            self._phases, self.record_steps = self._schedule, True
        self._membership = Membership(self._options, self._handover, self._planned, writes=self._writes)
        self._shortened = 0
        self._began = 0
        self._next = 0
        """The next step at whose beginning there is something to do; the first one, as long as nobody started."""
        self._timeline = Timeline(self._options["stage"])
        self._watched = WatchedLoop(
            self._timeline, self._options["stage"], self._options["poll"], step=self._current_step, wake=self._wake
        )
        self._watched.triggers = self._options["trigger"] == "slow"
        self._requests = Requests(self._watched)
        self._keeps_time = True

    def _current_step(self) -> int:
        return self._step

    def _wake(self) -> None:
        """Somebody else's thread has something for this one: look when the step ends."""
        self._next = 0

    @property
    def _run(self) -> Run | None:
        return self._membership.run

    def _planned(self) -> dict[str, Any] | None:
        return self._schedule.to_dict() if isinstance(self._schedule, Schedule) else None

    def _armed_window(self, step: int) -> Window:
        """The window of the schedule that begins at a step."""
        phases: Phases | None = self._requests.base if self._phases is self._requests else self._phases
        if self._schedule is None and not self._writes:
            phases = None
        if self._options["acc_events"] and self._last is not None:
            window = self._last
            window.arm(step, phases)
            window.request = None
        else:
            window = self._new_window(step, phases, self._recording_options)
        window.shortened = self._shortened
        return window

    def _window_for(self, request: RequestedWindow, step: int) -> Window:
        window = self._new_window(step, request.phases, {**self._recording_options, **request.asked.options})
        window.request = request
        window.notes += [request.note] if request.note else []
        return window

    def _give_up_stacks(self) -> None:
        """The windows to come are recorded without them, and say so."""
        self._recording_options["with_stack"] = self._handover.recorded["with_stack"] = False

    def _new_window(self, step: int, phases: Phases | None, recording: Mapping[str, Any]) -> Window:
        return Window(first=step, phases=phases, on_trace_ready=self._ready, recording=recording)

    def _why_not(self, step: int) -> str | None:
        """Why no window can begin now."""
        if recorder_busy():
            return f"another profiler is recording: the window at step {step} is left to it"
        if self._handover.is_full:
            return f"too many windows wait for their files: the window at step {step} is skipped"
        return None

    def _ready(self, window: Window) -> None:
        """Called by torch when a window has been recorded."""
        # a loop that ends with the step before a window leaves one that never saw a step
        empty = window.partial == STOPPED and window.reached == window.first != self._began
        keep = self._options["keep_results"] and not (empty and self._last is not None)
        is_dull = self._options["keep"] == "slow" and window.request is None and self._watched.was_dull(window.first)
        self._write_timeline()
        size = self._handover.take(
            window, self._options["stage"], write=not empty and not is_dull, release=None if keep else window.release
        )
        if window.request is not None:
            place = None if size is None or self._run is None else place_of(window, self._run, self._options["stage"])
            folder = None if place is None else place.folder.name
            self._requests.recorded(window.request, folder, window.first, window.reached - 1, window.notes)
        elif size is not None and isinstance(self._schedule, Schedule):
            self._keep_budget(size, self._schedule, window)
        if keep:
            if self._last is not None and self._last is not window:
                self._last.release()
            self._last = window

    def _keep_budget(self, size: int, schedule: Schedule, window: Window) -> None:
        """Shorten the windows to come where this one's trace is too large."""
        budget = self._options["max_trace_mb"]
        if budget is None or window.partial is not None or size <= budget * 1e6:
            return
        active = max(1, int(schedule.active * budget * 1e6 / size))
        if active < schedule.active:
            self._schedule = schedule.shortened(active)
            self._phases = self._requests.over(self._schedule, self._step)
            self._shortened += schedule.active - active
            logger.warning(
                "%d steps made a trace of %.0f MB, more than max_trace_mb=%g: windows have %d active steps from now on",
                schedule.active, size / 1e6, budget, active,
            )  # fmt: skip

    def _write_timeline(self) -> None:
        with self._timeline.taking:
            rows = self._timeline.rows()
            if self._keeps_time:
                self._keeps_time = False
                with guard("writing the timeline", self._on_error):
                    self._handover.keep_time(rows, more=self._watched.wrote_steps)
                    self._watched.wrote_steps = False
                    self._keeps_time = True
