"""The callback: Lightning's hooks as start, step and stop of a profiler."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import Unpack

from perfhooks import Options, Profiler
from perfhooks_lightning import framework

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning.pytorch import Callback, LightningModule, Trainer

    from perfhooks.profiler import ScheduleLike
    from perfhooks.spool import HandlerLike
else:
    Callback = type("Callback", tuple(module.Callback for module in framework.modules()), {})

SCHEDULE: Final = "skip_first=10 wait=0 warmup=2 active=3 repeat=1"
"""One small window, soon after the start: what is profiled unless a schedule is given."""


class ProfilerCallback(Callback):
    """Profiles the training steps of a Trainer on a schedule.

    Files go to ``perf`` in the Trainer's ``log_dir`` unless ``out`` is given. A step is everything from the end of one
    training batch to the end of the next one: Lightning fetches and transfers a batch before ``on_train_batch_start``.

    Args:
        schedule: Which steps to record: a :class:`perfhooks.Schedule`, a mapping, a string like
            ``"wait=10 warmup=2 active=3"`` or a callable ``step -> ProfilerAction``; None records one small window.
        on_trace_ready: What to make of each window, as for :class:`perfhooks.Profiler`.
        **options: See :class:`perfhooks.Options`.

    Raises:
        OptionError: An argument has a value that it cannot have.
        TypeError: No option has this name.
    """

    def __init__(
        self,
        schedule: ScheduleLike = None,
        on_trace_ready: HandlerLike | Sequence[HandlerLike] | None = None,
        **options: Unpack[Options],
    ) -> None:
        adapted: Options = {"keep_results": False, **options}
        self._train = Profiler(
            schedule=SCHEDULE if schedule is None else schedule, on_trace_ready=on_trace_ready, **adapted
        )
        self._run = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self._out = ""

    def summary(self) -> str:
        """The step table of all windows so far, as text; waits for their files."""
        return self._train.summary()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002 -- Lightning's form
        """Agree with the other ranks on where the files go; Lightning's log_dir is the same on all of them."""
        self._out = os.path.join(trainer.log_dir or trainer.default_root_dir, "perf")  # noqa: PTH118 -- may be a URL
        self._run = trainer.strategy.broadcast(self._run)

    def on_train_start(self, *_: Any) -> None:
        """The first step begins."""
        self._train.start(out=self._out, run=self._run)

    def on_train_batch_end(self, *_: Any) -> None:
        """A step ends and the next one begins."""
        self._train.step()

    def on_train_end(self, *_: Any) -> None:
        """Training ended, early or not."""
        self._train.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """Training failed, or was interrupted: Lightning calls no other hook then."""
        self._train.stop(f"{type(exception).__name__}: {exception}".rstrip(": "))
