"""The hook: translates mmengine's hook points into start, step and stop of a profiler."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from mmengine.hooks import Hook

import perfhooks
from perfhooks import Profiler, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from perfhooks.profiler import ScheduleLike
    from perfhooks.spool import HandlerLike

DEFAULT_SCHEDULE: Final = Schedule(skip_first=10, wait=0, warmup=2, active=3, repeat=1)


class ProfilerHook(Hook):  # type: ignore[misc]  # mmengine ships no types
    """Profiles the iterations of a training on a schedule; a step is an iteration, numbered by ``runner.iter``.

    In a config file: ``custom_hooks = [dict(type="perfhooks_mmengine.ProfilerHook", with_stack=True)]``.

    Args:
        schedule: Which iterations to record: a mapping, a string like ``"wait=200 warmup=2 active=3 repeat=2"``, or
            what :class:`perfhooks.Profiler` takes; None records iterations 12 to 14, after two of warm-up.
        on_trace_ready: What to make of each window, as :class:`perfhooks.Profiler` takes it.
        **options: See :class:`perfhooks.Options`. ``out`` defaults to the folder ``perf`` in ``runner.log_dir``,
            ``run`` to ``runner.timestamp``, ``keep_results`` to False.

    Raises:
        OptionError: An argument has a value that it cannot have.
        TypeError: No option has this name.
    """

    priority = "VERY_LOW"

    def __init__(
        self,
        *,
        schedule: ScheduleLike = None,
        on_trace_ready: HandlerLike | Sequence[HandlerLike] | None = None,
        **options: Unpack[perfhooks.Options],
    ) -> None:
        options.setdefault("keep_results", False)
        chosen = DEFAULT_SCHEDULE if schedule is None else schedule
        self.profiler = Profiler(schedule=chosen, on_trace_ready=on_trace_ready, **options)

    def before_train(self, runner: Any) -> None:
        """Start, now that the model has its weights and a resumed training its iteration."""
        self.profiler.start(step=runner.iter, out=os.path.join(runner.log_dir, "perf"), run=runner.timestamp)  # noqa: PTH118 -- log_dir may be a URL

    def after_train_iter(
        self,
        runner: Any,  # noqa: ARG002 -- mmengine's form
        batch_idx: int,  # noqa: ARG002
        data_batch: Any = None,  # noqa: ARG002
        outputs: Any = None,  # noqa: ARG002
    ) -> None:
        """Step: what follows, the wait for the next batch first, belongs to the next iteration."""
        self.profiler.step()

    def after_train(self, runner: Any) -> None:  # noqa: ARG002 -- mmengine's form
        """Stop."""
        self.profiler.stop()
