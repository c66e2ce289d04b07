"""Step detection under ``perfhooks run``, from events of optimizers and loaders.

The current detector decides which events end a step. This module ends the step, starts or ends a profiler, and reports
the result.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import weakref
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core import labels, process
from perfhooks.core.guard import cause_of, enable_console_log, guard, logger
from perfhooks.core.schedule import Schedule
from perfhooks.record.launch import children, notes
from perfhooks.record.launch.command_line import Request
from perfhooks.record.launch.startup import Startup, file_of
from perfhooks.record.launch.step_detectors import (
    BATCHES,
    NO_PROFILER,
    ActiveDetector,
    BesideIntegration,
    ByLoader,
    Events,
    InactiveDetector,
    PeriodDetector,
    Round,
    Undecided,
    has_made_optimizer,
)
from perfhooks.record.loop.ending import lifetime
from perfhooks.run.job import has_process_group
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from perfhooks.record.launch.early import StartupRecorder
    from perfhooks.record.launch.profiling import Profilers
    from perfhooks.record.launch.step_detectors import Answer, Mode
    from perfhooks.record.launch.turns import Turns

_BACKWARD: Final = frozenset[object]()
_NO_BACKWARD: Final = -1
_KILLED: Final = "the program ended before anything was saved, for example by a signal or os._exit"


class StepSignal:
    def __init__(self, request: Request, startup: Startup) -> None:
        self.request = request
        self.startup = startup
        self.events = Events()
        self._is_compiling: Callable[[], bool] = self._first_update
        self._graph_task: Callable[[], int] = lambda: _NO_BACKWARD
        self._ignore_user_profiler: Callable[[], object] = bool
        self._early: StartupRecorder | None = None
        self._restorers: list[Callable[[], object]] = []
        self.when_child_begins: list[Callable[[], object]] = []
        """Functions to call when a process of multiprocessing begins to train."""
        process.at_end(process.End.STARTUP, startup.wait)
        process.at_end(process.End.REASON, self.finish)
        process.in_child(process.Child.STEPS, self._on_fork)
        self.forget()

    def _on_fork(self) -> None:
        integrations = dict(self._integrations)
        self.forget()
        if integrations:
            self.when_child_begins.append(functools.partial(self.yield_to_integration, integrations))
        if children.is_forked_by_loader():
            while self._restorers:
                self._restorers.pop()()

    def forget(self) -> None:
        self.events.forget()
        self._ignore_user_profiler()
        self._ignore_user_profiler = bool
        if self._early is not None:
            self._early.abandon()
        self._early = None
        self._patience: threading.Timer | None = None
        self._early_lock, self._keep_lock = threading.RLock(), threading.RLock()
        self._is_ending = False
        self._is_known_helper: bool | None = None
        """Whether this process is a worker or a tool without a training; None until it is determined."""
        self._has_torch = False
        self._wrappers: Any = None
        self._late_updates: deque[weakref.ref[Any]] = deque(maxlen=100_000)  # threads only fill it
        self.profiler: Any = NO_PROFILER
        self._profilers: Profilers | Turns | None = None
        self._first_profilers: Iterable[Any] = ()
        """Profilers whose run folder gets the table of the program's start-up."""
        self._integrations: list[tuple[str, Any]] = []
        self._trainings = 0

    @property
    def mode(self) -> Mode | None:
        return self.events.detector.mode

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
                self._apply(ByLoader(events) if events.fetches else PeriodDetector(events))
                return
            events.has_round_ended = events.rounds.ends(optimizer)
            self._apply(events.detector.at_update())

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
                self._apply(answer)
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
                profiler.pulse for stage, profiler in self._integrations if stage == "train" and profiler.is_running
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

    def _apply(self, answer: Answer) -> None:
        if isinstance(answer, ActiveDetector) and answer.continues:
            self.events.detector, answer = answer, "step"
        if answer == "step":
            if self._integrations and self.profiler is not NO_PROFILER and not self._are_integrations_over():
                self.yield_to_integration({})
            self.profiler.step()
            if not self.startup.is_over:
                with lifetime.busy():  # SIGTERM ends the start-up too
                    self._end_startup()
            if self.early.is_listening and self.mode is not None:
                self.early.at_step(self.mode)
                self._end_before_window(self.profiler.step_num)
        elif answer is not None:
            self._start_profiling(answer)
        self._subscribe()

    def _end_before_window(self, step: int) -> None:
        """End the start-up recording one step before a window.

        torch may crash if a recording ends and another starts in one step.
        """
        schedule = None if self.request.schedule is None else Schedule.of(self.request.schedule)
        window = None if schedule is None else schedule.next_window(step + 1)
        if window is not None and window.first == window.active == step + 1:
            self.early.end()

    def _subscribe(self) -> None:
        events = self.events
        events.due, events.due_update = (
            0 if self.early.is_listening else events.detector.due,
            events.detector.due_update,
        )

    def _start_profiling(self, detector: ActiveDetector) -> None:
        enable_console_log(apart=True)
        self.startup.first_step()
        with lifetime.busy():  # an error of a signal handler must not leave a half-started profiler
            self._profilers = self._profilers or self._make_profilers()
            if isinstance(self.events.detector, (Undecided, BesideIntegration)):
                self._profilers.request = self.next_request()
            self.events.detector, self.events.armed = detector, False
            self.early.at_detector()
            self.profiler = self.events.pulse = NO_PROFILER
            reason = self._profilers.begin(
                detector, self.events, [integration for _, integration in self._integrations]
            )
            if reason is not None:
                self.disable(reason)
                return
            self.profiler = self._profilers.current
            self.events.pulse = self.profiler.pulse
            self._first_profilers = (self.profiler,)
            process.at_end(process.End.COUNTS, self._write_counts)

    def _make_profilers(self) -> Profilers | Turns:
        if self.request.turns:
            from perfhooks.record.launch.turns import Turns

            return Turns(self.request)
        from perfhooks.record.launch.profiling import Profilers

        return Profilers(self.request)

    def _on_user_profiler(self) -> None:
        """Disable perfhooks for a profiler of the script."""
        self.disable("the script starts a profiler of its own")

    def disable(self, reason: str | None = None) -> None:
        had_begun = self.profiler is not NO_PROFILER
        self.early.drop()
        self._ignore_user_profiler()
        self._ignore_user_profiler = bool
        self._deactivate(InactiveDetector(self.events), reason)
        if reason is not None:
            if not had_begun:
                notes.leave(self.request.notes, why=reason)
            if not self._integrations:
                logger.warning("perfhooks run records nothing %s: %s", "more" if had_begun else "here", reason)

    def next_request(self) -> Request:
        self._trainings += 1
        return self.request.named(self._trainings)

    def yield_to_integration(self, profilers: Mapping[str, Any]) -> None:
        """Keep the start-up recording in case the integration saves no window."""
        self._integrations += profilers.items()
        self._first_profilers = self.early.own_profilers = [profiler for _, profiler in self._integrations]
        if type(self.events.detector) is not InactiveDetector:
            self._deactivate(
                BesideIntegration(self.events, self._are_integrations_over),
                "the integration of the framework takes over",
            )

    def _are_integrations_over(self) -> bool:
        return not any(profiler.is_running for _, profiler in self._integrations)

    def _deactivate(self, detector: InactiveDetector, cause: str | None) -> None:
        self.events.detector, self.events.armed = detector, False
        self.profiler = self.events.pulse = NO_PROFILER
        self._subscribe()
        if self._profilers is not None:
            self._profilers.end(cause)

    def _end_startup(self) -> None:
        self.startup.end(functools.partial(file_of, self._first_profilers))

    @property
    def early(self) -> StartupRecorder:
        return self._early or self._make_early()

    def _make_early(self) -> StartupRecorder:
        from perfhooks.record.launch.early import StartupRecorder
        from perfhooks.record.loop.window import listen_for_other_profilers

        early = StartupRecorder(self.events, self.request.options, self._on_early_end)
        with lifetime.busy(), self._early_lock:
            if self._early is not None:
                return self._early
            self._early = early
            if self.request.turns:
                early.drop()
            else:
                self._ignore_user_profiler = listen_for_other_profilers(self._on_user_profiler)
                lifetime.at_signal(self._keep_before_kill)
        return early

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

    def _record_operators(self) -> None:
        if not self._is_ending and type(self.events.detector) is Undecided and self.early.is_new:
            self.early.begin_with_operators()

    def _on_early_end(self) -> None:
        """Start the timeout after which the start-up recording is written without a step detector."""
        self._subscribe()
        for profiler in (
            self._profilers and self._profilers.current,
            *(integration for _, integration in self._integrations),
        ):
            if profiler is not None:
                profiler.pulse.wake()
        if self._patience is not None:
            self._patience.cancel()
        if self.early.has_steps and type(self.events.detector) is Undecided:
            self._patience = threading.Timer(self.request.patience, self._keep_if_undecided)
            self._patience.daemon, self._patience.name = True, f"{process.THREADS}-patience"
            self._patience.start()

    def _keep_if_undecided(self) -> None:
        if type(self.events.detector) is Undecided:
            self._keep_early()

    def _keep_early(self, why: str = "") -> bool:
        with guard("keeping the first steps"), self._keep_lock:
            if self._early is not None:
                self._profilers = self._profilers or self._make_profilers()
                profiler = self._profilers.keep(self._early, why, self._integrations)
                if profiler is not None:
                    self._first_profilers = (profiler,)
                    self._end_startup()
                    return True
        return False

    def _keep_before_kill(self, why: str) -> None:
        if self._keep_early(why):
            self.startup.wait()

    def finish(self) -> None:
        if type(self.events.detector) is InactiveDetector or self._is_helper():
            return
        error = process.last_error()
        cause = "" if error is None else cause_of(error)
        with self._keep_lock:
            self._is_ending = True
        if self._profilers is not None:
            self._profilers.pause(cause or "the interpreter exited")
        for _, profiler in self._integrations:
            profiler.pause(cause or "the interpreter exited")
        if not self._keep_early(cause):
            reason = self._missing_reason()
            if self._profilers is not None:
                reason = self._profilers.end(cause) or reason
            if self._has_torch:
                note = {"why": f"the program ended with {cause}"} if cause else {"guess": reason}
                notes.leave(self.request.notes, **note)

    def _missing_reason(self) -> str:
        if counted := self.events.counted():
            why = "no device was used" if self.early.is_new else "the program ended before"
            return f"{why}, and there were only {counted}"
        nothing = "the main thread called no module, passed no gradients back, fetched no batch and made no update"
        times = os.times()
        is_alone = times.children_user + times.children_system == 0
        return nothing if is_alone else f"{nothing}, and no child process trained"

    def _write_counts(self) -> None:
        if self._profilers is not None:
            self._profilers.write_counts(self.events)


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
