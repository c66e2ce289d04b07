"""The profiler of a training that does not know of it; the first import of torch's profiler is here."""

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
"""What a loop is called whose steps are no training steps."""


def why_not(ours: Collection[Any] = ()) -> str | None:
    """Why the program is to be left alone; None where nothing speaks against profiling it.

    Args:
        ours: Profilers of ours that have stopped; they may still wait for their files.
    """
    if recorder_busy():
        return "the script has a profiler of its own at work"
    if lifetime.is_anybody_known(besides=ours):
        return "the script profiles itself with perfhooks"
    return None


def begin(asked: Request, mode: Mode, step: int) -> Profiler:
    """Make a profiler and start it.

    Args:
        asked: What was asked for.
        mode: What ends a step.
        step: The number of the step that begins.
    """
    return _started(asked, mode, step, asked.schedule or WHEN_SETTLED)


def _started(asked: Request, mode: Mode, step: int, schedule: str, **more: Any) -> Profiler:
    options: dict[str, Any] = {"keep_results": False, **asked.options, **more}
    # an option would be checked again, with system calls in the thread that trains
    out = None if is_url(options.get("out") or "") else options.pop("out", None) or str(Path(asked.here, "perf"))
    if mode in _STAGES:
        options["stage"] = _STAGES[mode]
    profiler = Profiler(schedule=schedule, on_trace_ready=asked.handlers, **options)
    profiler.when_saved(functools.partial(leave_note, asked.notes))
    profiler.say_less()
    profiler.steps_end_with(mode)
    profiler.start(step=step, out=out)
    return profiler


class Profilers:
    """Those of a program that does not know of them, one after another.

    Args:
        asked: What was asked for.
    """

    def __init__(self, asked: Request) -> None:
        self.asked = asked
        self.current: Profiler | None = None
        self._way: ActiveDetector
        """How its steps are told."""
        self._before = (0, 0)
        """The fetches and updates that were made before it began."""
        self._stopped: list[Profiler] = []

    def begin(self, way: ActiveDetector, heard: Events, faces: Iterable[Profiler]) -> str | None:
        """Profile from here on.

        Args:
            way: How steps are told.
            heard: What was heard until now, which belongs to no step.
            faces: Profilers of a framework's own face, whose loops have ended.

        Returns:
            Why that is not done; None where it is.
        """
        folder = None if self.current is None else self.current.discard()
        if folder is None:
            self.end(f"steps end with {way.mode} from here on")
        self.current = None
        reason = why_not([*self._stopped, *faces])
        if reason is None:
            again = {} if folder is None else {"run": folder.name}  # nothing was recorded into it
            asked = msgspec.structs.replace(self.asked, options={**self.asked.options, **again})
            self.current = begin(asked, way.mode, way.first)
            self._way, self._before = way, (heard.fetches, heard.updates)
        return reason

    def pause(self, cause: str) -> None:
        """End the window that is open, if one is."""
        if self.current is not None:
            self.current.pause(cause)

    def end(self, cause: str | None) -> str | None:
        """Profile no more.

        Returns:
            Why the last profiler recorded nothing; None if it recorded a window.
        """
        profiler, self.current = self.current, None
        if profiler is not None:
            profiler.stop(cause)
            self._stopped.append(profiler)
        return None if profiler is None else profiler.why_nothing()

    def keep(self, early: StartupRecorder, why: str, faces: Iterable[tuple[str, Profiler]]) -> Profiler | None:
        """Make a page of what was recorded before anything else, if nothing else was.

        Args:
            early: What was.
            why: Why its last step is not whole.
            faces: Profilers of a framework's face, each with its stage.

        Returns:
            The profiler whose run it is in; None where there is nothing to keep.
        """
        with lifetime.busy():
            window = early.take(why)
            if window is None:
                return None
            profiler = self.current or _of_stage(early.stage, faces)
            if profiler is None:
                profiler = _started(self.asked, early.told_by, window.first, ON_REQUEST, watch=False)
            profiler.adopt(window)
            self.current = profiler
            self.end("the program ended")
            return profiler

    def say_counts(self, heard: Events) -> None:
        """The process ends: what a step had is known."""
        steps = 0 if self.current is None else self.current.step_num - self._way.first
        if self.current is not None and steps:
            with guard("saying how many fetches and updates a step had"):
                fetches, updates = self._before
                means = {"fetches": (heard.fetches - fetches) / steps, "updates": (heard.updates - updates) / steps}
                say_steps_by(self.current, self._way.mode, **means)


def _of_stage(stage: str, faces: Iterable[tuple[str, Profiler]]) -> Profiler | None:
    """The first one that has a run for a stage."""
    return next((face for name, face in faces if name == stage and face.folder is not None), None)


def say_steps_by(profiler: Profiler, mode: Mode, **means: float) -> None:
    """Put into ``run.json`` what ends a step; of several ranks the first one says it.

    Args:
        profiler: That of the training.
        mode: What ends a step.
        **means: Fetches and updates in a step, once they are known.
    """
    if profiler.folder is not None and current_job().rank == 0:
        Run(profiler.folder).say_steps_by(StepsBy(what=mode, **means))


def leave_note(folder: str, run: Path, *, is_speaker: bool) -> None:
    """Note that this process saved a window, for the exit summary.

    Args:
        folder: The folder of notes.
        run: The folder of the run.
        is_speaker: Whether this rank reports the run.
    """
    notes.leave(folder, run=str(run), is_speaker=is_speaker)
