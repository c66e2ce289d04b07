"""The profiler of a training loop: told when a step ends, it decides whether the next one is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from typing_extensions import Self, Unpack

from perfhooks import words
from perfhooks.errors import OptionError
from perfhooks.guard import cause_of, logger, speak_up
from perfhooks.options import Options, check_request, checked, recording, with_options
from perfhooks.recording.course import Course, State
from perfhooks.recording.loader import SteppingLoader
from perfhooks.recording.window import region
from perfhooks.recording.windows import Wanted
from perfhooks.run.folder import check_out
from perfhooks.run.timeline import clock
from perfhooks.schedule import OnRequest, Schedule
from perfhooks.watching.loops import Asked

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from perfhooks.recording.handover import HandlerLike
    from perfhooks.run.capture import Capture, Place

T = TypeVar("T")

ScheduleLike = Schedule | str | Mapping[str, int] | Callable[[int], Any] | None

_UNREACHED: Final = 1 << 40
"""Steps that no training does: a window after so many is how a stage without a schedule is written."""
_NOTHING: Final = nullcontext()


@with_options()
class Profiler(Course):
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
        of_all, steps = checked(options), Schedule.of(schedule)
        if of_all["out"] is not None:
            check_out(of_all["out"])
        if of_all["max_trace_mb"] is not None and not isinstance(steps, Schedule):
            raise OptionError("max_trace_mb needs a schedule whose windows are known, so that they can be shortened")
        super().__init__(Wanted(of_all, steps, on_trace_ready, recording(options)))
        speak_up()

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
        if self._state is State.ENDED:
            logger.warning("no window is recorded on request: the profiler has been stopped")
            return
        self._watched.ask(Asked("code", steps, options=recording))

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

    @property
    def windows_left(self) -> int:
        """How many recorded windows have no files yet, as far as was heard of them."""
        return self._handover.tasks.windows_left

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

    def _why_nothing(self) -> str:
        if self._window is not None:
            return f"nothing to show yet: the window of step {self._step} is still recording"
        if self._state is State.LEFT_OUT:
            return "no window is recorded here: this rank is not among those of ranks="
        if self._last is not None:
            why = "its files could not be saved, as was said before" if self._writes else "no files were asked for"
            return f"a window has been recorded, but {why}; key_averages() and events() show it"
        if self._skipped:
            return f"no window has been recorded: {self._skipped} had to be skipped, as was said before"
        planned = self._phases.next_window(0)
        first = f"; the first window is {words.steps(planned.active, planned.last)}" if planned else ""
        if isinstance(self._phases, OnRequest) or (planned and planned.active > _UNREACHED):
            first = "; no window was planned"
        reached = f"{words.count(self._step, 'step')} ended"
        return f"no window has been recorded: {reached}{first}"
