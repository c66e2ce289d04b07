"""Step detection under ``perfhooks run``: the current detector decides which events end a step."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import weakref
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core import labels, process
from perfhooks.core.guard import guard
from perfhooks.record.launch import children, notes
from perfhooks.record.launch.command_line import Request
from perfhooks.record.launch.recordings import Recordings
from perfhooks.record.launch.startup import Startup
from perfhooks.record.launch.step_detectors import (
    BATCHES,
    NO_PROFILER,
    ByLoader,
    InactiveDetector,
    PeriodDetector,
    Round,
    has_made_optimizer,
)
from perfhooks.run.job import has_process_group
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BACKWARD: Final = frozenset[object]()
_NO_BACKWARD: Final = -1
_KILLED: Final = "the program ended before anything was saved, for example by a signal or os._exit"


class StepSignal(Recordings):
    def __init__(self, request: Request, startup: Startup) -> None:
        self._is_compiling: Callable[[], bool] = self._first_update
        self._graph_task: Callable[[], int] = lambda: _NO_BACKWARD
        self._restorers: list[Callable[[], object]] = []
        self.when_child_begins: list[Callable[[], object]] = []
        """Functions to call when a process of multiprocessing begins to train."""
        super().__init__(request, startup)
        process.in_child(process.Child.STEPS, self._on_fork)

    def _on_fork(self) -> None:
        integrations = dict(self.integrations)
        self.forget()
        if integrations:
            self.when_child_begins.append(functools.partial(self.yield_to_integration, integrations))
        if children.is_forked_by_loader():
            while self._restorers:
                self._restorers.pop()()

    def forget(self) -> None:
        super().forget()
        self._is_known_helper: bool | None = None
        """Whether this process is a worker or a tool without a training; None until it is determined."""
        self._wrappers: Any = None
        self._late_updates: deque[weakref.ref[Any]] = deque(maxlen=100_000)  # threads only fill it

    def finish(self) -> None:
        if type(self.events.detector) is not InactiveDetector and not self._is_helper():
            super().finish()

    def hook(self) -> Callable[[Any, Any, Any], None]:
        def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if self._is_compiling():
                self._count_uncompiled(optimizer)
            else:
                self._count_update(optimizer)

        return after_step

    def _first_update(self) -> bool:
        # fails during the import of torch
        from torch import _C, compiler

        self._is_compiling = compiler.is_compiling
        self._graph_task = _C._current_graph_task_id  # noqa: SLF001 -- its only name
        # a graph would trace the count and recompile the step at each new value
        self._count_uncompiled = compiler.disable(self._count_update)
        return compiler.is_compiling()

    def _count_update(self, optimizer: object) -> None:
        if self._graph_task() != _NO_BACKWARD:  # torch crashes at windows in a backward pass
            self._late_updates.append(weakref.ref(optimizer))
            self.events.armed = True
            return
        events = self.events
        events.updates += 1
        events.armed = events.detector.arms
        if events.updates >= events.due_update:
            self._on_update(optimizer)

    def _count_late_updates(self) -> None:
        while self._late_updates:
            if (optimizer := self._late_updates.popleft()()) is not None:
                self._count_update(optimizer)

    def _on_update(self, optimizer: object) -> None:
        if self._is_helper(trains=True):
            return
        with self._guarded():
            events = self.events
            if events.thread is None:
                events.thread = threading.get_ident()
            if events.is_updated_by_hand and optimizer is not _BACKWARD:
                # the passes were accumulated, so they were no steps
                events.is_updated_by_hand, events.rounds = False, Round()
                self.apply(ByLoader(events) if events.fetches else PeriodDetector(events))
                return
            events.has_round_ended = events.rounds.ends(optimizer)
            self.apply(events.detector.at_update())

    def on_fetch(self) -> None:
        if self._is_helper():
            return
        with self._guarded():
            events, thread = self.events, threading.get_ident()
            if thread == (events.thread or threading.main_thread().ident):
                self._count_late_updates()
                if self.early.is_listening:
                    self.early.at_fetch()
                answer = events.detector.at_fetch() if events.armed or events.fetches >= events.detector.due else None
                events.armed = False
                self.apply(answer)
            else:  # another thread prefetches, so the training does not wait here
                events.pulse = NO_PROFILER

    def on_call(self) -> bool:
        """Return True to unsubscribe from module calls."""
        self.events.calls += 1
        if self._is_helper():
            return True
        with self._guarded():
            self.early.at_first_call()
            self._subscribe()
        return not (self.early.is_new and self.early.is_listening)

    def on_backward(self, began: int = 0) -> None:
        """Process a backward pass; for ``began`` see `calls.listen`."""
        events = self.events
        if self._is_helper(trains=True):
            return
        has_late_updates = bool(self._late_updates)
        events.backwards += 1
        if began:
            events.pulse.passed_back((began, clock()))
        self._count_late_updates()
        if events.updates and not events.is_updated_by_hand:
            if not (began or has_late_updates or self._wrappers is None):
                self._wrappers.ignore_backward()
            return
        with self._guarded():
            self.early.at_backward()
            is_due = events.backwards % BATCHES == 0 and not isinstance(events.detector, InactiveDetector)
            if is_due and not events.is_updated_by_hand and not has_made_optimizer():
                events.is_updated_by_hand, events.rounds.count = True, events.backwards - 1
        if events.is_updated_by_hand:
            self._count_update(_BACKWARD)

    def on_save(self, began: int, ended: int, line: str) -> None:
        if self._is_helper():
            return
        with self._guarded():
            trains = [
                profiler.pulse for stage, profiler in self.integrations if stage == "train" and profiler.is_running
            ]
            for pulse in (self.events.pulse, *trains):
                pulse.set_aside(began, ended, labels.CHECKPOINT, line)

    def _is_helper(self, *, trains: bool = False) -> bool:
        if self._is_known_helper is None:
            if process.is_child() and not (has_process_group() or (trains and not self.request.turns)):
                return True
            self._is_known_helper = children.is_helper_process()
            if not self._is_known_helper:
                self._begin_in_child()
            else:
                if trains and children.is_pool_worker():
                    notes.leave(self.request.notes, why=children.TRAINS_IN_POOL)
                self.events.armed, self.events.detector = False, InactiveDetector(self.events)
                self.events.due, self.events.due_update = self.events.detector.due, self.events.detector.due_update
        return self._is_known_helper

    def _begin_in_child(self) -> None:
        if process.is_child():
            process.end_with_child()
            self.listen()
            while self.when_child_begins:
                self.when_child_begins.pop()()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Disable step detection at the first error."""
        failed = True
        with guard("detecting steps"):
            yield
            failed = False
        if failed:
            notes.leave(self.request.notes, why="perfhooks failed, see its messages in the log")
            self.disable()

    def listen(self) -> None:
        if children.is_helper_process():
            return
        from perfhooks.record.launch import calls

        self._wrappers = calls
        calls.listen(self.on_call, self.on_backward, self.on_save)
        self._restorers.append(calls.leave)
        if process.is_child() and self._is_known_helper is None:
            return
        self._has_torch = True
        notes.leave(self.request.notes, guess=_KILLED)
        # import now: later another thread may hold the GIL, and each file read waits for it
        for module in ("early", "profiling") if not self.request.turns else ():
            importlib.import_module(f"perfhooks.record.launch.{module}")
        if not self.request.turns and sys.platform == "linux":
            self.startup.when_computing = self._record_operators

    def keep(self, leave: Callable[[], object]) -> None:
        self._restorers.append(leave)

    def before_dynamo(self) -> None:
        if self._wrappers is not None:
            self._wrappers.pause()

    def exclude_from_compile(self) -> None:
        if self._wrappers is not None:
            self._wrappers.exclude_from_compile()
            self._wrappers.resume()


_signal: StepSignal | None = None


def current(began: int = 0) -> StepSignal | None:
    """Return the step detection of this process; None without ``perfhooks run``."""
    global _signal  # noqa: PLW0603 -- one for the process
    if _signal is None:
        request = Request.current()
        if request is None:
            return None
        _signal = StepSignal(request, Startup(began))
    return _signal
