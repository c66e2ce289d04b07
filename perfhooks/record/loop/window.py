"""One window: a ``torch.profiler.profile`` that records once, is saved once and can be read many times.

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
"""What a profiler is for code that was written for torch."""

_WARN: Final = "_warn_once"
"""The function of `torch.profiler.profiler` that warns."""

_LEVEL: Final = "KINETO_LOG_LEVEL"
_NOTHING_AT_ALL: Final = "6"
"""Its levels are VERBOSE, INFO, WARNING, STAGE, ERROR, USDT, from 0 on."""

_DAEMON: Final = "KINETO_USE_DAEMON"
"""Torch counts steps if this is set."""
_COUNTER: Final = "perfhooks"
"""What our count is called among torch's."""

_NO_STACK: Final = "replay stack is empty"
"""What torch says of a return whose call it has not seen."""

_METRICS: Final[dict[str, Literal["host", "device", "bytes"]]] = {
    "self_cpu_time_total": "host",
    "self_cuda_time_total": "device",
    "self_device_time_total": "device",
}


_open: weakref.WeakSet[Window] = weakref.WeakSet()
"""Our windows that have begun: during a warm-up torch does not count as enabled, but a second profiler crashes it."""
_ending: weakref.WeakKeyDictionary[Window, threading.Thread] = weakref.WeakKeyDictionary()
"""Those that are being ended, which takes seconds where much was recorded, and in which thread."""
_spare: weakref.WeakSet[Window] = weakref.WeakSet()
"""Those that are kept for the case that no other is recorded."""
_left: Final[set[Window]] = set()
"""In a forked child: those that its parent goes on recording. torch counts them here as well, until another begins."""


def recorder_busy() -> bool:
    """Whether somebody's profiler is recording in this process; a second one would empty the first.

    So is one that another thread is ending: torch says that nobody records as soon as that has begun, and crashes if
    somebody begins before it is done.
    """
    ours = (*list(_open), *_ending_elsewhere())
    return any(window.give_way is None for window in ours) or (_recording() and not ours and not _left)


def recorder_owner() -> str:
    """Return the line that started the loop of our window that is open; empty if none is."""
    return next((window.started_at for window in list(_open) if window.give_way is None), "")


def make_room() -> None:
    """End what gives way to other windows, as one is about to begin, and wait for what another thread ends of it."""
    for window in (*list(_open), *_ending_elsewhere()):
        if window.give_way is not None:
            window.give_way()


def _ending_elsewhere() -> list[Window]:
    """Our windows that other threads are ending; of a forked child's threads only the one that forked lives."""
    here = threading.current_thread()
    return [window for window, thread in list(_ending.items()) if thread is not here and thread.is_alive()]


def spares() -> list[Window]:
    """Those that are kept for the case that no other is recorded; one of them may still be recording."""
    return [window for window in list(_spare) if window.ready or window in _open]


def is_spare_recording() -> bool:
    """Whether one of those records now, so that steps take longer than they would."""
    return any(window in _open for window in list(_spare))


def _recording() -> bool:
    return bool(torch._C._autograd._profiler_enabled())  # noqa: SLF001 -- torch has no public way to ask


def when_others_begin(listener: Callable[[], object]) -> Callable[[], None]:
    """Have somebody called before a profiler that is none of ours begins: beside an open window it would get nothing.

    Args:
        listener: Is called each time, in the thread that begins; also where one that began before makes a step.

    Returns:
        Ends that.
    """
    recorder = torch.autograd.profiler.profile
    places: tuple[tuple[type, str], ...] = ((TorchProfile, "start"), (TorchProfile, "step"), (recorder, "__enter__"))
    plain = [(kind, name, vars(kind).get(name), getattr(kind, name)) for kind, name in places]
    for kind, name, _, method in plain:
        setattr(kind, name, _telling(method, listener))

    def undo() -> None:
        for kind, name, own, _ in plain:
            if own is None:
                delattr(kind, name)
            else:
                setattr(kind, name, own)

    return undo


def _telling(method: Callable[..., Any], listener: Callable[[], object]) -> Callable[..., Any]:
    @functools.wraps(method)
    def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, Window):
            listener()
        return method(self, *args, **kwargs)

    return begin


