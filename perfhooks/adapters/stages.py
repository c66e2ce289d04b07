from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

from perfhooks.adapters.parts import Parts
from perfhooks.adapters.results import last_step
from perfhooks.core.errors import OptionError
from perfhooks.core.guard import cause_of, guard, logger
from perfhooks.core.schedule import WHEN_SETTLED
from perfhooks.record.loop.profiler import Profiler

if TYPE_CHECKING:
    import os

    from perfhooks.core.options import Options
    from perfhooks.record.loop.handover import HandlerLike
    from perfhooks.record.loop.profiler import ScheduleLike
    from perfhooks.report.page.markdown import Text
    from perfhooks.run.capture import Capture, Place

SCHEDULE: Final = WHEN_SETTLED


class Labels(Protocol):
    """Labels for the parts of a step, which exist only while a window is open."""

    def put(self, loop: Any, *, waiting: bool) -> None:
        """Add the labels when a window opens. ``waiting`` is whether the loop waits for a batch."""

    def take_off(self, loop: Any, /) -> None:
        """Remove all labels and restore wrapped methods."""


def schedules(
    schedule: ScheduleLike | Mapping[str, ScheduleLike],
    stages: Sequence[str] | Mapping[str, str],
    default: ScheduleLike = SCHEDULE,
) -> dict[str, ScheduleLike]:
    """Return the schedule of each stage.

    Raises:
        OptionError: A mapping contains names of stages and also other keys.
    """
    names = stages if isinstance(stages, Mapping) else {name: name for name in stages}
    if not isinstance(schedule, Mapping) or not any(name in schedule for name in names):
        return {"train": default if schedule is None else schedule}  # type: ignore[dict-item]  # checked later
    unknown = [name for name in schedule if name not in names]
    if unknown:
        raise OptionError(f"schedule must have only loops as keys ({', '.join(names)}), got {unknown[0]!r}")
    by_loop = cast("Mapping[str, ScheduleLike]", schedule)
    return {names[name]: SCHEDULE if value is None else value for name, value in by_loop.items()}


class Stage:
    """Profiler and labels for one loop of a framework.

        stage = Stage("train", "wait=10 warmup=2 active=3", options={})
        with stage.running(trainer, out="perf"):
            ...  # the loop, which calls stage.step() at the end of each step

    A copy by `copy.deepcopy` or `pickle` has the same options and step count, but has not started. By default the
    memory of a window is freed when its trace is saved. For ``labels`` and ``listener``, see `Adapter`.
    """

    def __init__(
        self,
        name: str,
        schedule: ScheduleLike,
        on_trace_ready: HandlerLike | Sequence[HandlerLike] | None = None,
        *,
        options: Options,
        labels: Callable[[Profiler, str], Labels] | None = None,
        listener: Callable[[Capture, Place], object] | None = None,
        framework: str = "",
    ) -> None:
        named: Options = {"keep_results": False, **options, "stage": name}
        self._made_of: dict[str, Any] = {
            "name": name, "schedule": schedule, "on_trace_ready": on_trace_ready,
            "options": options, "labels": labels, "listener": listener, "framework": framework,
        }  # fmt: skip  # a line for the stage, and a line for the recording
        self.name = name
        self.profiler = Profiler(schedule=schedule, on_trace_ready=on_trace_ready, **named)
        self.profiler.stop()
        self.profiler.speak_as(framework)
        self.labels: Labels = Parts(self.profiler, {}) if labels is None else labels(self.profiler, name)
        self.parts = self.labels if isinstance(self.labels, Parts) else Parts(self.profiler, {})
        """Labels for parts of a step that begin and end in hooks; without effect outside of windows."""
        self.data_arrived = self.profiler.data_arrived
        """Function to call when the current step has received its batch."""
        self._step = self.profiler.step
        self._on_error = options.get("on_error", "warn")
        self._first: int | None = None
        self._loop: Any = None
        self._begun = self._labelled = False
        self._global_step: Callable[[], int] | None = None
        self._global_steps: dict[int, int] = {}
        if listener is not None:
            self.profiler.when_finished(listener)

    @property
    def count(self) -> int:
        """Number of finished steps, including steps before a copy or a resumption."""
        return self.profiler.step_num if self._first is None else self._first

    def begin(
        self,
        loop: Any = None,
        *,
        step: int | None = None,
        out: str | os.PathLike[str] | None = None,
        run: str | None = None,
        global_step: Callable[[], int] | None = None,
    ) -> None:
        """Begin the next step of the loop. A step that has already begun continues.

        Args:
            loop: Object for the labels, for example the trainer.
            step: Number of the step; None continues the count.
            out: Folder for runs, unless the user set it.
            run: Name of the run, unless the user set it.
            global_step: Function that returns the framework's step count, see `global_step_of`.
        """
        self._begun = True
        first, self._first = self._first, None
        self._loop, self._global_step = loop, global_step
        with guard("starting to profile", self._on_error):
            try:
                self.profiler.start(first if step is None else step, out=out, run=run)
            except OptionError as error:
                logger.warning("%s: counting continues at %d", error, self.profiler.step_num)
                self.profiler.start(out=out, run=run)
        if self.profiler.in_window:
            self._follow(waiting=False)

    def resume(self, step: int) -> None:
        self._first = step

    def step(self) -> None:
        """End a step, and begin the next step with the wait for data. Before `begin`, `step` has no effect."""
        if not self._begun:
            return
        self._step()
        if self.profiler.in_window or self._labelled:
            self._follow(waiting=True)

    def pause(self, cause: str | None = None) -> None:
        """Interrupt the loop, or report the failure ``cause``. An open window is saved."""
        self._unlabel()
        self._begun = False
        self._loop = self._global_step = None
        self.profiler.pause(cause)

    @contextmanager
    def running(self, loop: Any = None, *, for_good: bool = True, **begin: Any) -> Iterator[None]:
        """Profile the loop that runs inside the context.

        Unless ``for_good`` is set, a later call can continue the loop.
        """
        cause = None
        self.begin(loop, **begin)
        try:
            yield
        except BaseException as error:
            cause = cause_of(error)
            raise
        finally:
            (self.stop if for_good else self.pause)(cause)

    def stop(self, cause: str | None = None) -> None:
        self.pause(cause)
        self.profiler.stop(cause)

    def global_step_of(self, capture: Capture) -> int | None:
        """Return the framework's step count at the end of a window, for the framework's loggers."""
        last = last_step(capture)
        count = self._global_steps.get(last)
        self._global_steps = {step: later for step, later in self._global_steps.items() if step > last}
        return count

    def _follow(self, *, waiting: bool) -> None:
        is_open = self.profiler.in_window
        with guard("labelling the parts of a step", self._on_error):
            if is_open and self._global_step is not None:
                self._global_steps[self.profiler.step_num] = self._global_step()
            if not is_open:
                self._unlabel()
            elif not self._labelled:
                self._labelled = True
                self.labels.put(self._loop, waiting=waiting)

    def _unlabel(self) -> None:
        labelled, self._labelled = self._labelled, False
        if labelled:
            with guard("removing the labels of a step", self._on_error):
                self.labels.take_off(self._loop)

    def __getstate__(self) -> dict[str, Any]:
        return {"made_of": self._made_of, "first": self.count}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["made_of"])  # type: ignore[misc]  # constructs the copy like the original
        self._first = state["first"]


