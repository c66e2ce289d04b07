"""One profiling window: a ``torch.profiler.profile`` that records once, is saved once and can be read many times.

The only module that imports torch.profiler.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import tempfile
import threading
import time
import weakref
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

import torch
import torch.autograd.profiler
import torch.profiler
from torch.profiler import ProfilerAction, ProfilerActivity

import perfhooks.trace
from perfhooks.core import labels, process
from perfhooks.core.errors import NothingRecordedError, OptionError, PerfhooksError
from perfhooks.core.labels import DEVICE_STOPPED
from perfhooks.core.schedule import Phase
from perfhooks.record.loop import frame_names, next_recorder, wall_clock
from perfhooks.record.loop.ending import cupti, open_ranges
from perfhooks.record.loop.ending.in_step import Overseer
from perfhooks.record.loop.like_torch import averages, deprecated
from perfhooks.record.loop.like_torch.labelled_range import LabelledRange
from perfhooks.record.loop.limits.budget import NO_LIMITS, Limits, WindowBudget
from perfhooks.record.loop.limits.call_count import CallCount
from perfhooks.run.publishing import is_whole_json, publish
from perfhooks.trace.reading.packing import copy_stream, copy_with_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from perfhooks.core.schedule import Phases, Planned
    from perfhooks.record.loop.requested import RequestedWindow
    from perfhooks.run.circumstances import Loader
    from perfhooks.run.loader.looks import WorkerSamples
    from perfhooks.run.loader.making import WorkerCounts

__all__ = ["ProfilerActivity", "TorchProfile", "Window", "action_of", "recorder_busy"]

TorchProfile = torch.profiler.profile
"""torch's profiler class, the base class of our windows and profilers."""

_WARN: Final = "_warn_once"
"""The function of `torch.profiler.profiler` that warns."""

_LEVEL: Final = "KINETO_LOG_LEVEL"
_SILENT: Final = "6"
"""Kineto's levels are VERBOSE, INFO, WARNING, STAGE, ERROR and USDT, from 0. Level 6 hides all of them."""

_DAEMON: Final = "KINETO_USE_DAEMON"
"""torch counts steps if this variable is set."""
_COUNTER: Final = "perfhooks"
"""Name of our step counter in torch."""

_NO_STACK: Final = "replay stack is empty"
"""torch's error for a return without a recorded call."""

_METRICS: Final[dict[str, Literal["host", "device", "bytes"]]] = {
    "self_cpu_time_total": "host",
    "self_cuda_time_total": "device",
    "self_device_time_total": "device",
}


_open: weakref.WeakSet[Window] = weakref.WeakSet()
"""Started windows. torch reports no active profiler during a warm-up, but a second profiler crashes it."""
_ending: weakref.WeakKeyDictionary[Window, threading.Thread] = weakref.WeakKeyDictionary()
"""Windows that are stopping, and the thread that stops each. Stopping a large recording takes seconds."""
_spare: weakref.WeakSet[Window] = weakref.WeakSet()
"""Spare windows: kept if no other window is recorded."""
_of_parent: Final[set[Window]] = set()
"""In a forked child: windows that the parent still records. torch counts them in the child until the next start."""


def recorder_busy() -> bool:
    """Return whether a profiler records in this process. A second one would clear its events.

    A window that another thread stops counts as recording. torch already reports no active profiler, but crashes if
    one starts before the stop has finished.
    """
    ours = (*list(_open), *_ending_elsewhere())
    return any(window.yield_recorder is None for window in ours) or (_is_recording() and not ours and not _of_parent)


def recorder_owner() -> str:
    """Return the line that started the loop of our open window; empty if no window is open."""
    return next((window.start_line for window in list(_open) if window.yield_recorder is None), "")


def end_spare_windows() -> None:
    """End the windows that yield to other windows, and wait for other threads that stop one."""
    for window in (*list(_open), *_ending_elsewhere()):
        if window.yield_recorder is not None:
            window.yield_recorder()


def _ending_elsewhere() -> list[Window]:
    """Return our windows that another live thread stops. In a forked child only the forking thread lives."""
    here = threading.current_thread()
    return [window for window, thread in list(_ending.items()) if thread is not here and thread.is_alive()]


def spare_windows() -> list[Window]:
    """Return the spare windows that record or have a trace."""
    return [window for window in list(_spare) if window.ready or window in _open]


