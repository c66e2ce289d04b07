"""Our profiler in accelerate's own idiom, ``accelerator.profile(...)``."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import accelerate.utils
from accelerate import Accelerator
from typing_extensions import Unpack

import perfhooks
from perfhooks import Options
from perfhooks import adapters as adapting
from perfhooks.adapters import Parts, Stages, guard, labels, logger, with_options

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from perfhooks import Capture
    from perfhooks.adapters import HandlerLike, Place, ScheduleLike

STAGES: Final = ("train", "validate", "test", "predict")
NOTHING: Final = "on request"
"""Of a training that is not to be recorded, where other loops are."""
_METHODS: Final = {
    "backward": labels.BACKWARD,
    "clip_grad_norm_": labels.OPTIMIZER,
    "clip_grad_value_": labels.OPTIMIZER,
    "save_state": labels.CHECKPOINT,
}
"""Those of the Accelerator that are a part of a step."""


class Profiler(perfhooks.Profiler):
    """A :class:`perfhooks.Profiler` that knows what accelerate knows; `ProfileKwargs` makes it.

    Args:
        accelerator: Whose training it is, if that is known.
        stages: The other loops that are profiled.
        step_unit: What a step is.
        log_results: Whether to log what a window says.
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
        self._folder = None if folder is None else adapting.folder_in(folder)
        for profiler in (self, *stages.profilers.values()):
            profiler.speak_as("accelerate")
            if log_results and accelerator is not None:
                profiler.when_finished(partial(_log, accelerator))

    def start(
        self, step: int | None = None, *, out: str | os.PathLike[str] | None = None, run: str | None = None
    ) -> None:
        """Begin; files go to ``perf`` in the Accelerator's ``logging_dir`` unless ``out`` was given."""
        super().start(step, out=out or self._folder, run=run)
        self._follow()

    def step(self) -> None:
        """Say that a batch is done; it ends a step, or only adds to the gradients of one."""
        if not self._by_update or self._has_updated():
            super().step()
            if self.in_window is not self._parts.is_on:
                self._follow()

    def pause(self, cause: str | None = None) -> None:
        """Leave the loop for a while, or for good; what is being recorded is kept."""
        self._unlabel()
        super().pause(cause)

    def stop(self, cause: str | None = None) -> None:
        """End, and the other loops with it."""
        super().stop(cause)
        self._stages.stop(cause)

    @contextmanager
    def stage(self, name: str) -> Iterator[perfhooks.Profiler]:
        """Run another loop, with its own schedule, count and windows; inside a training step it is ``validation``.

        Args:
            name: ``"validate"``, ``"test"`` or ``"predict"``.

        Yields:
            Its profiler, whose ``steps()`` or ``step()`` the loop calls; this one where nothing was asked of it.
        """
        stage = self._stages[name]
        with self._parts.validation(), stage.running(out=self._folder, for_good=False):
            yield stage.profiler

    def state_dict(self) -> dict[str, Any]:
        """For ``accelerator.register_for_checkpointing(prof)``: how many steps each loop has done."""
        return {"steps": {"train": self.step_num, **self._stages.counts()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """From the checkpoint: go on there."""
        with guard("reading the steps from the checkpoint"):
            steps = adapting.read_counts(state_dict.get("steps"))
            self._stages.resume(steps)
            if "train" in steps:
                self.pause("the training was resumed")
                self.start(steps["train"])

    def _has_updated(self) -> bool:
        accelerator = self._accelerator
        return accelerator is None or (accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped)

    def _follow(self) -> None:
        """Label the parts of a step while a window is open."""
        if not self.in_window:
            self._unlabel()
        elif not self._parts.is_on:
            with guard("labelling the parts of a step"):
                self._parts.put(self._accelerator, waiting=False)

    def _unlabel(self) -> None:
        with guard("taking the labels away"):
            self._parts.take_off(self._accelerator)


def _log(accelerator: Accelerator, capture: Capture, _place: Place) -> None:
    """A window has its files: tell the trackers."""
    accelerator.log(adapting.scalars(capture), step=adapting.last_step(capture))


@with_options(without=("stage",))
class ProfileKwargs(accelerate.utils.ProfileKwargs):  # type: ignore[misc]  # accelerate ships no types
    """Has ``accelerator.profile`` profile with perfhooks.

    It may also stand in ``Accelerator(kwargs_handlers=[...])``, for ``accelerator.profile()``.

        with accelerator.profile(ProfileKwargs("wait=100 warmup=2 active=3 repeat=2")) as prof:
            for batch in prof.steps(loader):
                train(batch)

    Args:
        schedule: Which steps to record, as for :class:`perfhooks.Profiler`; or a mapping with a schedule for each loop:
            ``train``, and those that ``prof.stage(name)`` runs: ``validate``, ``test``, ``predict``. None records one
            small window of the training.
        on_trace_ready: What to make of each window, as for :class:`perfhooks.Profiler`.
        step_unit: What a training step is: a ``"batch"``, or an ``"optimizer"`` update, as ``sync_gradients`` and
            ``optimizer_step_was_skipped`` tell it.
        log_results: Log the mean of each column of a window's step table to the Accelerator's trackers.
        **options: See :class:`perfhooks.Options`; all but ``stage``.

    Raises:
        OptionError: An argument has a value that it cannot have.
        TypeError: No option has this name.
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
        adapting.check(type(self), options, framework="accelerate", step_unit=step_unit)
        super().__init__()
        schedules = adapting.schedules(schedule, STAGES)
        own = schedules.pop("train", NOTHING)
        perfhooks.Profiler(schedule=own, on_trace_ready=on_trace_ready, **options)  # a wrong option is an error here
        self._others = partial(Stages.of, schedules, on_trace_ready, options=options)
        self._profiler = partial(
            Profiler,
            step_unit=step_unit,
            log_results=log_results,
            schedule=own,
            on_trace_ready=on_trace_ready,
            **options,
        )

    @property  # type: ignore[misc]  # a class of one's own for those who ask
    def __class__(self) -> Any:
        """What accelerate looks up when it is given as one of its ``kwargs_handlers``: there it takes no subclass."""
        return accelerate.utils.ProfileKwargs

    def build(self) -> Profiler:
        """What ``accelerator.profile()`` opens."""
        accelerator = adapting.caller(Accelerator)
        if accelerator is None:
            logger.warning("no Accelerator calls ProfileKwargs.build(): steps are batches, and nothing is labelled")
        return self._profiler(accelerator, self._others())
