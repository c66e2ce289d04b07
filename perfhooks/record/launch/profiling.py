"""Profilers of a training under ``perfhooks run``. This module is the first to import torch's profiler."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.core.guard import guard
from perfhooks.core.schedule.unplanned import ON_REQUEST, WHEN_SETTLED
from perfhooks.record.launch import notes
from perfhooks.record.loop.ending import lifetime
from perfhooks.record.loop.profiler import Profiler
from perfhooks.record.loop.window import recorder_busy
from perfhooks.run.folder import Run
from perfhooks.run.job import current_job
from perfhooks.run.manifest import StepsBy
from perfhooks.run.remote import is_url

__all__ = ["Profilers", "begin", "leave_note", "say_steps_by", "why_not"]

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from perfhooks.record.launch.command_line import Request
    from perfhooks.record.launch.early import StartupRecorder
    from perfhooks.record.launch.step_detectors import ActiveDetector, Events, Mode

_STAGES: Final = {"batches": "predict", "call": "predict", "process": "process"}


def why_not(ours: Collection[Any] = ()) -> str | None:
    if recorder_busy():
        return "the script uses another profiler"
    if lifetime.has_profilers(besides=ours):
        return "the script profiles itself with perfhooks"
    return None


def begin(request: Request, mode: Mode, step: int) -> Profiler:
    return _start(request, mode, step, request.schedule or WHEN_SETTLED)


def _start(request: Request, mode: Mode, step: int, schedule: str, **overrides: Any) -> Profiler:
    options: dict[str, Any] = {"keep_results": False, **request.options, **overrides}
    # a second check of the option would make system calls in the training thread
    out = None if is_url(options.get("out") or "") else options.pop("out", None) or str(Path(request.here, "perf"))
    if mode in _STAGES:
        options["stage"] = _STAGES[mode]
    profiler = Profiler(schedule=schedule, on_trace_ready=request.handlers, **options)
    profiler.when_saved(functools.partial(leave_note, request.notes))
    profiler.say_less()
    profiler.steps_end_with(mode)
    profiler.start(step=step, out=out)
    return profiler


class Profilers:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.current: Profiler | None = None
        self._detector: ActiveDetector
        self._before = (0, 0)
        self._stopped: list[Profiler] = []

    def begin(self, detector: ActiveDetector, events: Events, integrations: Iterable[Profiler]) -> str | None:
        """Start a profiler, or return the reason if the program must not be profiled."""
        folder = None if self.current is None else self.current.discard()
        if folder is None:
            self.end(f"steps end with {detector.mode} from here on")
        self.current = None
        reason = why_not([*self._stopped, *integrations])
        if reason is None:
            same_run = {} if folder is None else {"run": folder.name}
            request = msgspec.structs.replace(self.request, options={**self.request.options, **same_run})
            self.current = begin(request, detector.mode, detector.first)
            self._detector, self._before = detector, (events.training_batches, events.updates)
        return reason

    def pause(self, cause: str) -> None:
        if self.current is not None:
            self.current.pause(cause)

    def end(self, cause: str | None) -> str | None:
        """End the profiler. Return the reason if no window was recorded."""
        profiler, self.current = self.current, None
        if profiler is not None:
            profiler.stop(cause)
            self._stopped.append(profiler)
        return None if profiler is None else profiler.why_nothing()

    def keep(self, early: StartupRecorder, why: str, integrations: Iterable[tuple[str, Profiler]]) -> Profiler | None:
        """Write the start-up recording if no window was recorded, and return the profiler that wrote it."""
        with lifetime.busy():
            window = early.take(why)
            if window is None:
                return None
            profiler = self.current or _of_stage(early.stage, integrations)
            if profiler is None:
                profiler = _start(self.request, early.mode, window.first, ON_REQUEST, watch=False)
            profiler.adopt(window)
            self.current = profiler
            if why_nothing := self.end("the program ended"):
                notes.leave(self.request.notes, why=why_nothing)
            return profiler

    def write_counts(self, events: Events) -> None:
        steps = 0 if self.current is None else self.current.step_num - self._detector.first
        if self.current is not None and steps:
            with guard("writing the numbers of fetches and updates per step"):
                totals = {"fetches": events.training_batches, "updates": events.updates}
                counts = zip(totals.items(), self._before, strict=True)
                means = {name: (total - before) / steps for (name, total), before in counts}
                say_steps_by(self.current, self._detector.mode, **means)


def _of_stage(stage: str, integrations: Iterable[tuple[str, Profiler]]) -> Profiler | None:
    return next((profiler for name, profiler in integrations if name == stage and profiler.folder is not None), None)


def say_steps_by(profiler: Profiler, mode: Mode, **means: float) -> None:
    if profiler.folder is not None and current_job().rank == 0:
        Run(profiler.folder).say_steps_by(StepsBy(what=mode, **means))


def leave_note(folder: str, run: Path, *, is_speaker: bool) -> None:
    notes.leave(folder, run=str(run), is_speaker=is_speaker)
