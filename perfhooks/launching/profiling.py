"""The profiler of a training that does not know of it; the first import of torch's profiler is here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from perfhooks.guard import logger
from perfhooks.launching import farewell
from perfhooks.recording.ending import lifetime
from perfhooks.recording.profiler import Profiler
from perfhooks.recording.window import recorder_busy, when_others_begin
from perfhooks.run import layout
from perfhooks.run.folder import Run
from perfhooks.run.job import Job
from perfhooks.run.manifest import StepsBy

__all__ = ["Mode", "Trial", "begin", "leave_note", "say_steps_by", "startup_file", "when_others_begin", "why_not"]

if TYPE_CHECKING:
    from collections.abc import Collection

    from perfhooks.launching.command_line import Request

Mode = Literal["loader", "optimizer", "batches", "time"]
"""What ends a step: a fetch after an update, an update, any fetch; or there are no steps, and time ends the window."""

SCHEDULE: Final = "skip_first=10 wait=0 warmup=2 active=3 repeat=1"
"""One small window soon after the start, as in the frameworks' faces."""

_STAGES: Final = {"batches": "predict", "time": "process"}
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
    options: dict[str, Any] = {"out": str(Path(asked.here, "perf")), "keep_results": False, **asked.options}
    if mode in _STAGES:
        options["stage"] = _STAGES[mode]
    if mode == "time":
        _say_that_time_ends_it(asked)
    schedule = None if mode == "time" else asked.schedule or SCHEDULE
    profiler = Profiler(schedule=schedule, on_trace_ready=asked.handlers, **options)
    profiler.start(step=step)
    leave_note(asked.notes, profiler.folder)
    say_steps_by(profiler, mode)
    return profiler


def _say_that_time_ends_it(asked: Request) -> None:
    more = "; the schedule counts steps, so it does not apply" if asked.schedule else ""
    logger.info("no fetch and no update in %g s: some seconds are recorded, which are no step%s", asked.patience, more)


class Trial:
    """A look at whether the main thread calls any operator of torch: recorded, counted and forgotten."""

    def __init__(self) -> None:
        self._profiler = Profiler(activities=["cpu"], labels=False)
        self._profiler.start()

    def stop(self) -> bool:
        """End it; whether there was an operator."""
        self._profiler.stop()
        results = getattr(self._profiler.profiler, "kineto_results", None)
        return results is not None and bool(results.events())


def startup_file(profiler: Profiler) -> Path | None:
    """Where the table of what came before the first step goes; None where no files are written."""
    return None if profiler.folder is None else profiler.folder / layout.startup(Job.current().rank)


def say_steps_by(profiler: Profiler, mode: Mode, **means: float) -> None:
    """Put into ``run.json`` what ends a step; of several ranks the first one says it.

    Args:
        profiler: That of the training.
        mode: What ends a step.
        **means: Fetches and updates in a step, once they are known.
    """
    if profiler.folder is not None and Job.current().rank == 0:
        Run(profiler.folder).say_steps_by(StepsBy(what=mode, **means))


def leave_note(notes: str, folder: Path | None) -> None:
    """Tell `farewell` which run this process recorded."""
    if folder is not None:
        farewell.leave_note(notes, run=str(folder))
