from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from typing_extensions import Self, Unpack

from perfhooks.core.errors import OptionError
from perfhooks.core.guard import cause_of, enable_console_log, guard, logger
from perfhooks.core.options import Options, check_options, check_request, recording, with_options
from perfhooks.core.schedule import Schedule
from perfhooks.record.loop.controller import LoopController, LoopState
from perfhooks.record.loop.ending import lifetime
from perfhooks.record.loop.like_torch.accepted import check_recording, legacy_activities
from perfhooks.record.loop.like_torch.interface import TorchInterface
from perfhooks.record.loop.like_torch.labelled_range import LabelledRange
from perfhooks.record.loop.loader import SteppingLoader
from perfhooks.record.watch.loops import LoopRequest
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

_NO_LABEL: Final = nullcontext()


def _selects_no_rank(_: Job) -> bool:
    return False


@with_options()
class Profiler(TorchInterface):
    """Profiles the steps of a loop on a schedule, in place of ``torch.profiler.profile``.

    Without a schedule, the profiler records from start to stop, as torch does. With a schedule or ``out``, the profiler
    writes a run folder. Each window has a trace, a step table and an operator table, and stacks if they were recorded.

        with perfhooks.Profiler(schedule="wait=10 warmup=2 active=3 repeat=1") as prof:
            for batch in prof.steps(loader):
                train(batch)

    Args:
        schedule: Steps to record: a :class:`Schedule`, a mapping, a string like ``"wait=10 warmup=2 active=3"``
            or a callable ``step -> ProfilerAction``.
        on_trace_ready: Handlers for each window, one or a list: names, mappings, handler objects or plain callables.
            A callable gets the torch profiler when the window ends.
        enabled: False records nothing. ``enabled`` and the next three options are from
            ``torch.autograd.profiler.profile``.
        use_cpu: Whether to record the host. ``use_cpu`` and ``use_device`` replace ``activities``.
        use_device: Kind of device to record, for example ``"cuda"``.
        use_kineto: Ignored, because Kineto is torch's only recorder.
        **options: See :class:`Options`.

    Raises:
        OptionError: An argument is invalid.
        TypeError: An option is unknown.
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
        del use_kineto
        if use_cpu is not None or use_device is not None:
            options["activities"] = legacy_activities(options.get("activities"), use_cpu, use_device)
        if not enabled:
            options["ranks"] = _selects_no_rank
        all_options, steps = check_options(options), Schedule.of(schedule)
        if all_options["out"] is not None:
            check_out(all_options["out"])
        course = LoopController(all_options, steps, on_trace_ready, check_recording(recording(options)))
        super().__init__(course, on_trace_ready)
        enable_console_log()

    def start(
        self, step: int | None = None, *, out: str | os.PathLike[str] | None = None, run: str | None = None
    ) -> None:
        """Start the loop if it has not started yet.

        Args:
            step: Number of the current step, for a resumed training; None continues the count, initially at 0.
                Inside a window's warm-up or active steps, recording starts with the next window.
            out: Folder of runs, if the option ``out`` is not set.
            run: Name of the run, if the option ``run`` is not set.

        Raises:
            OptionError: ``step`` is negative or no integer.
        """
        lifetime.register(self._course, self)
        try:
            self._course.start(step, out, run)
        finally:
            if self._course.is_over:
                lifetime.unregister(self._course)

    def stop(self, cause: str | None = None) -> None:
        """End the loop, if it has not ended yet. An open window is kept and marked as partial.

        Args:
            cause: Reason, if the training was interrupted.
        """
        self.pause(cause)
        self._course.end()
        if self._course.is_over:
            lifetime.unregister(self._course)

    def pause(self, cause: str | None = None) -> None:
        """Pause the loop. Unlike ``stop()``, no warning is logged about windows that are still to come.

        Args:
            cause: Reason, which is saved with a window that ends early.
        """
        self._course.pause(cause)

    def discard(self) -> Path | None:
        """End without a message, and remove the steps so far, which were no training steps.

        Returns:
            The run folder, which another profiler may use; None if a window was recorded.
        """
        folder = self._course.discard()
        if folder is not None:
            lifetime.unregister(self._course)
        return folder

    def abandon(self) -> None:
        """Disable the profiler in a forked child, and leave all recorded data to the parent."""
        self._course.abandon()

    def leave(self, waited_s: float = 0.0) -> Path | None:
        """Stop at the end of the process, and wait for the files for at most ``exit_timeout`` seconds.

        Args:
            waited_s: Seconds that the process has already waited for other profilers.

        Returns:
            The run folder if its files are still incomplete after that time, else None.
        """
        if self._course.state is LoopState.RUNNING:
            self.stop(lifetime.why_it_ends())
        return self._course.leave(waited_s)

    def adopt(self, window: Window) -> None:
        """Save a window that was recorded before this loop, because the loop recorded no window.

        Args:
            window: The window, ended and not saved.
        """
        lifetime.register(self._course, self)
        with lifetime.busy(), guard("saving the first steps", self._course.options["on_error"]):
            self._course.windows.adopt(window)

    def ensure_started(self) -> None:
        """Start the loop if it was never started. A stopped loop stays stopped."""
        if self._course.state is LoopState.NEW:
            self.start()

    def request(self, steps: int = 3, **recording: bool) -> None:
        """Record the next steps that the schedule does not record.

        If 16 requested windows wait, new requests are refused.

        Args:
            steps: Number of steps.
            **recording: Additional options for this window: ``with_stack``, ``profile_memory``,
                ``record_shapes``, ``with_flops``, ``with_modules``.

        Raises:
            OptionError: ``steps`` or an option has an invalid value.
            TypeError: The option is not available for requests.
        """
        check_request(steps, recording)
        if self._course.state is LoopState.ENDED:
            logger.warning("no window is recorded on request: the profiler has been stopped")
            return
        self._course.loop.ask(LoopRequest("code", steps, options=recording))

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
        """Report the end of the current step and the start of the next one."""
        pulse = self.pulse
        pulse.end_step(clock())
        pulse.step = step = pulse.step + 1
        if step >= pulse.due:
            if self._course.state is LoopState.NEW:
                self._start_late(step)
            else:
                self._course.advance(step)

    def _start_late(self, step: int) -> None:
        requests = self._course.requests
        with guard("starting to profile", self._course.options["on_error"]):
            if not requests.is_until_stop and requests.opens(0):
                logger.warning(
                    "the profiler was not started before its first step, so the window that begins there is lost: "
                    "use it in a `with`, or call start()"
                )
        self.start(step)

    def data_arrived(self) -> None:
        """Report that the current step has its batch, for the data wait in the timeline.

        ``steps()`` calls this method.
        """
        self.pulse.arrive(clock())

    @property
    def folder(self) -> Path | None:
        """Run folder; None if no files are written, or before the start."""
        run = self._course.windows.handover.run
        return None if run is None else run.folder

    @property
    def is_running(self) -> bool:
        """Whether the loop runs: started, and neither paused nor stopped."""
        return self._course.state is LoopState.RUNNING

    @property
    def in_window(self) -> bool:
        """Whether a window is open, warm-up included."""
        return self._course.windows.current is not None  # each call costs an idle step of an integration

    def steps(self, loader: Iterable[T]) -> SteppingLoader[T]:
        """Iterate over ``loader``, label the wait for each batch and report a step after each batch.

        Args:
            loader: Any iterable. The result has a length if the loader has one, and can be iterated once per epoch.

        Raises:
            OptionError: ``loader`` cannot be iterated.
        """
        return SteppingLoader(self, self.pulse, loader)

    def region(self, name: str) -> AbstractContextManager[Any]:
        """Return a context manager that labels a part of the step while a window records.

        Outside of windows a label costs almost nothing. Do not reuse the result for later parts: this call decides
        whether the part is labelled.

        Args:
            name: A name of :data:`perfhooks.core.labels.PARTS` for the step table; other names appear in the trace.
        """
        if name in rare_work.PARTS:
            return self._rare(name)
        return LabelledRange(str(name)) if self.pulse.is_recording else _NO_LABEL

    @contextmanager
    def _rare(self, part: str) -> Iterator[None]:
        began = clock()
        try:
            with LabelledRange(part) if self.pulse.is_recording else _NO_LABEL:
                yield
        finally:
            self.pulse.set_aside(began, clock(), part)

    def when_finished(self, listener: Callable[[Capture, Place], object]) -> None:
        """Call ``listener`` on the training thread at the end of a later step, when a window has its files.

        Args:
            listener: Function of the window's facts and folder.
        """
        self._course.windows.handover.listeners.append(listener)

    def when_saved(self, listener: Callable[..., object]) -> None:
        """Call ``listener`` on the training thread when the trace of a window is saved.

        Args:
            listener: Function of the run folder, and ``is_speaker``: whether this rank logs for the run.
        """
        self._course.windows.handover.when_saved.append(listener)

    def say_less(self) -> None:
        """Log only windows and the report. The exit summary of `perfhooks run` shows the results."""
        self._course.windows.handover.is_summed_up = self._course.loop.is_quiet = True

    def steps_end_with(self, what: str) -> None:
        """Store in ``run.json`` which event ends a step.

        Args:
            what: See `perfhooks.record.launch.step_detectors.Mode`.
        """
        self._course.windows.membership.steps_by = StepsBy(what=what)

    def speak_as(self, framework: str) -> None:
        """Set the framework whose API names are used in advice.

        Args:
            framework: Name as in `perfhooks.analysis.findings.frameworks`. For unknown frameworks, advice uses torch's
                names.
        """
        self._course.windows.handover.framework = framework

    def why_nothing(self) -> str | None:
        """Return the reason that no window was recorded or saved; None if a window was saved."""
        windows = self._course.windows
        if windows.handover.places:
            return None
        return "no window could be saved, see the log" if windows.begun else self._course.why_nothing()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every recorded window has its files.

        Args:
            timeout: Maximum wait in seconds; None waits without a limit.

        Returns:
            Whether all windows have their files.
        """
        return self._course.windows.handover.tasks.wait(timeout)

    @property
    def windows_left(self) -> int:
        """Number of recorded windows without files, by the last messages of the worker."""
        return self._course.windows.handover.tasks.windows_left

    def summary(self, format: Literal["table", "markdown"] = "table") -> str:
        """Return the results of all windows as text. The call waits for the files of all windows.

        Args:
            format: ``"table"``: the user's labels of the last window, and the step tables of all windows.
                ``"markdown"``: configuration, step time, advice and the largest operators of the last window, in
                at most 2,000 tokens.

        Raises:
            OptionError: ``format`` is unknown.
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
