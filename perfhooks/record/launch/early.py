"""Start-up recording: the first steps of a program, kept in memory until the end.

The report contains the recording, unless the program reaches a window of the schedule. The recording starts at the
first call, fetch, backward pass or update. If the script computes for 0.3 s without any event, operators are recorded
without steps. A step ends with an update; without updates, with a backward pass; without both, with a call. The first
update or backward pass restarts the count of steps.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core import frames
from perfhooks.core.clocks import time
from perfhooks.core.guard import guard
from perfhooks.core.schedule import FromStartToStop
from perfhooks.core.schedule.settled import ENOUGH_OPERATORS, FEWEST_STEPS
from perfhooks.record.launch import calls, notes
from perfhooks.record.launch.command_line import Request
from perfhooks.record.loop import labelling
from perfhooks.record.loop.ending import lifetime, open_ranges
from perfhooks.record.loop.ending.in_step import in_main_thread
from perfhooks.record.loop.limits.budget import DEFAULT_MB, FIRST_STEPS_S, Limits
from perfhooks.record.loop.limits.other_threads import SHORTEST_WAIT_S, has_busy_threads
from perfhooks.record.loop.window import Window, recorder_busy
from perfhooks.record.watch.sampling import outwards

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from perfhooks.record.launch.step_detectors import Events, Mode
    from perfhooks.record.loop.ending.lifetime import Closable

STEPS: Final = 6
"""Maximum steps of the start-up recording. The first step is a warm-up."""

_CALL, _BACKWARD, _UPDATE = range(3)
"""Events that can end a step, in ascending order of evidence."""
_RECORDED: Final = ("record_shapes", "with_flops")
"""Recorder options for the first steps. Stacks and memory events would exceed `FIRST_STEPS_S`."""
_LONGEST_S: Final = 3.0
"""Maximum length of the recording in s."""
_SHORTEST_S: Final = 0.1
"""Minimum CPU time of the program in s. After less, a recording without operators is dropped."""


class StartupRecorder:
    def __init__(self, events: Events, options: Mapping[str, Any], when_over: Callable[[], object]) -> None:
        self._events = events
        self._recording = {name: options[name] for name in _RECORDED if name in options}
        of_size = Limits.of_size(options.get("max_trace_mb", DEFAULT_MB))
        self._limits = of_size._replace(training_s=FIRST_STEPS_S, name=f"the budget of {FIRST_STEPS_S:g} s")
        self._when_over = when_over
        self._lock = threading.RLock()
        self._until = 0.0
        self._began = os.times()
        self._window: Window | None = None
        self.own_profilers: Collection[Closable] = ()
        """Profilers of an integration. Any other profiler means that the script profiles itself."""
        self.is_new = True
        self._not_before: float | None = None
        """Earliest start of the recording, in seconds of the monotonic clock; None before the first event."""
        self.is_recording = False
        self._is_closed = False
        self._unrecorded = 0
        self._mode: Mode | None = None
        self.has_steps = True
        """Whether steps are recorded; false if only operators are recorded."""
        self._forget()

    def _forget(self) -> None:
        self._begin = self._step = self._since_detector = 0
        self._is_warm = False
        self._end = -1
        self._profiler_step = -1
        """Step in which a profiler of perfhooks started. The start takes time, so this step is longer."""
        self._has_fetched = False
        self._clear_step()

    def _clear_step(self) -> None:
        self._called: set[int] = set()
        self._has_passed_back = False
        self._updates = self._events.updates

    def at_fetch(self) -> None:
        if self._is_defining_steps():
            self._has_fetched = True
            self._maybe_next(self._strongest_end(bool(self._called)))

    def at_first_call(self) -> None:
        if not _is_in_loader():
            self._is_defining_steps(_CALL)

    def at_call(self, module: object) -> None:
        if not _is_in_loader() and self._is_defining_steps(_CALL):
            self._maybe_next(self._strongest_end(id(module) in self._called))
            self._called.add(id(module))

    def at_backward(self) -> None:
        if self._is_defining_steps():
            self._has_passed_back = True

    def at_detector(self) -> None:
        """Restart the count of steps, because a new step detector ends steps at other events."""
        self._since_detector, self._profiler_step = 0, self._step

    def at_step(self, mode: Mode) -> None:
        if self.is_new:
            self._unrecorded += 1
            self._is_closed = self._unrecorded >= STEPS
        elif self.is_recording:
            if self._mode is not None:
                self._next()
            elif self._since_detector > 1:
                self._mode = mode
                self._restart_count(0)
            self._since_detector = 0

    @property
    def is_listening(self) -> bool:
        return not self._is_closed and (self.is_new or self.is_recording or self._is_weak)

    @property
    def _is_weak(self) -> bool:
        return not self.has_steps or not (self._has_fetched or self._has_passed_back or self._end > _CALL or self._mode)

    def _is_defining_steps(self, event: int = _UPDATE) -> bool:
        if self.is_listening:
            if self.is_new:
                self.begin()
            elif not self.has_steps and self.is_recording:
                self.has_steps = True
                calls.ignore_calls()
                if self._window is not None:
                    self._window.record_steps = True
                self._restart_count(0)
            elif not self.has_steps or (not self.is_recording and event > _CALL):
                self._record_again()
        return self.is_recording and self._mode is None

    def _strongest_end(self, is_called: bool) -> int:
        if self._events.updates > self._updates:
            return _UPDATE
        return _BACKWARD if self._has_passed_back else _CALL if is_called else -1

    def _maybe_next(self, end: int) -> None:
        if end < max(self._end, _CALL):
            return
        is_stronger, self._end = end > self._end, end
        if is_stronger and self._step > self._begin:
            self._restart_count(1)  # one step has just ended with the stronger kind of event
        else:
            self._since_detector += 1
            self._next()

    def begin(self, *, has_steps: bool = True) -> None:
        if self._must_wait():  # check this first: later checks release the GIL
            return
        with lifetime.busy(), guard("recording the first steps"), self._lock:
            if not self.is_new or self._is_closed or calls.would_start_device():
                return
            self.is_new = False
            self.has_steps = has_steps
            if recorder_busy() or lifetime.has_profilers(self.own_profilers):
                self._is_closed = True
            else:
                self._open()

    def _must_wait(self) -> bool:
        if self._not_before is None:
            self._not_before = time.monotonic() + (SHORTEST_WAIT_S if has_busy_threads() else 0.0)
        return time.monotonic() < self._not_before

    def begin_with_operators(self) -> None:
        """Start a recording without steps. Any thread may call this function repeatedly."""
        in_main_thread(lambda: self.begin(has_steps=False))

    def _open(self) -> None:
        self._forget()
        window = self._window = Window(
            first=0,
            phases=FromStartToStop(0),
            on_trace_ready=lambda _: None,
            recording=self._recording,
            marks_steps=self.has_steps,
            limits=self._limits,
            end_in_step=self._end_in_step,
            is_spent=lambda: time.monotonic() > self._until,
        )
        window.yield_recorder = self.end
        lifetime.watch(window)
        window.start()
        self._until, self._began = time.monotonic() + _LONGEST_S, os.times()
        self.is_recording = True
        if self.has_steps:
            calls.ignore_calls()
            self._label()

    def _label(self) -> None:
        labelling.start(self.stage, self.at_call)

    def _next(self, step: int | None = None) -> None:
        with lifetime.busy(), guard("recording the first steps"), self._lock:
            window = self._window
            if window is None or not self.is_recording or window.is_elsewhere:
                return
            self._step = self._step + 1 if step is None else step
            self._clear_step()
            if self._step >= self._begin + STEPS or self._has_enough(window) or window.budget.is_spent():
                self.end()
            else:
                window.step()
                self._label()

    def _has_enough(self, window: Window) -> bool:
        is_warm = self._step > self._begin + FEWEST_STEPS
        return is_warm and window.budget.operators >= ENOUGH_OPERATORS

    def _restart_count(self, step: int) -> None:
        window = self._window
        if window is not None:
            window.marks_before = window.step_num + 1 - step
            self._begin, self._since_detector, self._is_warm = step, 0, True
            self._profiler_step = -1
            self._next(step)

    def _record_again(self) -> None:
        with lifetime.busy(), guard("recording the first steps"), self._lock:
            if self._window is not None:
                self._forget_window(self._window)
            self.has_steps = True
            if recorder_busy() or open_ranges.is_any_open():
                self._is_closed = True
            else:
                self._open()

    def _end_in_step(self) -> None:
        if self._window is not None and self.is_recording and not self._window.is_elsewhere:
            is_whole = self._step > self._begin or not self.has_steps
            self.end("" if is_whole else f"{self._limits.name} was reached inside step {self._step}")

    def end(self, why: str = "") -> None:
        with self._lock:
            window = self._window
            if not self.is_recording or window is None:
                return
            if not window.is_elsewhere:
                self._stop(window, why or None)
                self._when_over()
                return
        until = time.monotonic() + 1
        while self.is_recording and time.monotonic() < until:
            in_main_thread(lambda: None if window.is_elsewhere else self.end(why))
            time.sleep(0.01)

    def _stop(self, window: Window, why: str | None) -> None:
        self.is_recording = False
        labelling.stop()
        window.loader = labelling.loader()
        mark = window.step_num
        window.close(self._step, why)
        window.step_num = mark

    def abandon(self) -> None:
        self._is_closed = True
        if self._window is not None and self.is_recording:
            self.is_recording = False
            labelling.stop()
            self._window.leave_to_parent()

    def drop(self) -> None:
        window = self.take()
        if window is not None:
            self._forget_window(window)

    def _forget_window(self, window: Window) -> None:
        window.release()
        lifetime.unwatch(window)

    def take(self, why: str = "") -> Window | None:
        with lifetime.busy(), self._lock:
            self._is_closed = True
            self.end(why)
            window, self._window = self._window, None
            if window is None or not window.ready:
                return None
            if not self.has_steps and window.is_empty and not _has_computed(self._began):
                self._forget_window(window)
                return None
            lifetime.unwatch(window)
            if self._events.updates and self.mode in ("call", "backward"):
                self._keep_as_part(window)
            # skip a step in which a profiler started, unless no other step remains
            begin = self._begin - self._is_warm
            usual = (max(begin, self._profiler_step) + 1, begin + 1)
            window.first = next((first for first in usual if first < self._step), window.first)
            return window

    def _keep_as_part(self, window: Window) -> None:
        window.marks_before = window.step_num + 1
        self._step = window.reached = self._begin
        window.partial = "the recording of the first steps ended inside the first step"

    @property
    def mode(self) -> Mode:
        if self._step == self._begin:
            return "process"
        if self._mode is not None:
            return self._mode
        if self._has_fetched:
            return "loader" if self._end > _CALL else "batches"
        ends: tuple[Mode, ...] = ("call", "backward", "optimizer")
        return ends[self._end]

    @property
    def stage(self) -> str:
        return "train" if self._end > _CALL or self._has_passed_back or self._mode else "predict"


def _has_computed(since: os.times_result) -> bool:
    request = Request.current()
    if request is not None and any(note.parent == os.getpid() for note in notes.read(request.notes)):
        return False
    own, of_children = (end - begin for begin, end in zip(_cpu_s(since), _cpu_s(os.times()), strict=True))
    return own > max(of_children, _SHORTEST_S)


def _cpu_s(times: os.times_result) -> tuple[float, float]:
    return times.user + times.system, times.children_user + times.children_system


def _is_in_loader() -> bool:
    return any(frames.LOADER in frame.f_code.co_filename for frame in outwards(sys._getframe(1)))
