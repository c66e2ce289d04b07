"""The callback: Lightning's hooks as start, step and stop of a profiler for each loop."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from typing_extensions import Unpack

from perfhooks import OptionError, Options, Profiler, labels
from perfhooks.guard import guard, logger
from perfhooks_lightning import framework, results
from perfhooks_lightning.loop import PREDICT, STAGES, TEST, TRAIN, VALIDATE, Loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning.pytorch import Callback, LightningModule, Trainer

    from perfhooks import Capture
    from perfhooks.recording.handover import HandlerLike
    from perfhooks.recording.profiler import ScheduleLike
    from perfhooks.run.capture import Place
else:
    Callback = type("Callback", tuple(module.Callback for module in framework.modules()), {})

SCHEDULE: Final = "skip_first=10 wait=0 warmup=2 active=3 repeat=1"
"""One small window, soon after the start: what is profiled unless a schedule is given."""

_runs = itertools.count()


class ProfilerCallback(Callback):
    """Profiles the loops of a Trainer, each on a schedule of its own.

    Files go to ``perf`` in the Trainer's ``log_dir`` unless ``out`` is given. A training step is everything from the
    end of one batch to the end of the next one: wait for data, transfer, and a validation that falls in between. Every
    loop counts its own steps, from one epoch and from one ``fit`` to the next; training's and validation's counts are
    kept in checkpoints. Sanity checking is not profiled.

    One window can record at a time: validation inside a window of training is the part ``validation`` of a training
    step, and a window of validation that would begin there is left out. A window of validation ends with its epoch.

    Args:
        schedule: Which steps to record: a :class:`perfhooks.Schedule`, a mapping, a string like
            ``"wait=10 warmup=2 active=3"`` or a callable ``step -> ProfilerAction``; or a mapping with one of these for
            each loop to profile: ``train``, ``validate``, ``test``, ``predict``. None records one small window of the
            training, as does None for a loop.
        on_trace_ready: What to make of each window, as for :class:`perfhooks.Profiler`.
        step_unit: What a training step is: a ``"batch"``, or an ``"optimizer"`` update, which takes several batches
            with gradient accumulation.
        module_names: Label the forward pass of every module with its name.
        log_results: Log the mean of each column of a window's step table to the trainer's loggers, and the table as
            text to TensorBoard.
        log_files: Upload a window's files to Weights & Biases and MLflow.
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
        module_names: bool = False,
        log_results: bool = True,
        log_files: bool = False,
        **options: Unpack[Options],
    ) -> None:
        if "stage" in options:
            raise OptionError(f"stage is what Lightning runs: give a schedule for {options['stage']!r} instead")
        if step_unit not in ("batch", "optimizer"):
            raise OptionError(f"step_unit must be 'batch' or 'optimizer', got {step_unit!r}")
        self._by_update = step_unit == "optimizer"
        self._log_results = log_results
        self._log_files = log_files
        self._loops: dict[str, Loop] = {}
        for stage, chosen in _by_stage(schedule).items():
            stage_options: Options = {"keep_results": False, **options, "stage": stage}
            profiler = Profiler(schedule=chosen, on_trace_ready=on_trace_ready, **stage_options)
            profiler.when_finished(self._log)
            self._loops[stage] = Loop(profiler, own=f"[Callback]{self.state_key}.", module_names=module_names)
        self._train = self._loops.get(TRAIN)
        self._evaluation: Loop | None = None
        self._trainer: Trainer | None = None
        self._global_step = 0
        self._fits = self._recorded_otherwise = False
        self._restored: dict[str, int] = {}
        self._out = ""
        count = next(_runs)
        self._run = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}{f'-{count}' if count else ''}"

    @property
    def profilers(self) -> dict[str, Profiler]:
        """The profiler of each loop that has a schedule."""
        return {stage: loop.profiler for stage, loop in self._loops.items()}

    def summary(self) -> str:
        """The step tables of all windows so far, as text; waits for their files."""
        return "\n\n".join(profiler.summary() for profiler in self.profilers.values())

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint: how many steps each loop has done."""
        return {"steps": {stage: profiler.step_num for stage, profiler in self.profilers.items()} | self._restored}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From the checkpoint; the loops of a ``fit`` go on there."""
        if self._fits:
            self._restored = dict(state_dict.get("steps", {}))

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002 -- Lightning's form
        """Agree with the other ranks on where the files go; Lightning's log_dir is the same on all of them."""
        self._trainer = trainer
        self._fits = stage == "fit"
        self._restored = {}
        self._out = os.path.join(trainer.log_dir or trainer.default_root_dir, "perf")  # noqa: PTH118 -- may be a URL
        self._run = trainer.strategy.broadcast(self._run)
        self._recorded_otherwise = framework.is_a(trainer.profiler, "PyTorchProfiler")
        if self._recorded_otherwise:
            logger.warning("the trainer has a PyTorchProfiler, which a second one would break: nothing is recorded")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002 -- as above
        """All is done."""
        self._stop(trainer, None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """All ended in an error, Ctrl-C or SIGTERM: Lightning calls no other hook then."""
        self._stop(trainer, f"{type(exception).__name__}: {exception}".rstrip(": "))

    # -- training ----------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """The first step begins."""
        self._global_step = trainer.global_step
        if self._train is not None:
            self._begin(trainer, self._train, self._restored.pop(TRAIN, None))

    def on_train_batch_start(self, *_: Any) -> None:
        """The batch is here, on its device."""
        if self._train is not None and not self._by_update:
            self._train.profiler.data_arrived()

    def on_before_backward(self, *_: Any) -> None:
        """Lightning does not name the backward pass of manual optimization."""
        if self._train is not None:
            self._train.enter(labels.BACKWARD)

    def on_after_backward(self, *_: Any) -> None:
        """The end of a backward pass."""
        if self._train is not None:
            self._train.leave(labels.BACKWARD)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """A step ends and the next one begins."""
        if self._train is not None and (not self._by_update or self._updated(trainer)):
            self._train.step(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Training ended, early or not."""
        if self._train is not None:
            self._train.end(trainer)

    def _updated(self, trainer: Trainer) -> bool:
        """Whether an optimizer has made a step since the last call; how many did is not told by their count."""
        before, self._global_step = self._global_step, trainer.global_step
        return before != self._global_step

    # -- validation, test, prediction --------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Validation begins, on its own or inside a training step."""
        if trainer.sanity_checking:
            return
        if self._train is not None:
            self._train.enter(labels.VALIDATION)
        restored = self._restored.pop(VALIDATE, None)
        self._begin_evaluation(trainer, VALIDATE, restored)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Validation ended."""
        self._end_evaluation(trainer)
        if self._train is not None:
            self._train.leave(labels.VALIDATION)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Testing begins."""
        self._begin_evaluation(trainer, TEST)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Testing ended."""
        self._end_evaluation(trainer)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Prediction begins."""
        self._begin_evaluation(trainer, PREDICT)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Prediction ended."""
        self._end_evaluation(trainer)

    def on_validation_batch_start(self, *_: Any) -> None:
        """The batch is here, on its device."""
        self._evaluation_has_data()

    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """A step ends and the next one begins."""
        self._step_evaluation(trainer)

    def on_test_batch_start(self, *_: Any) -> None:
        """The batch is here, on its device."""
        self._evaluation_has_data()

    def on_test_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """A step ends and the next one begins."""
        self._step_evaluation(trainer)

    def on_predict_batch_start(self, *_: Any) -> None:
        """The batch is here, on its device."""
        self._evaluation_has_data()

    def on_predict_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """A step ends and the next one begins."""
        self._step_evaluation(trainer)

    def _evaluation_has_data(self) -> None:
        if self._evaluation is not None:
            self._evaluation.profiler.data_arrived()

    def _step_evaluation(self, trainer: Trainer) -> None:
        if self._evaluation is not None:
            self._evaluation.step(trainer)

    def _begin_evaluation(self, trainer: Trainer, stage: str, step: int | None = None) -> None:
        self._evaluation = self._loops.get(stage)
        if self._evaluation is not None:
            self._begin(trainer, self._evaluation, step)

    def _end_evaluation(self, trainer: Trainer) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.end(trainer)

    # -- all loops ---------------------------------------------------------------------------------------------------

    def _begin(self, trainer: Trainer, loop: Loop, step: int | None = None) -> None:
        if not self._recorded_otherwise:
            loop.begin(trainer, step=step, out=self._out, run=self._run)

    def _stop(self, trainer: Trainer, cause: str | None) -> None:
        self._evaluation = None
        for loop in self._loops.values():
            loop.end(trainer, cause)
            loop.profiler.stop(cause)
        self._trainer = None

    def _log(self, capture: Capture, place: Place) -> None:
        """A window has its files."""
        trainer, steps = self._trainer, self._loops[capture.stage].trainer_steps
        last = capture.reached if capture.last is None or capture.partial else capture.last
        step = steps.get(last)
        for number in [number for number in steps if number <= last]:
            del steps[number]
        if trainer is None or not trainer.is_global_zero or not self._log_results:
            return
        for each in trainer.loggers:
            with guard(f"logging the results to {type(each).__name__}"):
                results.log_summary(each, capture, place, trainer.global_step if step is None else step)
                if self._log_files:
                    results.log_files(each, capture, place)


def _by_stage(schedule: ScheduleLike | Mapping[str, ScheduleLike]) -> dict[str, ScheduleLike]:
    """The schedule of each loop that has one.

    Raises:
        OptionError: Some keys are loops, and others are not.
    """
    if not isinstance(schedule, Mapping) or not any(stage in schedule for stage in STAGES):
        return {TRAIN: SCHEDULE if schedule is None else schedule}  # type: ignore[dict-item]  # of fields, or wrong
    unknown = [stage for stage in schedule if stage not in STAGES]
    if unknown:
        raise OptionError(f"schedule must name loops, {', '.join(STAGES)}, and nothing else, got {unknown[0]!r}")
    return {stage: SCHEDULE if chosen is None else chosen for stage, chosen in schedule.items()}  # type: ignore[misc]
