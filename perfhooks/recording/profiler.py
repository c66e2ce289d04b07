"""The profiler of a training loop: told when a step ends, it decides whether the next one is recorded."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from typing_extensions import Self, Unpack

from perfhooks.errors import OptionError
from perfhooks.guard import cause_of, guard, is_of_handler, logger, speak_up
from perfhooks.options import Options, check_request, check_step, checked, recording, with_options
from perfhooks.recording import labelling, request_signal
from perfhooks.recording.ending import lifetime
from perfhooks.recording.handover import HandlerLike, Handover, place_of
from perfhooks.recording.loader import SteppingLoader
from perfhooks.recording.membership import Membership
from perfhooks.recording.requested import Requests
from perfhooks.recording.torch_face import TorchFace
from perfhooks.recording.window import Window, check_recording, recorder_busy, region
from perfhooks.run import remote
from perfhooks.run.folder import Run, check_out, step_range
from perfhooks.run.timeline import Timeline, clock
from perfhooks.schedule import FromStartToStop, OnRequest, Phase, Schedule
from perfhooks.watching import watcher
from perfhooks.watching.loops import Asked, WatchedLoop

if TYPE_CHECKING:
    import os
    from pathlib import Path
    from types import TracebackType

    from perfhooks.recording.requested import RequestedWindow
    from perfhooks.run.capture import Capture, Place
    from perfhooks.schedule import Phases

T = TypeVar("T")

ScheduleLike = Schedule | str | Mapping[str, int] | Callable[[int], Any] | None

NEVER: Final = sys.maxsize
_UNREACHED: Final = 1 << 40
"""Steps that no training does: a window after so many is how a stage without a schedule is written."""
_POLL_STEPS: Final = 16
"""While windows wait for their files, the worker is heard every so many steps."""
_MOST_FAILURES: Final = 3
"""So many in a row are no accident: profiling ends, for a line in every step would hide the training's own."""
STOPPED: Final = "stopped before its last step"
_NOTHING: Final = nullcontext()


def _ignore(_: int) -> None:
    """Takes the clock where nobody keeps the time."""


class _State(Enum):
    NEW = auto()
    """Nobody has started it yet."""
    RUNNING = auto()
    PAUSED = auto()
    """It was started, and is between two loops; windows are still to come."""
    LEFT_OUT = auto()
    """It was started on a rank that is not asked to record."""
    ENDED = auto()