def is_spare_recording() -> bool:
    """Return whether a spare window records. Recording makes steps longer."""
    return any(window in _open for window in list(_spare))


def _is_recording() -> bool:
    return bool(torch._C._autograd._profiler_enabled())  # noqa: SLF001 -- torch has no public function for this


def listen_for_other_profilers(listener: Callable[[], object]) -> Callable[[], None]:
    """Call a listener before a profiler of another library starts, because it records nothing beside an open window.

    Args:
        listener: Runs in the thread that starts the profiler. It also runs at each step of a started profiler.

    Returns:
        A function that removes the listener.
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
    """Return ``end_step``, which also increments torch's step count if a daemon needs it.

    Dynolog selects steps by that count (``--iterations``). torch uses the maximum of all counters, so a step that a
    window or an optimizer counts too is not counted twice. Our counter starts at the maximum.

    Args:
        end_step: Runs at the end of each step.
    """
    if not os.environ.get(_DAEMON):
        return end_step
    tracker: Any = torch.autograd.profiler.KinetoStepTracker
    tracker.init_step_count(_COUNTER)

    def end(time: int) -> None:
        tracker.increment_step(_COUNTER)
        end_step(time)

    return end


def replaces_torch_profile(face: type) -> bool:
    """Return whether the program replaced ``torch.profiler.profile`` by a class of ours."""
    return torch.profiler.profile is face


def action_of(phases: Phases, step: int) -> ProfilerAction:
    """Return torch's action for a step of a schedule."""
    phase = phases.phase(step)
    if phase is Phase.ACTIVE:
        return ProfilerAction.RECORD_AND_SAVE if phases.ends(step) else ProfilerAction.RECORD
    return ProfilerAction.WARMUP if phase is Phase.WARMUP else ProfilerAction.NONE


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Suppress torch's warning about earlier cycles at a start. A window has one cycle.

    Some versions of torch, for example 2.11, warn at each start. With ``python -W error`` the window would end.
    """
    module = vars(torch.profiler.profiler)
    warn = module.get(_WARN)
    with _quiet_kineto():
        if warn is not None:  # torch 2.4 has no such function
            module[_WARN] = lambda *_, **__: None
        try:
            yield
        finally:
            if warn is not None:
                module[_WARN] = warn


@contextlib.contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Suppress Kineto's log lines about itself on hosts without a device.

    Otherwise ``USDT: profiler_start`` and ``gpuGetDeviceCount failed`` appear with every window. Kineto reads the level
    once, when the first recorder of a process starts, so the variable is set for that call only. A level of the user
    stays. The only level without the first line hides errors too, so hosts with a device keep Kineto's level.
    """
    recorded = torch.profiler.supported_activities()
    if _LEVEL in os.environ or recorded != {ProfilerActivity.CPU}:
        yield
        return
    os.environ[_LEVEL] = _SILENT
    try:
        yield
    finally:
        os.environ.pop(_LEVEL, None)


@contextlib.contextmanager
def _silenced_stderr() -> Iterator[None]:
    """Discard what C++ writes to standard error, in a process with one thread."""
    try:
        stderr_copy = os.dup(2)
    except OSError:  # standard error is closed
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(stderr_copy, 2)
        os.close(stderr_copy)
        os.close(null)


