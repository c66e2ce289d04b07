"""The profiler of a training that does not know of it; the first import of torch's profiler is here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perfhooks.guard import guard, logger
from perfhooks.launching import farewell
from perfhooks.recording.ending import lifetime
from perfhooks.recording.profiler import Profiler
from perfhooks.recording.window import recorder_busy, when_others_begin
from perfhooks.run.folder import Run
from perfhooks.run.job import current_job
from perfhooks.run.manifest import StepsBy

__all__ = ["OperatorProbe", "Profilers", "begin", "leave_note", "say_steps_by", "why_not"]

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from perfhooks.launching.command_line import Request
    from perfhooks.launching.ways import Heard, Mode, Telling

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


class Profilers:
    """Those of a program that does not know of them, one after another.

    Args:
        asked: What was asked for.
        make_room: Is called when the script begins to profile with torch itself.
    """

    def __init__(self, asked: Request, make_room: Callable[[], None]) -> None:
        self._asked = asked
        self._make_room = make_room
        self.current: Profiler | None = None
        self._way: Telling
        """How its steps are told."""
        self._before = (0, 0)
        """The fetches and updates that were made before it began."""
        self._stopped: list[Profiler] = []
        self._hear_no_others: Callable[[], None] | None = None

    def begin(self, way: Telling, heard: Heard) -> str | None:
        """Profile from here on.

        Args:
            way: How steps are told.
            heard: What was heard until now, which belongs to no step.

        Returns:
            Why that is not done; None where it is.
        """
        self.end(f"steps are told by {way.mode} from here on")
        reason = why_not(self._stopped)
        if reason is None:
            self.current = begin(self._asked, way.mode, way.first)
            if self._hear_no_others is None:
                self._hear_no_others = when_others_begin(self._make_room)
            self._way, self._before = way, (heard.fetches, heard.updates)
        return reason

    def end(self, cause: str, *, for_good: bool = False) -> None:
        """Profile no more, as far as anything is profiled."""
        profiler, self.current = self.current, None
        if for_good and self._hear_no_others is not None:
            self._hear_no_others()
            self._hear_no_others = None
        if profiler is not None:
            profiler.stop(cause)
            self._stopped.append(profiler)

    def say_counts(self, heard: Heard) -> None:
        """The process ends: what a step had is known."""
        steps = 0 if self.current is None else self.current.step_num - self._way.first
        if self.current is not None and steps:
            with guard("saying how many fetches and updates a step had"):
                fetches, updates = self._before
                means = {"fetches": (heard.fetches - fetches) / steps, "updates": (heard.updates - updates) / steps}
                say_steps_by(self.current, self._way.mode, **means)


class OperatorProbe:
    """A look at whether the main thread calls any operator of torch: recorded, counted and forgotten."""

    def __init__(self) -> None:
        self._profiler = Profiler(activities=["cpu"], labels=False)
        self._profiler.start()

    def stop(self) -> bool:
        """End it; whether there was an operator."""
        self._profiler.stop()
        results = getattr(self._profiler.profiler, "kineto_results", None)
        return results is not None and bool(results.events())


def say_steps_by(profiler: Profiler, mode: Mode, **means: float) -> None:
    """Put into ``run.json`` what ends a step; of several ranks the first one says it.

    Args:
        profiler: That of the training.
        mode: What ends a step.
        **means: Fetches and updates in a step, once they are known.
    """
    if profiler.folder is not None and current_job().rank == 0:
        Run(profiler.folder).say_steps_by(StepsBy(what=mode, **means))


def leave_note(notes: str, folder: Path | None) -> None:
    """Tell `farewell` which run this process recorded."""
    if folder is not None:
        farewell.leave_note(notes, run=str(folder))