@with_options()
class Profiler(TorchFace):
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
        self._schedule = Schedule.of(schedule)
        super().__init__(check_recording(recording(options)), on_trace_ready)
        self._on_error = self._options["on_error"]
        nothing = on_trace_ready is None and self._schedule is None and self._options["out"] is None
        out = self._options["out"]
        if out is not None:
            check_out(out)
        if self._options["max_trace_mb"] is not None and not isinstance(self._schedule, Schedule):
            raise OptionError("max_trace_mb needs a schedule whose windows are known, so that they can be shortened")
        self._handover = Handover(
            [] if nothing else on_trace_ready,
            {**self._recording_options, "communication": self._options["communication"]},
            background=self._options["background"] and not (out is not None and remote.in_this_process(out)),
            keep_windows=self._options["keep_windows"],
            on_error=self._on_error,
        )
        self._writes = self._options["out"] is not None or bool(self._handover.recipes)
        self._labels = self._options["labels"] and self._writes
        if self._schedule is not None:
            self._phases, self.record_steps = self._schedule, True
        self._membership = Membership(self._options, self._handover, self._planned, writes=self._writes)
        self._state = _State.NEW
        self._opened = self._skipped = 0
        """How many windows were begun, and how many that were due were not."""
        self._shortened = 0
        self._began = 0
        self._next = 0
        """The next step at whose beginning there is something to do; the first one, as long as nobody started."""
        self._turn_at = 0
        """The next step that changes more than a mark in an open window."""
        self._failures = 0
        """How many turns have failed one after the other."""
        self._timeline = Timeline(self._options["stage"])
        self._watched = WatchedLoop(
            self._timeline, self._options["stage"], self._options["poll"], step=self._current_step, wake=self._wake
        )
        self._watched.triggers = self._options["trigger"] == "slow"
        self._requests = Requests(self._watched)
        self._keeps_time = True
        self._end_step: Callable[[int], None] = _ignore
        self.arrive: Callable[[int], None] = _ignore
        self.ask: Callable[[int], None] = _ignore
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
        if self._state is _State.RUNNING:
            return
        if step is not None:
            check_step(step)
        self._state = _State.RUNNING
        self._next = NEVER
        if step is not None:
            self._step = step
        self._began = self._step
        if self._schedule is None:
            self._phases = FromStartToStop(self._step)
        with lifetime.busy(), guard("starting to profile", self._on_error):
            if not self._membership.join(out, run):
                self._state = _State.LEFT_OUT
                return
            self._end_step, self.arrive = self._timeline.end_step, self._timeline.data_arrived
            self.ask = self._timeline.data_asked
            lifetime.opened(self)
            self._let_watch()
            self._timeline.begin(self._step)
            self._turn(self._step)

    def _let_watch(self) -> None:
        """The loop begins, or goes on: have it watched if there is a folder to write into."""
        self._watched.begin(self._run)
        if self._run is not None and self._options["watch"]:
            if self._options["signal"] is not None:
                request_signal.listen(self._options["signal"], self._watched)
            watcher.attach(self._watched)

    def _current_step(self) -> int:
        return self._step

    def _wake(self) -> None:
        """Somebody else's thread has something for this one: look when the step ends."""
        self._next = 0

    def request(self, steps: int = 3, **recording: bool) -> None:
        """Record the next steps, whether or not the schedule does; where the schedule records them, those after them.

        Args:
            steps: How many.
            **recording: What to record on top of what the options say: ``with_stack``, ``profile_memory``,
                ``record_shapes``, ``with_flops``, ``with_modules``.

        Raises:
            OptionError: ``steps`` or one of the options has a value that it cannot have.
            TypeError: No such option can be given to a request.
        """
        check_request(steps, recording)
        if self._state is _State.ENDED:
            logger.warning("no window is recorded on request: the profiler has been stopped")
            return
        self._watched.ask(Asked("code", steps, options=recording))

    def stop(self, cause: str | None = None) -> None:
        """End; a window that is being recorded is kept and marked partial. Nothing happens if it has ended already.

        Args:
            cause: Why, if something interrupted the training.
        """
        closes = self._window is not None
        self.pause(cause)
        if self._state is _State.PAUSED and not closes and self._schedule is not None and not self._opened:
            logger.warning(self._why_nothing())
        if self._state is _State.RUNNING:
            return  # another thread has to end it
        if self._state is not _State.LEFT_OUT:
            self._state = _State.ENDED
        with lifetime.busy(), guard("ending the run", self._on_error):
            self._requests.end(f"the loop ended at step {self._step}")
            watcher.detach(self._watched)
            self._handover.end_run()
            self._handover.tasks.rest()
        if not self._handover.tasks.pending:
            lifetime.forget(self)

    def pause(self, cause: str | None = None) -> None:
        """Leave the loop for a while; as ``stop()``, but silent about windows that are still to come.

        Args:
            cause: Why; kept with a window that it cuts short.
        """
        if self._state is not _State.RUNNING:
            return
        if self._window is not None and self._window.is_elsewhere:
            logger.warning("the window cannot end here: %s", self._window.where)
            return
        self._state = _State.PAUSED
        self._watched.is_running = False
        self._next = NEVER
        self._end_step = self.arrive = self.ask = _ignore
        with lifetime.busy(), guard("ending the profile", self._on_error):
            if self._window is not None:
                whole = self._schedule is None and cause is None
                self._close(self._step, None if whole else cause or STOPPED)
            self._write_timeline()
        self._handover.tasks.poll()

    def abandon(self) -> None:
        """Do nothing from now on, and touch nothing that was recorded: this process is a forked child."""
        labelling.take_back()
        self._next, self._window, self._last, self.is_recording = NEVER, None, None, False
        self._state = _State.ENDED
        self._membership.abandon()
        self._handover.abandon()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(None if error is None else cause_of(error))
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
        self.arrive(clock())

    @property
    def folder(self) -> Path | None:
        """The run folder; None where no files are written, and before the profiler has been started."""
        return None if self._run is None else self._run.folder

    @property
    def _run(self) -> Run | None:
        return self._membership.run

    def _planned(self) -> dict[str, Any] | None:
        return self._schedule.to_dict() if isinstance(self._schedule, Schedule) else None

    @property
    def in_window(self) -> bool:
        """Whether the current step belongs to a window that is open, warm-up included."""
        return self._window is not None

    def steps(self, loader: Iterable[T]) -> SteppingLoader[T]:
        """Iterate over ``loader``, label the wait for each batch and step after each.

        Args:
            loader: Any iterable. What comes back has a length if it has one, and can be iterated again each epoch.

        Raises:
            OptionError: It cannot be iterated.
        """
        return SteppingLoader(self, loader)

    def region(self, name: str) -> AbstractContextManager[Any]:
        """Label a part of the step while a window records; costs next to nothing otherwise.

        Ask for it anew each time: whether there is something to label is decided here, and not when it is entered.

        Args:
            name: One of :data:`perfhooks.labels.PARTS` counts in the step table; any other shows in the trace.
        """
        return region(str(name)) if self.is_recording else _NOTHING

    def when_finished(self, listener: Callable[[Capture, Place], object]) -> None:
        """Have ``listener`` called on the training thread, at the end of some later step, when a window has its files.

        Args:
            listener: Takes the facts of the window and where its files are.
        """
        self._handover.listeners.append(listener)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every recorded window has its files.

        Args:
            timeout: How long at most, in seconds; None waits for as long as it takes.

        Returns:
            Whether they have.
        """
        return self._handover.tasks.wait(timeout)

    def leave(self) -> None:
        """The process ends: stop, and wait for the files for at most ``exit_timeout`` seconds."""
        if self._state is _State.RUNNING:
            self.stop(lifetime.why_it_ends())
        self._handover.tasks.leave(self._options["exit_timeout"])

    def summary(self, format: Literal["table", "markdown"] = "table") -> str:  # noqa: A002 -- as pandas calls it
        """What all windows so far say, as text; waits for their files. A notebook shows it as it is.

        Args:
            format: ``"table"``, their step tables; ``"markdown"``, what was run, where the step goes, what to do about
                it and the largest operators of the last one, in at most 2,000 tokens.

        Raises:
            OptionError: There is no such format.
        """
        from perfhooks.report.markdown import Text, of_run
        from perfhooks.report.terminal_tables import cost_line, step_table

        if format not in ("table", "markdown"):
            raise OptionError(f"format must be table or markdown, got {format!r}")
        self.wait()
        if not self._handover.places:
            return self._why_nothing()
        captures = [place.load() for place in self._handover.places if place.capture_file.exists()]
        table = step_table([place.artifact("steps.csv") for place in self._handover.places])
        if format == "markdown":
            return Text.of(of_run(self._handover.places[-1].run), is_markdown=True)
        return Text.of("\n\n".join([table, *(line for line in [cost_line(captures)] if line)]))

    # -- the course of windows ---------------------------------------------------------------------------------------

    def _advance(self, step: int) -> None:
        """Do what is due at the beginning of ``step``."""
        if self._window is not None and self._window.is_elsewhere:
            self._next = NEVER
            logger.warning("the window of step %d cannot go on: %s", step, self._window.where)
        elif self._window is not None and step < self._turn_at:
            self._mark(self._window, step)
        elif self._state is _State.NEW:
            self._start_late(step)
        elif self._state is not _State.RUNNING:
            self._next = NEVER
        else:
            self._turn(step)

    def _mark(self, window: Window, step: int) -> None:
        """One more step in an open window: done at every recorded step, so nothing else is."""
        try:
            window.step()
            if self.is_recording and self._labels:
                labelling.put(self._options["stage"])
        except Exception as error:
            if self._on_error == "raise" or is_of_handler(error):
                raise
            logger.warning("profiling step %d failed (%s); the window ends", step, cause_of(error))
            self._recover(step)
        self._timeline.begin(step)

    def _turn(self, step: int) -> None:
        """Begin or end a window or a phase, or hear what became of windows."""
        self._next = NEVER
        done = False
        try:
            with lifetime.busy(), guard(f"profiling step {step}", self._on_error):
                if self._window is not None:
                    self._go_on(self._window, step)
                if self._watched.inbox or self._phases is self._requests:
                    self._phases = self._requests.over(self._phases, step)
                if self._window is None and self._phases.opens(step):
                    self._open(step)
                phase = self._phases.phase(step)
                self._timeline.enter(step, phase)
                self.is_recording = self._window is not None and phase is Phase.ACTIVE
                if self.is_recording and self._labels:
                    labelling.put(self._options["stage"])
                if step >= self._timeline.full_at:
                    self._write_timeline()
                if self._handover.tasks.pending:
                    self._handover.tasks.poll()
                self._turn_at = self._due(step)
                self._next = step + 1 if self._window is not None else self._turn_at
                if self._watched.inbox:  # it came while the next turn was being decided
                    self._next = 0
                done = True
        finally:
            if done:
                self._failures = 0
            else:
                self._recover(step)
            self._timeline.begin(step)

    def _recover(self, step: int) -> None:
        """Something failed: keep what was recorded, and go on with the next window."""
        self._failures += 1
        with lifetime.busy(), guard("ending the window", self._on_error):
            self._close(step, "profiling it failed")
        if self._failures >= _MOST_FAILURES:
            logger.warning("profiling failed %d times in a row, and ends", self._failures)
            return
        self._next = self._turn_at = step + 1

    def _start_late(self, step: int) -> None:
        """Nobody called ``start()``; torch records there as well, from the second step on."""
        with guard("starting to profile", self._on_error):
            if self._schedule is not None and self._phases.opens(0):
                logger.warning(
                    "the profiler was not started before its first step, so the window that begins there is lost: "
                    "use it in a `with`, or call start()"
                )
        self.start(step)

    def ensure_started(self) -> None:
        """Start if nobody ever has, as ``steps()`` does; nothing happens after a ``stop()``."""
        if self._state is _State.NEW:
            self.start()

    def _due(self, step: int) -> int:
        """The next step that changes something, in a window or outside."""
        if self._state is _State.LEFT_OUT:
            return NEVER
        change = self._phases.next_change(step)
        heard = step + _POLL_STEPS if self._handover.tasks.windows_left else NEVER
        return min(NEVER if change is None else change, self._timeline.full_at, heard)

    def _open(self, step: int) -> None:
        if not self._membership.meet():
            self._state = _State.LEFT_OUT
            self._end_step = self.arrive = self.ask = _ignore
            return
        self._watched.run = self._run
        request = self._requests.opening(step) if self._phases is self._requests else None
        why = self._why_not(step)
        if why is not None:
            self._skipped += 1
            logger.warning("%s", why)
            if request is not None:
                self._requests.refuse(request, why)
            return
        self._begin_window(self._armed_window(step) if request is None else self._window_for(request, step))
        self._opened += 1

    def _armed_window(self, step: int) -> Window:
        """The window of the schedule that begins at a step."""
        phases: Phases | None = self._requests.base if self._phases is self._requests else self._phases
        if self._schedule is None and not self._writes:
            phases = None
        if self._options["acc_events"] and self._last is not None:
            window = self._last
            window.arm(step, phases)
            window.request = None
        else:
            window = self._new_window(step, phases, self._recording_options)
        window.shortened = self._shortened
        return window

    def _window_for(self, request: RequestedWindow, step: int) -> Window:
        window = self._new_window(step, request.phases, {**self._recording_options, **request.asked.options})
        window.request = request
        window.notes += [request.note] if request.note else []
        return window

    def _new_window(self, step: int, phases: Phases | None, recording: Mapping[str, Any]) -> Window:
        return Window(first=step, phases=phases, on_trace_ready=self._ready, recording=recording)

    def _why_not(self, step: int) -> str | None:
        """Why no window can begin now."""
        if recorder_busy():
            return f"another profiler is recording: the window at step {step} is left to it"
        if self._handover.is_full:
            return f"too many windows wait for their files: the window at step {step} is skipped"
        return None

    def _begin_window(self, window: Window) -> None:
        """Start the recorder last: what is done after that is part of the first step."""
        for key, value in self._metadata.items():
            window.preset_metadata_json(key, value)
        self._handover.warm_up()
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
        window, self._window, self.is_recording = self._window, None, False
        if window is None:
            return
        labelling.take_back()
        labelling.name_modules(window)
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
        is_dull = self._options["keep"] == "slow" and window.request is None and self._watched.was_dull(window.first)
        self._write_timeline()
        size = self._handover.take(
            window, self._options["stage"], write=not empty and not is_dull, release=None if keep else window.release
        )
        if window.request is not None:
            place = None if size is None or self._run is None else place_of(window, self._run, self._options["stage"])
            folder = None if place is None else place.folder.name
            self._requests.recorded(window.request, folder, window.first, window.reached - 1, window.notes)
        elif size is not None and isinstance(self._schedule, Schedule):
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
            self._schedule = schedule.shortened(active)
            self._phases = self._requests.over(self._schedule, self._step)
            self._shortened += schedule.active - active
            logger.warning(
                "%d steps made a trace of %.0f MB, more than max_trace_mb=%g: windows have %d active steps from now on",
                schedule.active, size / 1e6, budget, active,
            )  # fmt: skip

    def _write_timeline(self) -> None:
        with self._timeline.taking:
            rows = self._timeline.rows()
            if self._keeps_time:
                self._keeps_time = False
                with guard("writing the timeline", self._on_error):
                    self._handover.keep_time(rows, more=self._watched.wrote_steps)
                    self._watched.wrote_steps = False
                    self._keeps_time = True

    def _why_nothing(self) -> str:
        if self._window is not None:
            return f"nothing to show yet: the window of step {self._step} is still recording"
        if self._state is _State.LEFT_OUT:
            return "no window is recorded here: this rank is not among those of ranks="
        if self._last is not None:
            why = "its files could not be saved, as was said before" if self._writes else "no files were asked for"
            return f"a window has been recorded, but {why}; key_averages() and events() show it"
        if self._skipped:
            return f"no window has been recorded: {self._skipped} had to be skipped, as was said before"
        planned = self._phases.next_window(0)
        first = f"; the first window is {step_range(planned.active, planned.last)}" if planned else ""
        if isinstance(self._phases, OnRequest) or (planned and planned.active > _UNREACHED):
            first = "; no window was planned"
        reached = f"{self._step} step{'' if self._step == 1 else 's'} ended"
        return f"no window has been recorded: {reached}{first}"
