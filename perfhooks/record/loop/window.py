"""One profiling window: a ``torch.profiler.profile`` that records once."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.autograd.profiler
from torch._C._autograd import _enable_record_function, _profiler_enabled
from torch.profiler import ProfilerAction, ProfilerActivity

from perfhooks.core import process
from perfhooks.core.clocks import system_ahead_s, time
from perfhooks.core.labels import DEVICE_STOPPED
from perfhooks.core.schedule import Phase
from perfhooks.record.loop import labelling, next_recorder, stack_support, wall_clock
from perfhooks.record.loop.ending import cupti, open_ranges
from perfhooks.record.loop.ending.in_step import LONGEST_S, SHORTEST_S, Overseer
from perfhooks.record.loop.like_torch import silence
from perfhooks.record.loop.like_torch.labelled_range import LabelledRange
from perfhooks.record.loop.like_torch.results import TorchProfile, WindowResults
from perfhooks.record.loop.limits.budget import NO_LIMITS, Limits, WindowBudget
from perfhooks.record.loop.limits.call_count import CallCount

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perfhooks.core.schedule import Phases

_DAEMON: Final = "KINETO_USE_DAEMON"
_COUNTER: Final = "perfhooks"

_open: weakref.WeakValueDictionary[int, Window] = weakref.WeakValueDictionary()
"""Started windows. During a warm-up torch reports no active profiler, but a second profiler crashes torch."""
_ending: dict[Window, threading.Thread] = {}
"""Windows that a thread is stopping, which takes seconds for a large recording."""
_spare: weakref.WeakValueDictionary[int, Window] = weakref.WeakValueDictionary()
_of_parent: Final[set[Window]] = set()
"""In a forked child: windows that the parent still records."""


def recorder_busy() -> bool:
    """Return whether a profiler records in this process. A second profiler would clear the events of the first.

    A window counts until another thread has stopped it, because a recorder that starts earlier crashes torch.
    """
    ours = (*_alive(_open), *_ending_elsewhere())
    return any(window.yield_recorder is None for window in ours) or (_is_recording() and not ours and not _of_parent)


def recorder_owner() -> str:
    return next((window.start_line for window in _alive(_open) if window.yield_recorder is None), "")


def end_spare_windows() -> None:
    for window in (*_alive(_open), *_ending_elsewhere()):
        if window.yield_recorder is not None:
            window.yield_recorder()


def _ending_elsewhere() -> list[Window]:
    here = threading.current_thread()
    return [window for window, thread in _ending.copy().items() if thread is not here and thread.is_alive()]


def _alive(windows: weakref.WeakValueDictionary[int, Window]) -> list[Window]:
    # other threads may change the dictionary
    return [window for reference in windows.valuerefs() if (window := reference()) is not None]


def spare_windows() -> list[Window]:
    return [window for window in _alive(_spare) if window.ready or id(window) in _open]


def is_spare_recording() -> bool:
    return any(id(window) in _open for window in _alive(_spare))


def _is_recording() -> bool:
    return _profiler_enabled()


def listen_for_other_profilers(listener: Callable[[], object]) -> Callable[[], None]:
    """Call the listener before another profiler starts, and return a function that removes the listener.

    Another profiler records nothing while our window is open.
    """
    recorder = torch.autograd.profiler.profile
    patches: tuple[tuple[type, str], ...] = ((TorchProfile, "start"), (TorchProfile, "step"), (recorder, "__enter__"))
    originals = [(kind, name, vars(kind).get(name), getattr(kind, name)) for kind, name in patches]
    for kind, name, _, method in originals:
        setattr(kind, name, _notifying(method, listener))

    def undo() -> None:
        for kind, name, own, _ in originals:
            if own is None:
                delattr(kind, name)
            else:
                setattr(kind, name, own)

    return undo


def _notifying(method: Callable[..., Any], listener: Callable[[], object]) -> Callable[..., Any]:
    @functools.wraps(method)
    def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, Window):
            listener()
        return method(self, *args, **kwargs)

    return begin


def counting_for_daemon(end_step: Callable[[int], None]) -> Callable[[int], None]:
    """Return a function that calls ``end_step``, and increments torch's step count if a Kineto daemon is used.

    The daemon Dynolog selects steps by torch's count (``--iterations``), the maximum of all counters.
    """
    if not os.environ.get(_DAEMON):
        return end_step
    tracker: Any = torch.autograd.profiler.KinetoStepTracker
    tracker.init_step_count(_COUNTER)

    def end(time: int) -> None:
        tracker.increment_step(_COUNTER)
        end_step(time)

    return end


def action_of(phases: Phases, step: int) -> ProfilerAction:
    phase = phases.phase(step)
    if phase is Phase.ACTIVE:
        return ProfilerAction.RECORD_AND_SAVE if phases.ends(step) else ProfilerAction.RECORD
    return ProfilerAction.WARMUP if phase is Phase.WARMUP else ProfilerAction.NONE


class Window(WindowResults):
    """A ``torch.profiler.profile`` for the steps of one window; the argument of ``on_trace_ready``.

    def on_trace_ready(window):
        print(window.first, window.reached, window.key_averages().table(row_limit=10))
        window.export_chrome_trace("trace.json.gz")
    """

    def __init__(
        self,
        *,
        first: int,
        phases: Phases,
        on_trace_ready: Callable[[Window], None],
        recording: Mapping[str, Any],
        marks_steps: bool = True,
        limits: Limits = NO_LIMITS,
        end_in_step: Callable[[], object] | None = None,
        is_spent: Callable[[], bool] = bool,
    ) -> None:
        self._begin = first
        self._phases = phases
        self.planned = phases.next_window(first)
        self.first = self.planned.active if self.planned else first
        self.reached = first
        self.notes = []
        self._thread: threading.Thread | None = None
        self.yield_recorder: Callable[[], object] | None = None
        self.start_line = ""
        self._device = -1
        self._began = self._ahead_s = 0.0
        self.budget = WindowBudget(limits, recording)
        self._overseer: Overseer | None = None
        if end_in_step is not None:
            budget = self.budget  # not the window, which would keep itself alive
            longest_s = SHORTEST_S if recording.get("with_stack") else LONGEST_S
            self._overseer = Overseer(
                lambda gil_wait_s: 1.0 if is_spent() else budget.measure(gil_wait_s), end_in_step, longest_s
            )
        self._count: CallCount | None = None
        self._step_mark: LabelledRange | None = None
        super().__init__(schedule=self._action if marks_steps else None, on_trace_ready=on_trace_ready, **recording)
        self.step_num = first

    def _action(self, step: int) -> ProfilerAction:
        """torch's constructor always requests the action of step 0."""
        if self.planned is not None and self.planned.active <= step < self.planned.last:
            return ProfilerAction.RECORD  # fast path: called at every recorded step
        return action_of(self._phases, max(step, self._begin))

    def arm(self, first: int, phases: Phases) -> None:
        """With ``acc_events``, prepare the next window: torch appends the events of each window to earlier events."""
        self._begin = self.step_num = first
        self._phases = phases
        self.planned = phases.next_window(first)
        self.first = self.planned.active if self.planned else first
        self.partial, self.shortened = None, 0
        action: Any = self._action(first)
        self.current_action = self._prev_schedule_action = action
        self._forget_file()

    def close(self, reached: int, partial: str | None) -> None:
        self.step_num = self.reached = reached
        self.partial = partial
        self.stop()

    def start(self) -> None:
        process.recorder_begins()
        with silence.suppress_start_output(), cupti.detached_at_end():
            super().start()
        _open[id(self)] = self
        if self.with_stack and not self.budget.is_running:
            self._count = CallCount(self.budget.max_calls())
            self._count.begin()
        if self.yield_recorder is not None:
            _spare[id(self)] = self

    def end_step(self) -> None:
        """End the mark of the step. The work of perfhooks between two steps would count as work of the program."""
        labelling.end_labels()
        mark, self._step_mark = self._step_mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def step(self) -> None:
        was_running = self.budget.is_running
        self.end_step()
        super().step()
        if was_running:
            self.budget.end_step()

    def has_room_for_step(self) -> bool:
        """Whether another step fits the budget.

        With stacks `Overseer` measures: a measurement here adds Python calls.
        """
        if not (self.with_stack and self._overseer is not None and self._overseer.is_running):
            self.budget.measure()
        return self.budget.has_room

    def count_calls(self) -> None:
        count, self._count = self._count, None
        if count is not None:
            count.end()
            self.budget.end_count(count, max(self.first - self._begin, 1))

    def stop(self) -> None:
        self.count_calls()
        _ending[self] = threading.current_thread()
        _open.pop(id(self), None)
        try:
            with cupti.detached_at_end():
                super().stop()
        finally:
            _ending.pop(self, None)

    def leave_to_parent(self) -> None:
        """Stop collecting events in a forked child.

        A stop of the recorder needs Kineto's thread, which a child does not have.
        """
        _open.pop(id(self), None)
        if not _is_recording():
            return
        _of_parent.add(self)
        if self.with_stack:
            sys.setprofile(None)
        turn = getattr(torch.autograd, "_toggle_collection_dynamic", None)
        if turn is None:  # torch 2.4
            _enable_record_function(False)
            return
        with silence.suppress_stderr():  # torch warns about GPU events in every child, even without a GPU
            turn(False, {ProfilerActivity.CPU})

    @property
    def is_elsewhere(self) -> bool:
        """Whether the recorder runs in another live thread, in which torch must stop."""
        return self._thread is not None and self._thread is not threading.current_thread() and self._thread.is_alive()

    @property
    def thread_hint(self) -> str:
        here, there = threading.current_thread().name, getattr(self._thread, "name", "")
        return (
            f"it records the thread {there!r}, but was called from {here!r}; "
            "call start() and stop() in the thread that trains, because torch records only one"
        )

    @property
    def step_rec_fn(self) -> Any:
        """Mark of the step (``ProfilerStep#``), hidden from the user's torch function modes, unlike torch's mark."""
        return self._step_mark

    @step_rec_fn.setter
    def step_rec_fn(self, mark: Any) -> None:
        self._step_mark = None if mark is None else LabelledRange(mark.name)

    def prepare_trace(self) -> None:
        """Prepare the recorder. Unlike torch, do not import Inductor to look for CUDA graphs."""
        lazy: set[str] = getattr(torch, "_lazy_modules", set())
        hidden = {"_inductor"} & lazy if "torch._inductor" not in sys.modules else set()
        lazy -= hidden
        try:
            with silence.warn_once(self):
                next_recorder.prepare(self, super().prepare_trace)
        finally:
            lazy |= hidden

    @property
    def _cuspy_profiler_observer(self) -> Any:
        return self._observer

    @_cuspy_profiler_observer.setter
    def _cuspy_profiler_observer(self, observer: Any) -> None:
        if observer is not None:
            next_recorder.check_observer(observer)
        self._observer = observer

    def start_trace(self) -> None:
        if _of_parent:
            _of_parent.clear()
            _enable_record_function(True)
        self.count_calls()
        self._thread = threading.current_thread()
        if torch.cuda.is_initialized():
            self._device = torch.cuda.current_device()
        self._began, self._ahead_s, self.began = time.perf_counter(), system_ahead_s(), time.time()
        with stack_support.no_collection() if self.with_stack else contextlib.nullcontext():
            super().start_trace()
        self.budget.begin()
        if self._overseer is not None:
            self._overseer.begin()

    def stop_trace(self) -> None:
        self.budget.end()
        if self._overseer is not None:
            self._overseer.end()
        if not _is_recording():
            # torch crashes if a stopped recorder is stopped again
            is_other_thread = self._thread is not threading.current_thread()
            self.notes.append(
                "the recorded thread has ended, so its events are lost"
                if is_other_thread
                else "another profiler ran during the window and took its events"
            )
            self._thread = None
            if self.execution_trace_observer is not None:
                self.execution_trace_observer.stop()
            return
        began = time.perf_counter()
        try:
            with torch.cuda.device(self._device):  # the recorder synchronizes the current device of the thread
                next_recorder.drain(self)
                super().stop_trace()
        except RuntimeError as error:
            stack_support.check_lost(error)
            raise
        open_ranges.store_open_ranges(self.profiler)
        self._thread = None
        self.stop_s = time.perf_counter() - began
        self.ended = time.time()
        doubt = wall_clock.describe_change(self._ahead_s, time.perf_counter() - self._began)
        self.ready = not doubt
        self.notes += [doubt] if doubt else []
        if self.current_action.name == "DEVICE_STOPPED":
            self.notes.append(DEVICE_STOPPED)
