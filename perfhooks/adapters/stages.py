"""A framework's loops, each with a schedule, a count of steps and windows of its own."""

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
"""What an integration profiles unless it is given a schedule."""


class Labels(Protocol):
    """Labels the parts of a stage's steps; asked for it only while a window is open."""

    def put(self, loop: Any, *, waiting: bool) -> None:
        """A window has opened.

        Args:
            loop: What `Stage.begin` was given.
            waiting: Whether what follows is the wait for the next batch; otherwise the loop has not begun yet.
        """

    def take_off(self, loop: Any, /) -> None:
        """The window has closed: close all labels, and leave everything as it was."""


def schedules(
    schedule: ScheduleLike | Mapping[str, ScheduleLike],
    stages: Sequence[str] | Mapping[str, str],
    default: ScheduleLike = SCHEDULE,
) -> dict[str, ScheduleLike]:
    """The schedule of each stage that has one.

    Args:
        schedule: One for training, or a mapping of stages to schedules; None stands for the usual one.
        stages: The names that the mapping may use; as a mapping, what each of them is called here.
        default: Of training, where nothing is said.

    Raises:
        OptionError: Some keys are stages, and others are not.
    """
    names = stages if isinstance(stages, Mapping) else {name: name for name in stages}
    if not isinstance(schedule, Mapping) or not any(name in schedule for name in names):
        return {"train": default if schedule is None else schedule}  # type: ignore[dict-item]  # of fields, or wrong
    unknown = [name for name in schedule if name not in names]
    if unknown:
        raise OptionError(f"schedule must name loops, {', '.join(names)}, and nothing else, got {unknown[0]!r}")
    wanted = cast("Mapping[str, ScheduleLike]", schedule)
    return {names[name]: SCHEDULE if one is None else one for name, one in wanted.items()}


class Stage:
    """One loop: its profiler, and the labels that come and go with the profiler's windows.

        stage = Stage("train", "wait=10 warmup=2 active=3", options={})
        with stage.running(trainer, out="perf"):
            ...  # the loop, which calls stage.step() at the end of each step

    A copy, be it by `copy.deepcopy` or by `pickle`, is a stage that has not begun, with the same options and count.

    Args:
        name: train, validate, test or predict.
        schedule: Which of its steps to record.
        on_trace_ready: What to make of each window.
        options: The profiler's. A window's memory is freed as soon as its trace is saved, unless they say otherwise.
        labels: Makes what labels the parts of its steps.
        listener: Called when a window has its files, as by `Profiler.when_finished`.
        framework: How the framework is called, for advice in its words.
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
        }  # fmt: skip  # one line for what the stage is, one for how it is recorded
        self.name = name
        self.profiler = Profiler(schedule=schedule, on_trace_ready=on_trace_ready, **named)
        # the framework says when its loop begins: a step before that is none of ours, and starts nothing
        self.profiler.stop()
        self.profiler.speak_as(framework)
        self.labels: Labels = Parts(self.profiler, {}) if labels is None else labels(self.profiler, name)
        self.parts = self.labels if isinstance(self.labels, Parts) else Parts(self.profiler, {})
        """The labels, for hooks that begin and end parts themselves; between windows nothing comes of it."""
        self.data_arrived = self.profiler.data_arrived
        """Says that the current step has its batch."""
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
        """How many steps it has done, those before a copy or a resumption included."""
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
        """The loop's next step begins, after others or as its first; nothing happens if it has begun already.

        Args:
            loop: Whatever the labels need to know.
            step: The number of the step that begins; None goes on counting.
            out: The folder for runs, unless the user gave one.
            run: Name of the run, unless the user gave one.
            global_step: Tells the framework's own count of steps, see `global_step_of`.
        """
        self._begun = True
        first, self._first = self._first, None
        self._loop, self._global_step = loop, global_step
        with guard("starting to profile", self._on_error):
            try:
                self.profiler.start(first if step is None else step, out=out, run=run)
            except OptionError as error:  # of a step that no checkpoint should hold
                logger.warning("%s: counting goes on from %d", error, self.profiler.step_num)
                self.profiler.start(out=out, run=run)
        if self.profiler.in_window:
            self._follow(waiting=False)

    def resume(self, step: int) -> None:
        """Go on with this step when it begins next."""
        self._first = step

    def step(self) -> None:
        """A step ends, and the next one begins with its wait for data; nothing happens before `begin`."""
        if not self._begun:
            return
        self._step()
        if self.profiler.in_window or self._labelled:
            self._follow(waiting=True)

    def pause(self, cause: str | None = None) -> None:
        """The loop ended for now, or something cut it short; what is being recorded is kept."""
        self._unlabel()
        self._begun = False
        self._loop = self._global_step = None
        self.profiler.pause(cause)

    @contextmanager
    def running(self, loop: Any = None, *, for_good: bool = True, **begin: Any) -> Iterator[None]:
        """Begin, and end with whatever ends the context.

        Args:
            loop: See `begin`.
            for_good: Whether the loop will not go on.
            **begin: See `begin`.
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
        """The loop ended for good."""
        self.pause(cause)
        self.profiler.stop(cause)

    def global_step_of(self, capture: Capture) -> int | None:
        """The framework's own count of steps when a window ended: where its loggers are to put what the window says."""
        last = last_step(capture)
        count = self._global_steps.get(last)
        self._global_steps = {step: later for step, later in self._global_steps.items() if step > last}
        return count

    def _follow(self, *, waiting: bool) -> None:
        """What is due at the beginning of a step in a window, or after one."""
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
            with guard("taking the labels away", self._on_error):
                self.labels.take_off(self._loop)

    def __getstate__(self) -> dict[str, Any]:
        return {"made_of": self._made_of, "first": self.count}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["made_of"])  # type: ignore[misc]  # a copy is made as the stage itself was
        self._first = state["first"]


