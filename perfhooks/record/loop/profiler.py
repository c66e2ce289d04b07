"""The profiler of a training loop: told when a step ends, it decides whether the next one is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from typing_extensions import Self, Unpack

from perfhooks.core.errors import OptionError
from perfhooks.core.guard import cause_of, guard, logger, speak_up
from perfhooks.core.options import Options, check_request, checked, recording, with_options
from perfhooks.core.schedule import Schedule
from perfhooks.record.loop.course import LoopController, State
from perfhooks.record.loop.ending import lifetime
from perfhooks.record.loop.like_torch.accepted import check_recording, legacy_activities
from perfhooks.record.loop.like_torch.face import TorchFace
from perfhooks.record.loop.like_torch.labelled_range import LabelledRange
from perfhooks.record.loop.loader import SteppingLoader
from perfhooks.record.watch.loops import Asked
from perfhooks.run import rare_work
from perfhooks.run.layout import LABELS, STEPS
from perfhooks.run.manifest import StepsBy
from perfhooks.run.remote import check_out
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    import os
    from pathlib import Path
    from types import TracebackType

    from perfhooks.core.job import Job
    from perfhooks.record.loop.handover import HandlerLike
    from perfhooks.record.loop.window import Window
    from perfhooks.run.capture import Capture, Place

T = TypeVar("T")

ScheduleLike = Schedule | str | Mapping[str, int] | Callable[[int], Any] | None

_NOTHING: Final = nullcontext()


def _nobody(_: Job) -> bool:
    """No rank records."""
    return False


@with_options()
class Profiler(TorchFace):
    """Profiles the steps of a loop on a schedule, in place of ``torch.profiler.profile``.

    Without a schedule it records from start to stop, as torch does. With a schedule or ``out`` it leaves a run folder
    with a trace, a step table and an operator table for every window, and stacks where they were recorded.

        with perfhooks.Profiler(schedule="wait=10 warmup=2 active=3 repeat=1") as prof:
            for batch in prof.steps(loader):
                train(batch)

    Args:
        schedule: Which steps to record: a :class:`Schedule`, a mapping, a string like ``"wait=10 warmup=2 active=3"``
            or a callable ``step -> ProfilerAction``.
        on_trace_ready: What to make of each window: handlers by name, as mappings or as objects, and plain callables,
            which get the torch profiler at once; one or a list.
        enabled: As ``torch.autograd.profiler.profile`` takes it, and so the next three: False records nothing.
        use_cpu: Whether to record the host; with ``use_device`` it says which ``activities`` there are.
        use_device: Which kind of device to record, as ``"cuda"``.
        use_kineto: Nothing: torch has no other recorder any more.
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
        enabled: bool = True,
        use_cpu: bool | None = None,
        use_device: str | None = None,
        use_kineto: bool | None = None,
        **options: Unpack[Options],
    ) -> None:
        del use_kineto  # torch has no other recorder any more
        if use_cpu is not None or use_device is not None:
            options["activities"] = legacy_activities(options.get("activities"), use_cpu, use_device)
        if not enabled:
            options["ranks"] = _nobody
        whole, steps = checked(options), Schedule.of(schedule)
        if whole["out"] is not None:
            check_out(whole["out"])
        course = LoopController(whole, steps, on_trace_ready, check_recording(recording(options)))
        super().__init__(course, on_trace_ready)
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
        lifetime.opened(self._course, self)
        try:
            self._course.start(step, out, run)
        finally:
            if self._course.is_over:
                lifetime.forget(self._course)

    def stop(self, cause: str | None = None) -> None:
        """End; a window that is being recorded is kept and marked partial. Nothing happens if it has ended already.

        Args:
            cause: Why, if something interrupted the training.
        """
        self.pause(cause)
        self._course.end()
        if self._course.is_over:
            lifetime.forget(self._course)

    def pause(self, cause: str | None = None) -> None:
        """Leave the loop for a while; as ``stop()``, but silent about windows that are still to come.

        Args:
            cause: Why; kept with a window that it cuts short.
        """
        self._course.pause(cause)

    def discard(self) -> Path | None:
        """End without a word, and forget the steps so far: it has turned out that they were none.

        Returns:
            The run folder, which another profiler may use; None if a window was recorded.
        """
        folder = self._course.discard()
        if folder is not None:
            lifetime.forget(self._course)
        return folder

    def abandon(self) -> None:
        """Do nothing from now on, and touch nothing that was recorded: this process is a forked child."""
        self._course.abandon()

    def leave(self, waited_s: float = 0.0) -> Path | None:
        """End with the process: stop, and wait for the files for at most ``exit_timeout`` seconds.

        Args:
            waited_s: Seconds that the process has waited for other profilers.

        Returns:
            The run whose files are not complete; None if they are.
        """
        if self._course.state is State.RUNNING:
            self.stop(lifetime.why_it_ends())
        return self._course.leave(waited_s)

    def adopt(self, window: Window) -> None:
        """Make the files of a window that was recorded by hand, before it was known that this profiler records none.

        Args:
            window: It has ended, and was not saved.
        """
        lifetime.opened(self._course, self)
        with lifetime.busy(), guard("keeping what was recorded", self._course.options["on_error"]):
            self._course.windows.adopt(window)

    def ensure_started(self) -> None:
        """Start if nobody ever has, as ``steps()`` does; nothing happens after a ``stop()``."""
        if self._course.state is State.NEW:
            self.start()

    def request(self, steps: int = 3, **recording: bool) -> None:
        """Record the next steps, whether or not the schedule does; where the schedule records them, those after them.

        Sixteen windows on request wait at most; more are refused.

        Args:
            steps: How many.
            **recording: What to record on top of what the options say: ``with_stack``, ``profile_memory``,
                ``record_shapes``, ``with_flops``, ``with_modules``.

        Raises:
            OptionError: ``steps`` or one of the options has a value that it cannot have.
            TypeError: No such option can be given to a request.
        """
        check_request(steps, recording)
        if self._course.state is State.ENDED:
            logger.warning("no window is recorded on request: the profiler has been stopped")
            return
        self._course.loop.ask(Asked("code", steps, options=recording))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(None if error is None else cause_of(error))
        observer = self._course.options["execution_trace_observer"]
        if observer is not None:
            observer.cleanup()

    def step(self) -> None:
        """Say that a step has ended and the next one begins."""
        pulse = self.pulse
        pulse.end_step(clock())
        pulse.step = step = pulse.step + 1
        if step >= pulse.due:
            if self._course.state is State.NEW:
                self._start_late(step)
            else:
                self._course.advance(step)

    def _start_late(self, step: int) -> None:
        """Nobody called ``start()``; torch records there as well, from the second step on."""
        requests = self._course.requests
        with guard("starting to profile", self._course.options["on_error"]):
            if not requests.is_until_stop and requests.opens(0):
                logger.warning(
                    "the profiler was not started before its first step, so the window that begins there is lost: "
                    "use it in a `with`, or call start()"
                )
        self.start(step)

    def data_arrived(self) -> None:
        """Say that the current step has its batch; its wait is then in the timeline. ``steps()`` says it by itself."""
        self.pulse.arrive(clock())

    @property
    def folder(self) -> Path | None:
        """The run folder; None where no files are written, and before the profiler has been started."""
        run = self._course.windows.handover.run
        return None if run is None else run.folder

    @property
    def is_running(self) -> bool:
        """Whether its loop goes on: it was started, and neither paused nor stopped."""
        return self._course.state is State.RUNNING

    @property
    def in_window(self) -> bool:
        """Whether the current step belongs to a window that is open, warm-up included."""
        return self._course.in_window

    def steps(self, loader: Iterable[T]) -> SteppingLoader[T]:
        """Iterate over ``loader``, label the wait for each batch and step after each.

        Args:
            loader: Any iterable. What comes back has a length if it has one, and can be iterated again each epoch.

        Raises:
            OptionError: It cannot be iterated.
        """
        return SteppingLoader(self, self.pulse, loader)

    def region(self, name: str) -> AbstractContextManager[Any]:
        """Label a part of the step while a window records; costs next to nothing otherwise.

        Ask for it anew each time: whether there is something to label is decided here, and not when it is entered.

        Args:
            name: One of :data:`perfhooks.core.labels.PARTS` counts in the step table; any other shows in the trace.
        """
        if name in rare_work.PARTS:
            return self._rare(name)
        return LabelledRange(str(name)) if self.pulse.is_recording else _NOTHING

    @contextmanager
    def _rare(self, part: str) -> Iterator[None]:
        """Time a validation or a checkpoint in every step."""
        began = clock()
        try:
            with LabelledRange(part) if self.pulse.is_recording else _NOTHING:
                yield
        finally:
            self.pulse.set_aside(began, clock(), part)

    def when_finished(self, listener: Callable[[Capture, Place], object]) -> None:
        """Have ``listener`` called on the training thread, at the end of some later step, when a window has its files.

        Args:
            listener: Takes the facts of the window and where its files are.
        """
        self._course.windows.handover.listeners.append(listener)

    def when_saved(self, listener: Callable[..., object]) -> None:
        """Have ``listener`` called on the training thread when the trace of a window is saved.

        Args:
            listener: Gets the folder of the run, and as ``is_speaker`` whether this rank reports the run.
        """
        self._course.windows.handover.when_saved.append(listener)

    def say_less(self) -> None:
        """Leave the results to the exit summary of `perfhooks run`: the log names only windows and the report."""
        self._course.windows.handover.is_summed_up = self._course.loop.is_quiet = True

    def steps_end_with(self, what: str) -> None:
        """Have ``run.json`` say what ends a step.

        Args:
            what: See `perfhooks.record.launch.step_detectors.Mode`.
        """
        self._course.windows.membership.steps_by = StepsBy(what=what)

    def speak_as(self, framework: str) -> None:
        """Have advice given in the words of a framework.

        Args:
            framework: As `perfhooks.analysis.findings.faces` calls it; of any other, advice is in torch's own words.
        """
        self._course.windows.handover.framework = framework

    def why_nothing(self) -> str | None:
        """Return why no window was recorded or saved; None if one was saved."""
        windows = self._course.windows
        if windows.handover.places:
            return None
        return "no window could be saved, as the log says" if windows.begun else self._course.why_nothing()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every recorded window has its files.

        Args:
            timeout: How long at most, in seconds; None waits for as long as it takes.

        Returns:
            Whether they have.
        """
        return self._course.windows.handover.tasks.wait(timeout)

    @property
    def windows_left(self) -> int:
        """How many recorded windows have no files yet, as far as was heard of them."""
        return self._course.windows.handover.tasks.windows_left

    def summary(self, format: Literal["table", "markdown"] = "table") -> str:
        """What all windows so far say, as text; waits for their files. A notebook shows it as it is.

        Args:
            format: ``"table"``, the labels of your own in the last one, then the step tables of all; ``"markdown"``,
                what was run, where the step goes, what to do about it and the largest operators of the last one, in at
                most 2,000 tokens.

        Raises:
            OptionError: There is no such format.
        """
        from perfhooks.report.page.markdown import Text, of_run
        from perfhooks.report.page.terminal_tables import cost_line, label_table, step_table

        if format not in ("table", "markdown"):
            raise OptionError(f"format must be table or markdown, got {format!r}")
        self.wait()
        places = self._course.windows.handover.places
        if not places:
            return self._course.why_nothing()
        captures = [place.load() for place in places if place.capture_file.exists()]
        table = step_table([place.artifact(STEPS) for place in places])
        if format == "markdown":
            return Text.of(of_run(places[-1].run), is_markdown=True)
        parts = [label_table(places[-1].artifact(LABELS)), table, cost_line(captures)]
        return Text.of("\n\n".join(part for part in parts if part))
