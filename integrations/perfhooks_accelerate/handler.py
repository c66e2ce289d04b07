"""Integration of accelerate: ``accelerator.profile(...)`` with perfhooks."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import accelerate.utils
from accelerate import Accelerator
from typing_extensions import Unpack

import perfhooks
from perfhooks import Options, adapters
from perfhooks.adapters import Parts, Stages, guard, labels, logger, with_options

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from perfhooks import Capture
    from perfhooks.adapters import HandlerLike, Place, ScheduleLike

STAGES: Final = ("train", "validate", "test", "predict")
NOTHING: Final = "on request"
"""Schedule that records only requested windows of the training, if only other loops have a schedule."""
_METHODS: Final = {
    "backward": labels.BACKWARD,
    "clip_grad_norm_": labels.OPTIMIZER,
    "clip_grad_value_": labels.OPTIMIZER,
    "save_state": labels.CHECKPOINT,
}


class Profiler(perfhooks.Profiler):
    """A :class:`perfhooks.Profiler` for an Accelerator, made by `ProfileKwargs`.

    Args:
        accelerator: The Accelerator of the training; None if unknown.
        stages: Profiled loops other than the training.
        step_unit: Unit of a step.
        log_results: Whether to log the results of windows.
        **options: As for :class:`perfhooks.Profiler`.
    """

    def __init__(
        self, accelerator: Accelerator | None, stages: Stages, *, step_unit: str, log_results: bool, **options: Any
    ) -> None:
        super().__init__(**options)
        self._accelerator = accelerator
        self._stages = stages
        self._by_update = step_unit == "optimizer"
        self._parts = Parts(self, {} if accelerator is None else _METHODS)
        folder = None if accelerator is None else accelerator.logging_dir
        self._folder = None if folder is None else adapters.folder_in(folder)
        for profiler in (self, *stages.profilers.values()):
            profiler.speak_as("accelerate")
            if log_results and accelerator is not None:
                profiler.when_finished(partial(_log, accelerator))

    def start(
        self, step: int | None = None, *, out: str | os.PathLike[str] | None = None, run: str | None = None
    ) -> None:
        """Start the profiler. Files go to ``perf`` in the Accelerator's ``logging_dir``, unless ``out`` is set."""
        super().start(step, out=out or self._folder, run=run)
        self._follow()

    def step(self) -> None:
        """Report the end of a batch. The batch ends a step, unless gradients are only accumulated."""
        if not self._by_update or self._has_updated():
            super().step()
            if self.in_window is not self._parts.is_on:
                self._follow()

    def pause(self, cause: str | None = None) -> None:
        """Interrupt the loop and save an open window."""
        self._unlabel()
        super().pause(cause)

    def stop(self, cause: str | None = None) -> None:
        """Stop all loops."""
        super().stop(cause)
        self._stages.stop(cause)

    @contextmanager
    def stage(self, name: str) -> Iterator[perfhooks.Profiler]:
        """Run another loop with its own schedule, step count and windows.

        Inside a training step, the time of this loop is the part ``validation`` of the step.

        Args:
            name: ``"validate"``, ``"test"`` or ``"predict"``.

        Yields:
            The profiler of this loop, for calls of ``steps()`` or ``step()``. The profiler is inactive if the loop has
                no schedule.
        """
        stage = self._stages[name]
        with self._parts.validation(), stage.running(out=self._folder, for_good=False):
            yield stage.profiler

    def state_dict(self) -> dict[str, Any]:
        """Return the finished steps of each loop, for ``accelerator.register_for_checkpointing(prof)``."""
        return {"steps": {"train": self.step_num, **self._stages.counts()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue the step counts of a checkpoint."""
        with guard("reading the steps from the checkpoint"):
            steps = adapters.read_counts(state_dict.get("steps"))
            self._stages.resume(steps)
            if "train" in steps:
                self.pause("the training was resumed")
                self.start(steps["train"])

    def _has_updated(self) -> bool:
        accelerator = self._accelerator
        return accelerator is None or (accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped)

    def _follow(self) -> None:
        if not self.in_window:
            self._unlabel()
        elif not self._parts.is_on:
            with guard("labelling the parts of a step"):
                self._parts.put(self._accelerator, waiting=False)

    def _unlabel(self) -> None:
        with guard("removing the labels"):
            self._parts.take_off(self._accelerator)


def _log(accelerator: Accelerator, capture: Capture, _place: Place) -> None:
    accelerator.log(adapters.scalars(capture), step=adapters.last_step(capture))


@with_options(without=("stage",))
class ProfileKwargs(accelerate.utils.ProfileKwargs):  # type: ignore[misc]  # accelerate ships no types
    """Makes ``accelerator.profile`` use perfhooks.

    ``Accelerator(kwargs_handlers=[ProfileKwargs(...)])`` sets the default of ``accelerator.profile()``.

        with accelerator.profile(ProfileKwargs("wait=100 warmup=2 active=3 repeat=2")) as prof:
            for batch in prof.steps(loader):
                train(batch)

    Args:
        schedule: Steps to record, as for :class:`perfhooks.Profiler`; or a mapping of loops to schedules, with the keys
            ``train`` and (for ``prof.stage(name)``) ``validate``, ``test``, ``predict``. None records one small window
            of the training.
        on_trace_ready: Handlers of each window, as for :class:`perfhooks.Profiler`.
        step_unit: Unit of a training step: a ``"batch"``, or an ``"optimizer"`` update according to ``sync_gradients``
            and ``optimizer_step_was_skipped``.
        log_results: Whether to log the means of a window's step table to the Accelerator's trackers.
        **options: See :class:`perfhooks.Options`; all but ``stage``.

    Raises:
        OptionError: An argument is invalid.
        TypeError: An option is unknown.
    """

    def __init__(
        self,
        schedule: ScheduleLike | Mapping[str, ScheduleLike] = None,
        on_trace_ready: HandlerLike | Sequence[HandlerLike] | None = None,
        *,
        step_unit: Literal["batch", "optimizer"] = "batch",
        log_results: bool = True,
        **options: Unpack[Options],
    ) -> None:
        adapters.check(type(self), options, framework="accelerate", step_unit=step_unit)
        super().__init__()
        schedules = adapters.schedules(schedule, STAGES)
        own = schedules.pop("train", NOTHING)
        perfhooks.Profiler(schedule=own, on_trace_ready=on_trace_ready, **options)
        self._other_stages = partial(Stages.of, schedules, on_trace_ready, options=options)
        self._profiler = partial(
            Profiler,
            step_unit=step_unit,
            log_results=log_results,
            schedule=own,
            on_trace_ready=on_trace_ready,
            **options,
        )

    @property  # type: ignore[misc]  # differs from the real class
    def __class__(self) -> Any:
        """Class of accelerate, because accelerate finds ``kwargs_handlers`` by exact class and rejects subclasses."""
        return accelerate.utils.ProfileKwargs

    def build(self) -> Profiler:
        """Return the profiler for ``accelerator.profile()``."""
        accelerator = adapters.caller(Accelerator)
        if accelerator is None:
            logger.warning(
                "ProfileKwargs.build() was not called by an Accelerator: each batch counts as a step, and its parts "
                "(forward, backward) are not labelled"
            )
        return self._profiler(accelerator, self._other_stages())
