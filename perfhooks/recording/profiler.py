"""The profiler of a training loop: told when a step ends, it decides whether the next one is recorded."""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from typing_extensions import Self, Unpack

from perfhooks.errors import NothingRecordedError, OptionError
from perfhooks.guard import guard, logger, speak_up
from perfhooks.options import Options, are_any, check_step, checked, recording, said, selected
from perfhooks.recording import lifetime
from perfhooks.recording.handover import HandlerLike, Spool, place_of
from perfhooks.recording.loader import Steps
from perfhooks.recording.window import Window, check_recording, metadata_json, recorder_busy, region
from perfhooks.run import remote
from perfhooks.run.folder import Run, check_out, step_range
from perfhooks.run.job import Job
from perfhooks.run.timeline import Timeline, clock
from perfhooks.schedule import FromStartToStop, Phase, Phases, Schedule

if TYPE_CHECKING:
    import os
    from types import TracebackType

    from perfhooks.run.capture import Capture, Place

T = TypeVar("T")

_STARTED: Final[Counter[tuple[str, str]]] = Counter()
"""How many runs without a name were begun in this process, by the folder for runs and the stage."""
ScheduleLike = Schedule | str | Mapping[str, int] | Callable[[int], Any] | None

NEVER: Final = sys.maxsize
_POLL_STEPS: Final = 16
"""While windows wait for their files, the worker is heard every so many steps."""
STOPPED: Final = "stopped before its last step"
_NOTHING: Final = nullcontext()


def _ignore(_: int) -> None:
    """Takes the clock where nobody keeps the time."""


