"""Recordings of ``perfhooks run``: first steps, then windows by the answers of step detectors."""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any

from perfhooks.core import process
from perfhooks.core.guard import cause_of, enable_console_log, guard, logger
from perfhooks.core.schedule import Schedule
from perfhooks.record.launch import notes
from perfhooks.record.launch.startup import file_of
from perfhooks.record.launch.step_detectors import (
    NO_PROFILER,
    ActiveDetector,
    BesideIntegration,
    Events,
    InactiveDetector,
    Undecided,
)
from perfhooks.record.loop.ending import lifetime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from perfhooks.record.launch.command_line import Request
    from perfhooks.record.launch.early import StartupRecorder
    from perfhooks.record.launch.profiling import Profilers
    from perfhooks.record.launch.startup import Startup
    from perfhooks.record.launch.step_detectors import Answer, Mode
    from perfhooks.record.launch.turns import Turns


class Recordings:
    def __init__(self, request: Request, startup: Startup) -> None:
        self.request = request
        self.startup = startup
        self.events = Events()
        self._ignore_user_profiler: Callable[[], object] = bool
        self._early: StartupRecorder | None = None
        process.at_end(process.End.STARTUP, startup.wait)
        process.at_end(process.End.REASON, self.finish)
        self.forget()

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
        self._has_torch = False
        self.profiler: Any = NO_PROFILER
        self._profilers: Profilers | Turns | None = None
        self._first_profilers: Iterable[Any] = ()
        """Profilers whose run folder gets the table of the program's start-up."""
        self.integrations: list[tuple[str, Any]] = []
        self._trainings = 0

    @property
    def mode(self) -> Mode | None:
        return self.events.detector.mode

    def apply(self, answer: Answer) -> None:
        if isinstance(answer, ActiveDetector) and answer.continues:
            self.events.detector, answer = answer, "step"
        if answer == "step":
            if self.integrations and self.profiler is not NO_PROFILER and not self._are_integrations_over():
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
        """End the start-up recording a step before a window: torch may crash if both share a step."""
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
            reason = self._profilers.begin(detector, self.events, [integration for _, integration in self.integrations])
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
            if not self.integrations:
                logger.warning("perfhooks run records nothing %s: %s", "more" if had_begun else "here", reason)

    def next_request(self) -> Request:
        self._trainings += 1
        return self.request.named(self._trainings)

    def yield_to_integration(self, profilers: Mapping[str, Any]) -> None:
        """Keep the start-up recording in case the integration saves no window."""
        self.integrations += profilers.items()
        self._first_profilers = self.early.own_profilers = [profiler for _, profiler in self.integrations]
        if type(self.events.detector) is not InactiveDetector:
            self._deactivate(
                BesideIntegration(self.events, self._are_integrations_over),
                "the integration of the framework takes over",
            )

    def _are_integrations_over(self) -> bool:
        return not any(profiler.is_running for _, profiler in self.integrations)

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

    def _record_operators(self) -> None:
        if not self._is_ending and type(self.events.detector) is Undecided and self.early.is_new:
            self.early.begin_with_operators()

    def _on_early_end(self) -> None:
        """Start the timeout after which the start-up recording is written without a step detector."""
        self._subscribe()
        for profiler in (
            self._profilers and self._profilers.current,
            *(integration for _, integration in self.integrations),
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
                profiler = self._profilers.keep(self._early, why, self.integrations)
                if profiler is not None:
                    self._first_profilers = (profiler,)
                    self._end_startup()
                    return True
        return False

    def _keep_before_kill(self, why: str) -> None:
        if self._keep_early(why):
            self.startup.wait()

    def finish(self) -> None:
        error = process.last_error()
        cause = "" if error is None else cause_of(error)
        with self._keep_lock:
            self._is_ending = True
        if self._profilers is not None:
            self._profilers.pause(cause or "the interpreter exited")
        for _, profiler in self.integrations:
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
