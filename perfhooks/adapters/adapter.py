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


class Adapter:
    """Base class for the callback or hook of an integration, before the framework's base class in the list of bases.

        class ProfilerCallback(adapters.Adapter, Callback):
            def __init__(self, schedule=None, on_trace_ready=None, *, step_unit="batch", **options):
                super().__init__(schedule, on_trace_ready, options, framework="Frame", loops=("train", "validate"))

    Args:
        schedule: Schedule of the training, or a mapping of loops to schedules; None records one small window.
        on_trace_ready: Handlers of each window, as for `perfhooks.Profiler`.
        options: Keyword arguments of the user for the profilers.
        framework: Name of the framework in messages and findings.
        loops: Valid keys of a mapping of schedules; or a mapping from these keys to stage names.
        step_unit: Unit of a training step, ``"batch"`` or ``"optimizer"``.
        labels: Function that returns the labels of a stage, given its profiler and name.
        listener: Function to call when the files of a window are written, see `Profiler.when_finished`.
        default: Default schedule of the training.

    Raises:
        OptionError: An argument is invalid.
        TypeError: An option is unknown.
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
        """All stages, keyed by name. A name without a stage returns an inactive stage."""
        self._by_update = step_unit == "optimizer"
        self._train = self._stages["train"]
        self._evaluation = self._stages.unprofiled
        """Stage of the loop that interrupts the training now, for example a validation."""

    @property
    def profilers(self) -> dict[str, Profiler]:
        return self._stages.profilers

    def summary(self, format: Literal["table", "markdown"] = "table") -> Text:
        """Return a summary of all windows so far, as tables or Markdown.

        The call waits for the files of all windows.
        """
        return self._stages.summary(format)