class _Unprofiled(Stage):
    """Stands for every loop that has no schedule: as it never begins, nothing comes of what it is told."""

    def begin(self, *_: Any, **__: Any) -> None:
        """Nothing."""


class Stages(dict[str, Stage]):
    """The stages of one training, by name; under any other name is `unprofiled`, which is none of them.

    Args:
        stages: By name.
    """

    def __init__(self, stages: Iterable[tuple[str, Stage]] = ()) -> None:
        super().__init__(stages)
        self.unprofiled: Stage = _Unprofiled("none", "on request", [], options={})
        """For a loop that nobody wants profiled: does nothing, so that nobody needs to ask whether there is a stage."""

    def __missing__(self, _: str) -> Stage:
        return self.unprofiled

    @classmethod
    def of(
        cls,
        schedules: Mapping[str, ScheduleLike],
        on_trace_ready: HandlerLike | Sequence[HandlerLike] | None = None,
        **stage: Any,
    ) -> Stages:
        """A stage for each schedule, all with the same options.

        Args:
            schedules: By stage, as `schedules` gives them.
            on_trace_ready: See `Stage`.
            **stage: What else `Stage` takes.

        Raises:
            OptionError: An option has a value that it cannot have.
        """
        return cls((name, Stage(name, schedule, on_trace_ready, **stage)) for name, schedule in schedules.items())

    @property
    def profilers(self) -> dict[str, Profiler]:
        """The profiler of each."""
        return {name: stage.profiler for name, stage in self.items()}

    def counts(self) -> dict[str, int]:
        """How many steps each has done: what to keep in a checkpoint. `read_counts` reads it."""
        return {name: stage.count for name, stage in self.items()}

    def resume(self, counts: Mapping[str, int]) -> None:
        """Have each stage go on where a checkpoint says, when it begins next."""
        for name, stage in self.items():
            if name in counts:
                stage.resume(counts[name])

    def stop(self, cause: str | None = None) -> None:
        """All is over.

        Args:
            cause: What cut it short, if something did.
        """
        for stage in self.values():
            stage.stop(cause)

    @contextmanager
    def until_error(self) -> Iterator[None]:
        """An exception that leaves the context ends all stages, and is why."""
        try:
            yield
        except BaseException as error:
            self.stop(cause_of(error))
            raise

    def summary(self, format: Literal["table", "markdown"] = "table") -> Text:
        """What all windows so far say, as text; waits for their files. A notebook shows it as it is.

        Args:
            format: ``"table"``, the step tables of each loop; ``"markdown"``, what was run, where the step goes in its
                last window and what to do about it.

        Raises:
            OptionError: There is no such format.
        """
        from perfhooks.report.page.markdown import Text

        # loops of one run have one page
        told = dict.fromkeys(profiler.summary(format) for profiler in self.profilers.values())
        return Text.of("\n\n".join(told), is_markdown=format == "markdown")
