"""What the callbacks and hooks of all frameworks have: the constructor's work, and what users ask of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from perfhooks.adapters.checks import check
from perfhooks.adapters.stages import SCHEDULE, Labels, Stages, schedules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from perfhooks.core.options import Options
    from perfhooks.record.loop.handover import HandlerLike
    from perfhooks.record.loop.profiler import Profiler, ScheduleLike
    from perfhooks.report.page.markdown import Text
    from perfhooks.run.capture import Capture, Place


class Face:
    """A callback or a hook; a framework's own class of callbacks stands behind it among the bases.

        class ProfilerCallback(adapting.Face, Callback):
            def __init__(self, schedule=None, on_trace_ready=None, *, step_unit="batch", **options):
                super().__init__(schedule, on_trace_ready, options, framework="Frame", loops=("train", "validate"))

    Args:
        schedule: One for training, or a mapping of loops to schedules; None records one small window of the training.
        on_trace_ready: What to make of each window, as for `perfhooks.Profiler`.
        options: The keywords that the user gave, for the profilers.
        framework: How the framework is called, for messages, and for advice in its words.
        loops: The names that a mapping of schedules may use; as a mapping, what each of them is called here.
        step_unit: What a training step is, ``"batch"`` or ``"optimizer"``.
        labels: Makes what labels the parts of a stage's steps, of its profiler and its name.
        listener: Called when a window has its files, as by `Profiler.when_finished`.
        default: The schedule of training, where nothing is said.

    Raises:
        OptionError: An argument has a value that it cannot have.
        TypeError: No option has this name.
    """

    def __init__(
        self,
        schedule: ScheduleLike | Mapping[str, ScheduleLike],
        on_trace_ready: HandlerLike | Sequence[HandlerLike] | None,
        options: Options,
        *,
        framework: str,
        loops: Sequence[str] | Mapping[str, str],
        step_unit: str = "batch",
        labels: Callable[[Profiler, str], Labels] | None = None,
        listener: Callable[[Capture, Place], object] | None = None,
        default: ScheduleLike = SCHEDULE,
    ) -> None:
        check(type(self), options, framework=framework, step_unit=step_unit)
        self._stages = Stages.of(
            schedules(schedule, loops, default),
            on_trace_ready,
            options=options,
            labels=labels,
            listener=listener,
            framework=framework,
        )
        """The loops that have a schedule; under other names is a stage that does nothing."""
        self._by_update = step_unit == "optimizer"
        self._train = self._stages["train"]
        self._evaluation = self._stages.unprofiled
        """The loop beside the training that runs now."""

    @property
    def profilers(self) -> dict[str, Profiler]:
        """The profiler of each loop that has a schedule."""
        return self._stages.profilers

    def summary(self, format: Literal["table", "markdown"] = "table") -> Text:
        """What all windows so far say, as tables or as one page of markdown; waits for their files."""
        return self._stages.summary(format)