def _microseconds(folded: Mapping[str, int]) -> dict[str, int]:
    """Convert nanoseconds to microseconds, and drop stacks of 0. The remainder of a stack is added to the next one."""
    ends = [*accumulate(folded.values(), initial=0)]
    ends_us = [end // 1000 for end in ends]
    values = zip(folded, (after - before for before, after in pairwise(ends_us)), strict=True)
    return {stack: value for stack, value in values if value}


def _check_complete(path: Path) -> None:
    if not is_whole_json(path):
        raise PerfhooksError(f"the recorder wrote an incomplete {path.name}: is the disk full?")


def _renumber(path: Path, before: int) -> None:
    """Renumber the step marks of a trace.

    Marks before step 0 get negative numbers, which no reader counts.

    Args:
        path: The trace.
        before: Number of marks before step 0.
    """
    mark = labels.STEP_MARK.encode()
    text = path.read_bytes()
    path.write_bytes(re.sub(mark + rb"(\d+)", lambda match: mark + b"%d" % (int(match[1]) - before), text))


class LostStacksError(PerfhooksError):
    """A lost window: old versions of torch lose stacks that begin inside a call from C (pytorch issue 101632)."""


class RecordedWindow:
    """A recorded window with the facts that are saved with its trace."""

    first: int
    """First recorded step."""
    reached: int
    """Step during which, or before which, recording ended."""
    began: float = 0.0
    """Start of the recording, in seconds since 1970; 0 if unknown."""
    ended: float = 0.0
    """End of the recording, in seconds since 1970; 0 if unknown."""
    partial: str | None = None
    """Reason for an early end; None for a complete window."""
    planned: Planned | None
    """Planned steps; None if unknown."""
    shortened: int = 0
    """Number of steps removed from the plan of the schedule."""
    stop_s: float = 0.0
    """Time to stop the recorder, in seconds."""
    request: RequestedWindow | None = None
    """Request that opened the window; None for a window of the schedule."""
    loader: Loader | None = None
    """DataLoader that supplied its steps, if one was detected."""
    making: tuple[WorkerCounts, ...] = ()
    """Batch counts of each worker of that loader."""
    unseen_workers: int = 0
    """Number of workers of that loader without counts."""
    looked: tuple[WorkerSamples, ...] = ()
    """Stack samples of each worker during the recording, if workers were sampled."""
    notes: list[str]
    """Warnings about the recording."""
    budget: WindowBudget
    """Measured cost and limits of the recording."""
    ready: bool = False
    """Whether a trace can be saved."""

    def save(self, path: Path) -> object:
        """Save the trace as JSON."""
        raise NotImplementedError


class Window(RecordedWindow, TorchProfile):
    """A ``torch.profiler.profile`` for the steps of one window; the argument of ``on_trace_ready``.

        def on_trace_ready(window):
            print(window.first, window.reached, window.key_averages().table(row_limit=10))
            window.export_chrome_trace("trace.json.gz")

    Args:
        first: First step, warm-up included.
        phases: The schedule.
        on_trace_ready: Called with the window when it has been recorded.
        recording: Further options of ``torch.profiler.profile``.
        marks_steps: Whether the trace contains step marks.
        limits: Limits of the recording.
        end_in_step: Ends the window inside a step when its budget is used up; None if it ends between steps only.
        is_spent: Returns whether the window must end inside the step for another reason.
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
        self._saved: IO[bytes] | None = None
        self.planned = phases.next_window(first)
        self.first = self.planned.active if self.planned else first
        self.reached = first
        self.notes = []
        self._thread: threading.Thread | None = None
        """The recorded thread."""
        self.yield_recorder: Callable[[], object] | None = None
        """Ends this window when another recorder starts; None if it yields to no recorder."""
        self.start_line = ""
        """Line of the program that started the loop."""
        self._device = -1
        """Current device of the recorded thread; -1 if CUDA is not initialized."""
        self._began = self._ahead_s = 0.0
        self.budget = WindowBudget(limits, recording)
        self._overseer: Overseer | None = None
        if end_in_step is not None:
            budget = self.budget  # not the window, which would keep itself alive
            self._overseer = Overseer(lambda: 1.0 if is_spent() else budget.measure(), end_in_step)
        self.marks_before = 0
        """Number of marks in the trace before step 0."""
        self._count: CallCount | None = None
        """Counter of Python calls during the warm-up."""
        super().__init__(schedule=self._action if marks_steps else None, on_trace_ready=on_trace_ready, **recording)
        self.step_num = first

    def _action(self, step: int) -> ProfilerAction:
        """Return the action for a step. torch's constructor requests step 0, also if the window starts later."""
        if self.planned is not None and self.planned.active <= step < self.planned.last:
            return ProfilerAction.RECORD  # fast path: called at every recorded step
        return action_of(self._phases, max(step, self._begin))

    def arm(self, first: int, phases: Phases) -> None:
        """Prepare a recorded window for the next steps. torch appends their events to the recorded ones."""
        self._begin = self.step_num = first
        self._phases = phases
        self.planned = phases.next_window(first)
        self.first = self.planned.active if self.planned else first
        self.partial, self.shortened = None, 0
        # torch keeps the last action in both attributes; the second is new in 2.13
        action: Any = self._action(first)
        self.current_action = self._prev_schedule_action = action
        self._forget_file()

    def close(self, reached: int, partial: str | None) -> None:
        """Stop recording, which calls ``on_trace_ready``.

        Args:
            reached: Step during which, or before which, recording ends.
            partial: Reason for an early end; None for a complete window.
        """
        self.step_num = self.reached = reached
        self.partial = partial
        self.stop()

    def start(self) -> None:
        """Start the warm-up, or the recording if there is no warm-up."""
        process.recorder_begins()
        with _quiet_start(), cupti.detached_at_end():
            super().start()
        _open.add(self)
        if self.with_stack and not self.budget.is_running:
            self.budget.begin_count()
            self._count = CallCount(self.budget.max_calls())
            self._count.begin()
        if self.yield_recorder is not None:
            _spare.add(self)

    def step(self) -> None:
        """Begin the next step."""
        was_running = self.budget.is_running
        super().step()
        if was_running:
            self.budget.end_step()

    def has_room_for_step(self) -> bool:
        """Return whether one more step fits the budget.

        With stacks the overseer's last measurement is used, which is at most 0.1 s old. A measurement in this thread
        would add Python calls to the recording.
        """
        if not (self.with_stack and self._overseer is not None and self._overseer.is_running):
            self.budget.measure()
        return self.budget.has_room

    def count_calls(self) -> None:
        """End the count of Python calls at the end of the warm-up."""
        count, self._count = self._count, None
        if count is not None:
            count.end()
            self.budget.end_count(count.calls, count.cpu_s, max(self.first - self._begin, 1))

    def stop(self) -> None:
        """End the window in any phase."""
        self.count_calls()
        _ending[self] = threading.current_thread()
        _open.discard(self)
        try:
            with cupti.detached_at_end():
                super().stop()
        finally:
            _ending.pop(self, None)

    def leave_to_parent(self) -> None:
        """Stop collecting events in a forked child, because they would only use memory.

        Torch's recorder cannot be stopped in a child, because a stop needs Kineto's thread.
        """
        _open.discard(self)
        turn = getattr(torch.autograd, "_toggle_collection_dynamic", None)  # new in torch 2.5
        if turn is None or not _is_recording():  # the thread that forked is not the recorded one
            return
        _of_parent.add(self)
        if self.with_stack:
            sys.setprofile(None)
        with _silenced_stderr():  # torch warns about GPU events in every child, even without a GPU
            turn(False, {ProfilerActivity.CPU})

    @property
    def is_elsewhere(self) -> bool:
        """Return whether another live thread is recorded. torch must stop in the thread that it records."""
        return self._thread is not None and self._thread is not threading.current_thread() and self._thread.is_alive()

    @property
    def thread_hint(self) -> str:
        """Return a message with the recorded thread and the remedy."""
        here, there = threading.current_thread().name, getattr(self._thread, "name", "")
        return (
            f"it records the thread {there!r}, but was called from {here!r}; "
            "call start() and stop() in the thread that trains, because torch records only one"
        )

    @property
    def is_empty(self) -> bool:
        """Return whether the recording contains no operator and no runtime call."""
        recorded = getattr(self.profiler, "kineto_results", None)
        return recorded is not None and not recorded.experimental_event_tree()

    @property
    def step_rec_fn(self) -> Any:
        """Mark of the current step, in place of torch's mark, which torch function modes of the user would see."""
        return self._step_mark

    @step_rec_fn.setter
    def step_rec_fn(self, mark: Any) -> None:
        self._step_mark = None if mark is None else LabelledRange(mark.name)

    def prepare_trace(self) -> None:
        """Prepare the recorder without an import of Inductor, which torch asks about CUDA graphs."""
        lazy: set[str] = getattr(torch, "_lazy_modules", set())
        hidden = {"_inductor"} & lazy if "torch._inductor" not in sys.modules else set()
        lazy -= hidden
        try:
            with deprecated.warn_once(self):
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
        """Start recording the calling thread."""
        _of_parent.clear()
        self.count_calls()
        self._thread = threading.current_thread()
        if torch.cuda.is_initialized():
            self._device = torch.cuda.current_device()
        self._began, self._ahead_s, self.began = time.perf_counter(), wall_clock.ahead_s(), time.time()
        super().start_trace()
        self.budget.begin()
        if self._overseer is not None:
            self._overseer.begin()

    def stop_trace(self) -> None:
        """Stop the recorder and measure the time.

        Raises:
            LostStacksError: torch has lost the window with its stacks.
        """
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
            if _NO_STACK not in str(error):
                raise
            raise LostStacksError(
                f"torch {torch.__version__} cannot process the Python stacks of this window, and has lost the window; "
                "later windows are recorded without stacks"
            ) from error
        open_ranges.store_open_ranges(self.profiler)
        self._thread = None
        self.stop_s = time.perf_counter() - began
        self.ended = time.time()
        doubt = wall_clock.describe_change(self._ahead_s, time.perf_counter() - self._began)
        self.ready = not doubt
        self.notes += [doubt] if doubt else []
        if self.current_action.name == "DEVICE_STOPPED":
            self.notes.append(DEVICE_STOPPED)

    def save(self, path: Path) -> IO[bytes]:
        """Write the recorder's JSON file once. All exports copy it.

        Returns:
            The open file, which stays readable when its name is removed.

        Raises:
            PerfhooksError: The recorder wrote no complete file. Kineto itself reports no error.
        """
        try:
            super().export_chrome_trace(os.fspath(path))
            if (written := next_recorder.export_path(self, path)) != path:
                written.replace(path)
            _check_complete(path)
            if self.marks_before:
                _renumber(path, self.marks_before)
            if self.with_stack:
                with path.open("r+b") as file:
                    frame_names.add(file, self.profiler)
        except BaseException:
            for partial in (path, Path(f"{path}.tmp"), Path(f"{path}.gz")):
                partial.unlink(missing_ok=True)
            raise
        self._forget_file()
        self._saved = saved = path.open("rb")
        self._close_file = weakref.finalize(self, saved.close)
        return saved

    def export_chrome_trace(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Write the trace, compressed if the name ends in ``.gz``. It can be written several times."""
        if args or any(kwargs.values()):
            super().export_chrome_trace(path, *args, **kwargs)
            return
        with publish(Path(path)) as target:
            copy_with_names(self._file(), target, compress=str(path).endswith(".gz"))

    def events(self) -> Any:
        """Return torch's events, with unescaped names."""
        events: Any = super().events()  # type: ignore[no-untyped-call]  # untyped in torch
        averages.unescape_names(events or ())
        return events

    def key_averages(self, *args: Any, **kwargs: Any) -> Any:
        """Return torch's operator table by name.

        With stacks, self times are corrected and ``group_by_stack_n`` works.
        """
        events = self.events()
        if kwargs.get("group_by_stack_n", args[1] if len(args) > 1 else 0):
            averages.give_stacks(events)
        with_frames = args[3:] or [kwargs.get("include_python_functions")]  # then frames count, as in torch
        with contextlib.nullcontext() if with_frames[0] else averages.without_frames(events):
            return super().key_averages(*args, **kwargs)

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Write folded stacks: ``a;b;c value``, in whole microseconds as in torch. Equal stacks are summed.

        Args:
            path: The file.
            metric: ``self_cpu_time_total``, ``self_cuda_time_total`` or ``self_device_time_total``.

        Raises:
            OptionError: The metric is unknown.
        """
        if metric not in _METRICS:
            raise OptionError(f"metric must be one of {', '.join(_METRICS)}, got {metric!r}")
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "trace.json"
            with copy.open("wb") as target:
                copy_stream(self._file(), target, compress=False)
            folded = perfhooks.trace.stacks.folded(perfhooks.trace.read(copy), by=_METRICS[metric])
        with publish(Path(path)) as target:
            perfhooks.trace.stacks.write(_microseconds(folded), target)

    def release(self) -> None:
        """Free torch's objects immediately: they are reference cycles, which the garbage collector frees late."""
        self.ready = False
        self._forget_file()
        next_recorder.finish_exports(self)
        recorder, self.profiler = self.profiler, None
        # not getattr: torch's property would parse all events only to free them
        attributes = {} if recorder is None else vars(recorder)
        for event in attributes.get("_function_events") or attributes.get("function_events") or ():
            event.cpu_children.clear()
            event.cpu_parent = None
        if recorder is not None:
            vars(recorder).clear()
        self.action_map.clear()
        self.on_trace_ready = None
        self.schedule: Any = None

    def _file(self) -> IO[bytes]:
        saved = self._saved
        if saved is None:
            if not self.ready:
                raise NothingRecordedError("this window has no trace: it was released, or never recorded")
            with tempfile.TemporaryDirectory() as folder:
                saved = self.save(Path(folder) / "trace.json")
        saved.seek(0)
        return saved

    def _forget_file(self) -> None:
        if self._saved is not None:
            self._close_file()
            self._saved = None