class _Unprofiled(Stage):
    def begin(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


class Stages(dict[str, Stage]):
    """The stages of a training, keyed by name. Any other name returns `unprofiled`."""

    def __init__(self, stages: Iterable[tuple[str, Stage]] = ()) -> None:
        super().__init__(stages)
        self.unprofiled: Stage = _Unprofiled("none", "on request", [], options={})
        """Inactive stage, so that callers need not check whether a loop is profiled."""

    def __missing__(self, _: str) -> Stage:
        return self.unprofiled

    @classmethod
    def of(
        cls,
        schedules: Mapping[str, ScheduleLike],
        on_trace_ready: HandlerLike | Sequence[HandlerLike] | None = None,
        **stage: Any,
    ) -> Stages:
        """Return a stage for each schedule, all with the same options. Raise an OptionError for invalid options."""
        return cls((name, Stage(name, schedule, on_trace_ready, **stage)) for name, schedule in schedules.items())

    @property
    def profilers(self) -> dict[str, Profiler]:
        return {name: stage.profiler for name, stage in self.items()}

    def counts(self) -> dict[str, int]:
        """Return the number of finished steps of each stage, for a checkpoint; see `read_counts`."""
        return {name: stage.count for name, stage in self.items()}

    def resume(self, counts: Mapping[str, int]) -> None:
        """Set the next step of each stage from a checkpoint."""
        for name, stage in self.items():
            if name in counts:
                stage.resume(counts[name])

    def stop(self, cause: str | None = None) -> None:
        """End all stages. ``cause`` is the reason of an early end."""
        for stage in self.values():
            stage.stop(cause)

    @contextmanager
    def until_error(self) -> Iterator[None]:
        """Stop all stages if an exception leaves the context, with the exception as the reason."""
        try:
            yield
        except BaseException as error:
            self.stop(cause_of(error))
            raise

    def summary(self, format: Literal["table", "markdown"] = "table") -> Text:
        """Wait for the files of all windows so far, and return a summary of these windows.

        Notebooks show the summary formatted.

        Args:
            format: ``"table"``, the step tables of each loop; ``"markdown"``, the run, the parts of a step in the last
                window, and the findings.

        Raises:
            OptionError: The format is unknown.
        """
        from perfhooks.report.page.markdown import Text

        texts = dict.fromkeys(profiler.summary(format) for profiler in self.profilers.values())
        return Text.of("\n\n".join(texts), is_markdown=format == "markdown")