class Profiler:
    """Profiles the steps of a loop on a schedule, in place of ``torch.profiler.profile``.

    Without a schedule it records from start to stop, as torch does. With a schedule or ``out`` it leaves a run folder
    with a trace, a step table and an operator table for every window, and stacks where they were recorded.

    Args:
        schedule: Which steps to record: a :class:`Schedule`, a mapping, a string like ``"wait=10 warmup=2 active=3"``
            or a callable ``step -> ProfilerAction``.
        on_trace_ready: What to make of each window: handlers by name, as mappings or as objects, and plain callables,
            which get the torch profiler at once; one or a list.
        **options: See :class:`Options`.

    Raises:
        OptionError: An argument has a value that it cannot have.
        TypeError: No option has this name.
    """

    def __init__(
        self,
        *,
        schedule: ScheduleLike = None,
        on_trace_ready: HandlerLike | Sequence[HandlerLike] | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._options = checked(options)
        self._recording_options = check_recording(recording(options))
        self._schedule = Schedule.of(schedule)
        self._on_error = self._options["on_error"]
        nothing = on_trace_ready is None and self._schedule is None and self._options["out"] is None
        out = self._options["out"]
        if out is not None:
            check_out(out)
        if self._options["max_trace_mb"] is not None and not isinstance(self._schedule, Schedule):
            raise OptionError("max_trace_mb needs a schedule whose windows are known, so that they can be shortened")
        self._spool = Spool(
            [] if nothing else on_trace_ready,
            self._recording_options,
            background=self._options["background"] and not (out is not None and remote.in_this_process(out)),
            keep_windows=self._options["keep_windows"],
            on_error=self._on_error,
        )
        self._writes = self._options["out"] is not None or bool(self._spool.recipes)
        self._phases: Phases = self._schedule or FromStartToStop(0)
        self._metadata: dict[str, str] = {}
        self._run: Run | None = None
        self._started = False
        self._ended = True
        self._opened = False
        self._skipped = 0
        self._left_out = False
        self._number: int | None = None
        self._shortened = 0
        self._step = self._began = 0
        self._next = NEVER
        self._recording = False
        self._window: Window | None = None
        self._last: Window | None = None
        self._timeline = Timeline(self._options["stage"])
        self._keeps_time = True
        self._end_step: Callable[[int], None] = _ignore
        self._data_arrived: Callable[[int], None] = _ignore
        speak_up()

    def start(
        self, step: int | None = None, *, out: str | os.PathLike[str] | None = None, run: str | None = None
    ) -> None:
        """Begin; nothing happens if it has begun already.

        Args:
            step: Number of the step that begins now, where training resumes; None goes on counting, from 0 at first.
                Inside a window's warm-up or active steps it waits for the next window.
            out: The folder that holds runs, if the option was not given.
            run: Name of the run, if the option was not given.

        Raises:
            OptionError: ``step`` is no integer, or negative.
        """
        if self._started:
            return
        if step is not None:
            check_step(step)
        self._started, self._ended = True, False
        if step is not None:
            self._step = step
        self._began = self._step
        if self._schedule is None:
            self._phases = FromStartToStop(self._step)
        with lifetime.busy(), guard("starting to profile", self._on_error):
            job = Job.current()
            self._count_runs(out, run)
            ranks = self._options["ranks"]
            if not selected(ranks, job):
                self._ended = self._left_out = True
                if job.rank == 0 and not are_any(ranks, job.world_size):
                    logger.warning(
                        "ranks=%r are not in this job (world size %d): nothing is recorded", ranks, job.world_size
                    )
                return
            self._end_step, self._data_arrived = self._timeline.end_step, self._timeline.data_arrived
            if self._writes:
                self._run = self._run or self._open_run(job, out, run)
                self._spool.open(self._run)
            # one rank speaks for all that record; what somebody's callable says of others is not for us to ask
            if callable(ranks):
                others = self._run is not None and not self._run.is_new and not job.is_restart
            else:
                others = selected(ranks, job.first)
            self._spool.is_loud = job.rank == 0 or not others
            lifetime.opened(self)
            self._timeline.begin(self._step)
            self._advance(self._step)

    def stop(self, cause: str | None = None) -> None:
        """End; a window that is being recorded is kept and marked partial. Nothing happens if it has ended already.

        Args:
            cause: Why, if something interrupted the training.
        """
        closes = self._window is not None
        self.pause(cause)
        if not self._ended and not closes and self._schedule is not None and not self._opened:
            logger.warning(self._why_nothing())
        self._ended = True
        self._spool.rest()
        if not self._spool.pending:
            lifetime.forget(self)

    def pause(self, cause: str | None = None) -> None:
        """Leave the loop for a while; as ``stop()``, but silent about windows that are still to come.

        Args:
            cause: Why; kept with a window that it cuts short.
        """
        if not self._started:
            return
        self._started = False
        self._next = NEVER
        self._end_step = self._data_arrived = _ignore
        with lifetime.busy(), guard("ending the profile", self._on_error):
            if self._window is not None:
                whole = self._schedule is None and cause is None
                self._close(self._step, None if whole else cause or STOPPED)
            self._write_timeline()
        self._spool.poll()

    def abandon(self) -> None:
        """Do nothing from now on, and touch nothing that was recorded: this process is a forked child."""
        self._next, self._window, self._last, self._recording, self._run = NEVER, None, None, False, None
        self._started, self._ended = False, True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(None if kind is None else f"{kind.__name__}: {error}".rstrip(": "))
        observer = self._options["execution_trace_observer"]
        if observer is not None:
            observer.cleanup()

    def step(self) -> None:
        """Say that a step has ended and the next one begins."""
        self._end_step(clock())
        self._step = step = self._step + 1
        if step >= self._next:
            self._advance(step)

    def data_arrived(self) -> None:
        """Say that the current step has its batch; its wait is then in the timeline. ``steps()`` says it by itself."""
        self._data_arrived(clock())

    @property
    def step_num(self) -> int:
        """Number of the current step, from 0."""
        return self._step

    @property
    def in_window(self) -> bool:
        """Whether the current step belongs to a window that is open, warm-up included."""
        return self._window is not None

    def steps(self, loader: Iterable[T]) -> Steps[T]:
        """Iterate over ``loader``, label the wait for each batch and step after each.

        Args:
            loader: Any iterable. What comes back has a length if it has one, and can be iterated again each epoch.

        Raises:
            OptionError: It cannot be iterated.
        """
        return Steps(self, loader)

    def region(self, name: str) -> AbstractContextManager[Any]:
        """Label a part of the step while a window records; costs next to nothing otherwise.

        Ask for it anew each time: whether there is something to label is decided here, and not when it is entered.

        Args:
            name: One of :data:`perfhooks.labels.PARTS` counts in the step table; any other shows in the trace.
        """
        return region(str(name)) if self._recording else _NOTHING

    def when_finished(self, listener: Callable[[Capture, Place], object]) -> None:
        """Have ``listener`` called on the training thread, at the end of some later step, when a window has its files.

        Args:
            listener: Takes the facts of the window and where its files are.
        """
        self._spool.listeners.append(listener)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every recorded window has its files.

        Args:
            timeout: How long at most, in seconds; None waits for as long as it takes.

        Returns:
            Whether they have.
        """
        return self._spool.wait(timeout)

    def leave(self) -> None:
        """The process ends: stop, and wait for the files for at most ``exit_timeout`` seconds."""
        if self._started:
            self.stop("the interpreter exited")
        self._spool.leave(self._options["exit_timeout"])

    def summary(self) -> str:
        """The step table of all windows so far, as text; waits for their files."""
        from perfhooks.command.output import cost_line, step_table

        self.wait()
        if not self._spool.places:
            return self._why_nothing()
        captures = [place.load() for place in self._spool.places if place.capture_file.exists()]
        table = step_table([place.artifact("steps.csv") for place in self._spool.places])
        return "\n\n".join([table, *(line for line in [cost_line(captures)] if line)])

    # -- the course of windows ---------------------------------------------------------------------------------------

    def _advance(self, step: int) -> None:
        """Do what is due at the beginning of ``step``."""
        self._next = NEVER
        with lifetime.busy(), guard(f"profiling step {step}", self._on_error):
            if self._window is not None:
                self._go_on(self._window, step)
            if self._window is None and self._phases.opens(step):
                self._open(step)
            phase = self._phases.phase(step)
            self._timeline.enter(step, phase)
            self._recording = self._window is not None and phase is Phase.ACTIVE
            if step >= self._timeline.full_at:
                self._write_timeline()
            if self._spool.pending:
                self._spool.poll()
            self._next = self._due(step)
        self._timeline.begin(step)

    def _due(self, step: int) -> int:
        """The next step at which there is something to do."""
        change = step + 1 if self._window is not None else self._phases.next_change(step)
        heard = step + _POLL_STEPS if self._spool.windows_left else NEVER
        return min(NEVER if change is None else change, self._timeline.full_at, heard)

    def _open(self, step: int) -> None:
        if recorder_busy():
            self._skipped += 1
            logger.warning("another profiler is recording: the window at step %d is left to it", step)
            return
        if self._spool.is_full:
            self._skipped += 1
            logger.warning("too many windows wait for their files: the window at step %d is skipped", step)
            return
        phases = self._phases if self._schedule is not None or self._writes else None
        if self._options["acc_events"] and self._last is not None:
            window = self._last
            window.arm(step, phases)
        else:
            window = Window(
                first=step,
                phases=phases,
                on_trace_ready=self._ready,
                recording=self._recording_options,
            )
        window.shortened = self._shortened
        for key, value in self._metadata.items():
            window.preset_metadata_json(key, value)
        self._begin_window(window)
        self._opened = True

    def _begin_window(self, window: Window) -> None:
        """Start the recorder last: what is done after that is part of the first step."""
        self._spool.warm_up()
        if self._run is not None:
            self._run.enter_window(place_of(window, self._run, self._options["stage"]).folder.name)
        lifetime.watch(self)
        try:
            window.start()
        except BaseException:
            self._leave_window()
            raise
        self._window = window

    def _leave_window(self) -> None:
        lifetime.unwatch(self)
        if self._run is not None:
            self._run.enter_window(None)

    def _go_on(self, window: Window, step: int) -> None:
        """One more step in an open window, or its end."""
        whole = self._phases.ends(step - 1)
        over = whole or self._phases.phase(step) is Phase.WAIT or self._phases.opens(step)
        if over:
            self._close(step, None if whole else "the schedule ended the window without RECORD_AND_SAVE")
        else:
            window.step()

    def _close(self, reached: int, partial: str | None) -> None:
        window, self._window, self._recording = self._window, None, False
        if window is None:
            return
        warming_up = self._phases.phase(window.step_num) is Phase.WARMUP
        try:
            window.close(reached, partial)
        finally:
            self._leave_window()
        if partial is not None:
            what = (
                "nothing was recorded: the window ended during its warm-up,"
                if warming_up
                else "the window ended early,"
            )
            level = logging.INFO if partial == STOPPED and not warming_up else logging.WARNING
            logger.log(level, "%s at step %d (%s)", what, reached, partial)

    def _ready(self, window: Window) -> None:
        """Called by torch when a window has been recorded."""
        # a loop that ends with the step before a window leaves one that never saw a step
        empty = window.partial == STOPPED and window.reached == window.first != self._began
        keep = self._options["keep_results"] and not (empty and self._last is not None)
        self._write_timeline()
        size = self._spool.take(
            window, self._options["stage"], write=not empty, release=None if keep else window.release
        )
        if size is not None and isinstance(self._schedule, Schedule):
            self._keep_budget(size, self._schedule, window)
        if keep:
            if self._last is not None and self._last is not window:
                self._last.release()
            self._last = window

    def _keep_budget(self, size: int, schedule: Schedule, window: Window) -> None:
        """Shorten the windows to come where this one's trace is too large."""
        budget = self._options["max_trace_mb"]
        if budget is None or window.partial is not None or size <= budget * 1e6:
            return
        active = max(1, int(schedule.active * budget * 1e6 / size))
        if active < schedule.active:
            self._schedule = self._phases = schedule.shortened(active)
            self._shortened += schedule.active - active
            logger.warning(
                "%d steps made a trace of %.0f MB, more than max_trace_mb=%g: windows have %d active steps from now on",
                schedule.active, size / 1e6, budget, active,
            )  # fmt: skip

    def _open_run(self, job: Job, out: str | os.PathLike[str] | None, run: str | None) -> Run:
        facts = {
            "schedule": self._schedule.to_dict() if isinstance(self._schedule, Schedule) else None,
            "handlers": self._spool.recipes,
            "options": self._spool.recorded,
            "ranks": said(self._options["ranks"]),
            "keep_windows": self._options["keep_windows"],
        }
        out, run = self._options["out"] or out or "perf", self._options["run"] or run
        return Run.open(out, run, job, facts, before=self._number or 0)

    def _count_runs(self, out: str | os.PathLike[str] | None, run: str | None) -> None:
        """Number the runs that have no name: every rank does, whether it records or not, so all come to the same."""
        if self._number is None and self._writes and not (self._options["run"] or run):
            folder = self._options["out"] or out or "perf"
            key = (str(folder) if remote.is_url(folder) else str(Path(folder).absolute()), self._options["stage"])
            self._number = _STARTED[key]
            _STARTED[key] += 1

    def _write_timeline(self) -> None:
        rows = self._timeline.rows()
        if self._keeps_time:
            self._keeps_time = False
            with guard("writing the timeline", self._on_error):
                self._spool.keep_time(rows)
                self._keeps_time = True

    def _why_nothing(self) -> str:
        if self._window is not None:
            return f"nothing to show yet: the window of step {self._step} is still recording"
        if self._left_out:
            return "no window is recorded here: this rank is not among those of ranks="
        if self._last is not None:
            why = "its files could not be saved, as was said before" if self._writes else "no files were asked for"
            return f"a window has been recorded, but {why}; key_averages() and events() show it"
        if self._skipped:
            return f"no window has been recorded: {self._skipped} had to be skipped, as was said before"
        planned = self._phases.next_window(0)
        first = f"; the first window is {step_range(planned.active, planned.last)}" if planned else ""
        reached = f"{self._step} step{'' if self._step == 1 else 's'} ended"
        return f"no window has been recorded: {reached}{first}"

    # -- torch's face: answered by the window that records, or by the last one ---------------------------------------

    @property
    def _results(self) -> Window:
        if self._last is None:
            raise NothingRecordedError(self._why_nothing())
        return self._last

    def key_averages(self, *args: Any, **kwargs: Any) -> Any:
        """torch's operator table of the last window, averaged by name; takes what torch takes."""
        return self._results.key_averages(*args, **kwargs)

    def events(self) -> Any:
        """torch's events of the last window."""
        return self._results.events()  # type: ignore[no-untyped-call]

    def export_chrome_trace(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Write the last window's trace; any number of times, compressed where the name ends in ``.gz``."""
        self._results.export_chrome_trace(path, *args, **kwargs)

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Write the last window's folded stacks, times in nanoseconds."""
        self._results.export_stacks(path, metric)

    def export_memory_timeline(self, path: str, device: str | None = None) -> None:
        """Write torch's memory timeline of the last window; deprecated by torch."""
        self._results.export_memory_timeline(path, device)

    def get_trace_id(self) -> Any:
        """The trace id of the window that records, else of the last one."""
        return (self._window or self._results).get_trace_id()  # type: ignore[no-untyped-call]

    def add_metadata(self, key: str, value: str) -> None:
        """Add a string to the trace that is being recorded, or to the next one."""
        self.add_metadata_json(key, json.dumps(value))

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the trace that is being recorded, or to the next one.

        Raises:
            OptionError: It is no JSON, and the trace would be none either.
        """
        value = metadata_json(value)
        if self._recording and self._window is not None:
            self._window.add_metadata_json(key, value)
        else:
            self.preset_metadata_json(key, value)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to every trace from the next one on."""
        self._metadata[key] = value = metadata_json(value)
        if self._window is not None:
            self._window.preset_metadata_json(key, value)

    def toggle_collection_dynamic(self, enable: bool, activities: Iterable[Any]) -> None:
        """Switch the collection of some activities off or on while a window records; nothing happens otherwise."""
        if not self._recording or self._window is None:
            return
        if hasattr(self._window, "toggle_collection_dynamic"):
            self._window.toggle_collection_dynamic(enable, activities)
        else:
            logger.warning("this torch cannot switch collection off and on; it came with torch 2.5")