def also_counting(end_step: Callable[[int], None]) -> Callable[[int], None]:
    """What ends a step, and counts it where a daemon asks torch to count steps, as torch's profiler does at each one.

    Dynolog finds by that count which steps it is to record (``--iterations``). Torch takes the largest of all counts,
    so a step that a window or an optimizer counts too is not counted twice. Ours begins at the largest: one that fell
    behind while others counted would change nothing.

    Args:
        end_step: What ends a step.
    """
    if not os.environ.get(_DAEMON):
        return end_step
    tracker: Any = torch.autograd.profiler.KinetoStepTracker
    tracker.init_step_count(_COUNTER)

    def end(time: int) -> None:
        tracker.increment_step(_COUNTER)
        end_step(time)

    return end


def is_exchanged(face: type) -> bool:
    """Whether somebody gave the name ``torch.profiler.profile`` to a class of ours."""
    return torch.profiler.profile is face


def action_of(phases: Phases, step: int) -> ProfilerAction:
    """What torch calls the phase of a step."""
    phase = phases.phase(step)
    if phase is Phase.ACTIVE:
        return ProfilerAction.RECORD_AND_SAVE if phases.ends(step) else ProfilerAction.RECORD
    return ProfilerAction.WARMUP if phase is Phase.WARMUP else ProfilerAction.NONE


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Let torch start its recorder without a warning about earlier cycles: a window has one cycle.

    Some versions of torch, 2.11 among them, warn at each start. With ``python -W error`` the window would end.
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
    """Let Kineto start without its lines about itself, where there is no device that they could be about.

    ``USDT: profiler_start`` and ``gpuGetDeviceCount failed`` come with every window otherwise. Kineto asks for the
    level once, when the first recorder of a process starts, so the variable is there for that call and gone after it;
    whoever has set it keeps his own. The only level without the first line has no errors either, so where there is a
    device nothing is changed: there they may say why it was not recorded.
    """
    recorded = torch.profiler.supported_activities()
    if _LEVEL in os.environ or recorded != {ProfilerActivity.CPU}:
        yield
        return
    os.environ[_LEVEL] = _NOTHING_AT_ALL
    try:
        yield
    finally:
        os.environ.pop(_LEVEL, None)


@contextlib.contextmanager
def _no_words() -> Iterator[None]:
    """Let C++ write nothing to standard error; for a process with one thread only."""
    try:
        kept = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def _microseconds(folded: Mapping[str, int]) -> dict[str, int]:
    """Nanoseconds in torch's unit, less the stacks that have none; what is cut off one is added to the next."""
    ends = [*accumulate(folded.values(), initial=0)]
    whole = [end // 1000 for end in ends]
    values = zip(folded, (after - before for before, after in pairwise(whole)), strict=True)
    return {stack: value for stack, value in values if value}


def _check_whole(path: Path) -> None:
    if not is_whole_json(path):
        raise PerfhooksError(f"the recorder wrote no whole {path.name}: is the disk full?")


def _renumber(path: Path, before: int) -> None:
    """Number the marks of steps in a trace anew. Marks before step 0 get negative numbers, which no reader counts.

    Args:
        path: The trace.
        before: Marks before step 0.
    """
    mark = labels.STEP_MARK.encode()
    text = path.read_bytes()
    path.write_bytes(re.sub(mark + rb"(\d+)", lambda found: mark + b"%d" % (int(found[1]) - before), text))


class LostStacksError(PerfhooksError):
    """Old versions of torch lose a window with stacks that begins inside of a call from C (pytorch issue 101632)."""


class Recorded:
    """A window that has been recorded, as far as saving it needs to know."""

    first: int
    """Its first step that was recorded."""
    reached: int
    """The step during which, or before which, recording ended."""
    began: float = 0.0
    """When recording began, in seconds since 1970; 0 where that is not known."""
    ended: float = 0.0
    """When recording ended, in seconds since 1970; 0 where that is not known."""
    partial: str | None = None
    """Why it ended before its last step; None for a whole window."""
    planned: Planned | None
    """Its steps as planned; None where that is not known."""
    shortened: int = 0
    """How many steps less than the schedule asked for are planned."""
    stop_s: float = 0.0
    """Seconds the recorder took to stop."""
    request: RequestedWindow | None = None
    """What it was asked for by; None for a window of the schedule."""
    loader: Loader | None = None
    """The DataLoader that fed its steps, if one was seen."""
    making: tuple[WorkerCounts, ...] = ()
    unseen_workers: int = 0
    """What each worker of that loader did."""
    looked: tuple[WorkerSamples, ...] = ()
    """Where each of them was while it recorded, if they were looked at."""
    notes: list[str]
    """What is doubtful about it."""
    budget: WindowBudget
    """What it holds, and what it may hold."""
    ready: bool = False
    """Whether there is a trace to save."""

    def save(self, path: Path) -> object:
        """Save the trace as JSON."""
        raise NotImplementedError


class Window(Recorded, TorchProfile):
    """A ``torch.profiler.profile`` for the steps of one window; what ``on_trace_ready`` gets.

        def on_trace_ready(window):
            print(window.first, window.reached, window.key_averages().table(row_limit=10))
            window.export_chrome_trace("trace.json.gz")

    Args:
        first: Its first step, warm-up included.
        phases: The schedule.
        on_trace_ready: Called with the window when it has been recorded.
        recording: What ``torch.profiler.profile`` takes on top.
        marks_steps: Whether its steps are in the trace.
        limits: Limits of the recording.
        end_in_step: Ends the window inside a step when its budget is spent; None if it ends between steps only.
        is_spent: Another reason to end it there.
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
        """The one that is recorded."""
        self.give_way: Callable[[], object] | None = None
        """Ends it, as somebody else is about to record; None for a window that gives way to nobody."""
        self.started_at = ""
        """Line of the program that started the loop."""
        self._device = -1
        """That of the thread that began; -1 for none."""
        self._began = self._ahead_s = 0.0
        self.budget = WindowBudget(limits, recording)
        self._overseer: Overseer | None = None
        if end_in_step is not None:
            budget = self.budget  # not the window, which would keep itself alive
            self._overseer = Overseer(lambda: 1.0 if is_spent() else budget.measure(), end_in_step)
        self.marks_before = 0
        """Marks of steps in the trace before its step 0: they were no steps."""
        self._count: CallCount | None = None
        """Counts Python calls during the warm-up."""
        super().__init__(schedule=self._action if marks_steps else None, on_trace_ready=on_trace_ready, **recording)
        self.step_num = first

    def _action(self, step: int) -> ProfilerAction:
        """The schedule as torch asks for it; it asks for step 0 at construction, whatever the window's first step."""
        if self.planned is not None and self.planned.active <= step < self.planned.last:
            return ProfilerAction.RECORD  # asked at every recorded step: the schedule need not be
        return action_of(self._phases, max(step, self._begin))

    def arm(self, first: int, phases: Phases) -> None:
        """Make a window that has been recorded ready for the next one: torch then adds its events to the last ones'."""
        self._begin = self.step_num = first
        self._phases = phases
        self.planned = phases.next_window(first)
        self.first = self.planned.active if self.planned else first
        self.partial, self.shortened = None, 0
        # torch keeps the schedule's last answer in both; one of them is new in 2.13
        action: Any = self._action(first)
        self.current_action = self._prev_schedule_action = action
        self._forget_file()

    def close(self, reached: int, partial: str | None) -> None:
        """Stop recording; what was recorded is handed to ``on_trace_ready``.

        Args:
            reached: The step during which, or before which, recording ends.
            partial: Why, if not because the window is whole.
        """
        self.step_num = self.reached = reached
        self.partial = partial
        self.stop()

    def start(self) -> None:
        """Begin, with the warm-up if there is one."""
        process.recorder_begins()
        with _quiet_start(), cupti.detached_at_end():
            super().start()
        _open.add(self)
        if self.with_stack and not self.budget.is_running:
            self.budget.begin_count()
            self._count = CallCount(self.budget.most_calls())
            self._count.begin()
        if self.give_way is not None:
            _spare.add(self)

    def step(self) -> None:
        """Begin the next step."""
        was_running = self.budget.is_running
        super().step()
        if was_running:
            self.budget.end_step()

    def has_room_for_step(self) -> bool:
        """Whether one more step fits the budget.

        With stacks the overseer measures, at most 0.1 s ago: the recorder would record the Python calls of this thread.
        """
        if not (self.with_stack and self._overseer is not None and self._overseer.is_running):
            self.budget.measure()
        return self.budget.has_room

    def count_calls(self) -> None:
        """End the count of Python calls: the warm-up is over."""
        count, self._count = self._count, None
        if count is not None:
            count.end()
            self.budget.end_count(count.calls, count.cpu_s, max(self.first - self._begin, 1))

    def stop(self) -> None:
        """End, in whatever phase."""
        self.count_calls()
        _ending[self] = threading.current_thread()
        _open.discard(self)
        try:
            with cupti.detached_at_end():
                super().stop()
        finally:
            _ending.pop(self, None)

    def leave_to_parent(self) -> None:
        """Record nothing here: this process is a forked child, and what it recorded would fill its memory for nobody.

        Torch's recorder cannot be stopped here. That takes as long as it takes the parent, and needs Kineto's thread.
        """
        _open.discard(self)
        turn = getattr(torch.autograd, "_toggle_collection_dynamic", None)  # new in torch 2.5
        if turn is None or not _recording():  # another thread has forked than the one that is recorded
            return
        _left.add(self)
        if self.with_stack:
            sys.setprofile(None)
        with _no_words():  # torch warns of what happens on a GPU then, with every child and whether there is one or not
            turn(False, {ProfilerActivity.CPU})

    @property
    def is_elsewhere(self) -> bool:
        """Whether a thread records that is not this one and lives: torch records one thread, and ends in that one."""
        return self._thread is not None and self._thread is not threading.current_thread() and self._thread.is_alive()

    @property
    def where(self) -> str:
        """What to do about it, for people."""
        here, there = threading.current_thread().name, getattr(self._thread, "name", "")
        return (
            f"it records the thread {there!r}, and this is {here!r}; "
            "torch records one thread, so call start() and stop() in the one that trains"
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened while it was recorded: no operator, no call of the runtime."""
        recorded = getattr(self.profiler, "kineto_results", None)
        return recorded is not None and not recorded.experimental_event_tree()

    @property
    def step_rec_fn(self) -> Any:
        """The mark of the current step. torch sets it, and the modes of the user would see torch's."""
        return self._step_mark

    @step_rec_fn.setter
    def step_rec_fn(self, mark: Any) -> None:
        self._step_mark = None if mark is None else LabelledRange(mark.name)

    def prepare_trace(self) -> None:
        """Prepare the recorder; torch asks Inductor whether it makes CUDA graphs, and would import it for that."""
        lazy: set[str] = getattr(torch, "_lazy_modules", set())
        hidden = {"_inductor"} & lazy if "torch._inductor" not in sys.modules else set()
        lazy -= hidden
        try:
            with deprecated.once(self):
                next_recorder.prepare(self, super().prepare_trace)
        finally:
            lazy |= hidden

    @property
    def _cuspy_profiler_observer(self) -> Any:
        """What looks at the device for torch's next recorder; torch gives it before Kineto prepares."""
        return self._observer

    @_cuspy_profiler_observer.setter
    def _cuspy_profiler_observer(self, observer: Any) -> None:
        if observer is not None:
            next_recorder.check(observer)
        self._observer = observer

    def start_trace(self) -> None:
        """Begin to record this thread."""
        _left.clear()
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
        """Stop the recorder, and take the time it needs.

        Raises:
            LostStacksError: With its stacks torch has lost all of the window.
        """
        self.budget.end()
        if self._overseer is not None:
            self._overseer.end()
        if not _recording():
            # torch crashes when a recorder is stopped that is none any more
            left = self._thread is not threading.current_thread()
            self.notes.append(
                "the thread that was recorded has ended, and its events with it"
                if left
                else "another profiler ran during the window and took its events"
            )
            self._thread = None
            if self.execution_trace_observer is not None:
                self.execution_trace_observer.stop()
            return
        began = time.perf_counter()
        try:
            with torch.cuda.device(self._device):  # which is waited for; another thread may have another one
                next_recorder.drain(self)
                super().stop_trace()
        except RuntimeError as error:
            if _NO_STACK not in str(error):
                raise
            raise LostStacksError(
                f"torch {torch.__version__} cannot tell the Python stacks of this window, and has lost it; the next "
                "ones are recorded without stacks"
            ) from error
        open_ranges.note(self.profiler)
        self._thread = None
        self.stop_s = time.perf_counter() - began
        self.ended = time.time()
        doubt = wall_clock.was_set(self._ahead_s, time.perf_counter() - self._began)
        self.ready = not doubt
        self.notes += [doubt] if doubt else []
        if self.current_action.name == "DEVICE_STOPPED":
            self.notes.append(DEVICE_STOPPED)

    def save(self, path: Path) -> IO[bytes]:
        """Have the recorder write its JSON, once, plain or packed; every export is a copy of it.

        Returns:
            The file, which stays readable when its name is gone.

        Raises:
            PerfhooksError: The recorder left no file; Kineto reports no error of its own.
        """
        try:
            super().export_chrome_trace(os.fspath(path))
            if (found := next_recorder.written(self, path)) != path:
                found.replace(path)
            _check_whole(path)
            if self.marks_before:
                _renumber(path, self.marks_before)
            if self.with_stack:
                with path.open("r+b") as file:
                    frame_names.add(file, self.profiler)
        except BaseException:
            for left in (path, Path(f"{path}.tmp"), Path(f"{path}.gz")):
                left.unlink(missing_ok=True)
            raise
        self._forget_file()
        self._saved = saved = path.open("rb")
        self._close_file = weakref.finalize(self, saved.close)
        return saved

    def export_chrome_trace(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Write the trace; any number of times, to any names, compressed where the name ends in ``.gz``."""
        if args or any(kwargs.values()):
            super().export_chrome_trace(path, *args, **kwargs)
            return
        with publish(Path(path)) as target:
            copy_with_names(self._file(), target, compress=str(path).endswith(".gz"))

    def events(self) -> Any:
        """torch's events, with names in all letters."""
        events: Any = super().events()  # type: ignore[no-untyped-call]  # torch's own
        averages.unescape_names(events or ())
        return events

    def key_averages(self, *args: Any, **kwargs: Any) -> Any:
        """torch's operator table, by name; with stacks self times are right, and ``group_by_stack_n`` groups."""
        events = self.events()
        if kwargs.get("group_by_stack_n", args[1] if len(args) > 1 else 0):
            averages.give_stacks(events)
        with_frames = args[3:] or [kwargs.get("include_python_functions")]  # then they count, as torch has it
        with contextlib.nullcontext() if with_frames[0] else averages.without_frames(events):
            return super().key_averages(*args, **kwargs)

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Write folded stacks: ``a;b;c value``, times in whole microseconds as torch does, equal stacks summed.

        Args:
            path: The file.
            metric: ``self_cpu_time_total``, ``self_cuda_time_total`` or ``self_device_time_total``.

        Raises:
            OptionError: Another metric.
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
        """Free what torch holds, now: its objects refer to each other, so the garbage collector would come late."""
        self.ready = False
        self._forget_file()
        next_recorder.let_go(self)
        recorder, self.profiler = self.profiler, None
        # not by getattr: torch's property would parse all events to have something to free
        held = {} if recorder is None else vars(recorder)
        for event in held.get("_function_events") or held.get("function_events") or ():
            event.cpu_children.clear()
            event.cpu_parent = None
        if recorder is not None:
            vars(recorder).clear()
        self.action_map.clear()
        self.on_trace_ready = None
        self.schedule: Any = None

    def _file(self) -> IO[bytes]:
        """The saved trace, from its beginning."""
        saved = self._saved
        if saved is None:
            if not self.ready:
                raise NothingRecordedError("this window's trace is gone, or was never recorded")
            with tempfile.TemporaryDirectory() as folder:
                saved = self.save(Path(folder) / "trace.json")
        saved.seek(0)
        return saved

    def _forget_file(self) -> None:
        if self._saved is not None:
            self._close_file()
            self._saved = None
