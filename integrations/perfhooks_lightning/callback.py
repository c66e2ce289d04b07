from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from typing_extensions import Unpack

from perfhooks import Options, adapters
from perfhooks.adapters import Adapter, Stage, guard, labels, logger, with_options
from perfhooks_lightning import framework, results
from perfhooks_lightning.regions import parts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning.pytorch import Callback, LightningModule, Trainer

    from perfhooks import Capture
    from perfhooks.adapters import HandlerLike, Place, ScheduleLike
else:
    Callback = type("Callback", tuple(module.Callback for module in framework.modules()), {})

TRAIN: Final = "train"
VALIDATE: Final = "validate"
TEST: Final = "test"
PREDICT: Final = "predict"


@with_options(without=("stage",), keep_results=False)
class ProfilerCallback(Adapter, Callback):
    """Profiles the loops of a Trainer. Each loop has its own schedule.

        callback = ProfilerCallback("wait=100 warmup=2 active=3 repeat=2", with_stack=True)
        Trainer(callbacks=[callback]).fit(module, loader)
        print(callback.summary())

    Files go to ``perf`` in the Trainer's ``log_dir``, unless ``out`` is set. A training step lasts from the end of one
    batch to the end of the next one. The step includes the wait for data, the transfer and a validation between both
    batches. Each loop counts its own steps, across epochs and calls of ``fit``. Checkpoints contain the step counts of
    training and validation. Lightning's sanity checking is not profiled.

    Only one window can be open at a time. A validation during a window of the training is recorded as the part
    ``validation`` of a training step, without a window of its own. A window of the validation ends with the validation
    epoch.

    Args:
        schedule: Steps to record: a :class:`perfhooks.Schedule`, a mapping, a string like ``"wait=10 warmup=2
            active=3"`` or a function ``step -> ProfilerAction``; or a mapping of loops to such schedules, with the keys
            ``train``, ``validate``, ``test``, ``predict``. None records one small window, of the training or of a loop
            in the mapping.
        on_trace_ready: Handlers of each window, as for :class:`perfhooks.Profiler`.
        step_unit: Unit of a training step: a ``"batch"``, or an ``"optimizer"`` update, which consists of several
            batches with gradient accumulation.
        module_names: Whether to label the forward pass of every module with its name.
        log_results: Whether to log the means of a window's step table to the trainer's loggers, and the table as text
            to TensorBoard.
        log_files: Whether to upload a window's files to Weights & Biases and MLflow.
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
        module_names: bool = False,
        log_results: bool = True,
        log_files: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            schedule,
            on_trace_ready,
            options,
            framework="Lightning",
            loops=(TRAIN, VALIDATE, TEST, PREDICT),
            step_unit=step_unit,
            labels=partial(parts_of, own=f"[Callback]{self.state_key}.", module_names=module_names),
            listener=self._log,
        )
        self._log_results = log_results
        self._log_files = log_files
        self._trainer: Trainer | None = None
        self._global_step: int
        self._fits = self._has_other_recorder = False
        self._out = ""
        self._run = adapters.new_run_name()

    def state_dict(self) -> dict[str, Any]:
        """Return the finished steps of each loop, for the checkpoint."""
        return {"steps": self._stages.counts()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the step counts of a checkpoint, in ``fit``."""
        if self._fits:
            with guard("reading the steps from the checkpoint"):
                self._stages.resume(adapters.read_counts(state_dict.get("steps")))

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        """Set the folder of the run and broadcast its name."""
        self._trainer = trainer
        self._fits = stage == "fit"
        self._out = adapters.folder_in(trainer.log_dir or trainer.default_root_dir)
        self._run = trainer.strategy.broadcast(self._run)
        self._has_other_recorder = framework.is_a(trainer.profiler, "PyTorchProfiler")
        if self._has_other_recorder:
            logger.warning("nothing is recorded: the trainer has a PyTorchProfiler, and torch supports one profiler")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop(None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop all loops, because Lightning calls no other hook after an error, Ctrl-C or SIGTERM."""
        self._stop(adapters.cause_of(exception))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._global_step = trainer.global_step
        self._begin(trainer, self._train)

    def on_train_batch_start(self, *_: Any) -> None:
        if not self._by_update:
            self._train.data_arrived()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if not self._by_update or self._has_updated(trainer):
            self._train.step()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._train.pause()

    def _has_updated(self, trainer: Trainer) -> bool:
        before, self._global_step = self._global_step, trainer.global_step
        return before != self._global_step

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self._train.parts.begin(labels.VALIDATION)
        self._begin_evaluation(trainer, VALIDATE)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_test_end()
        self._train.parts.end(labels.VALIDATION)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin_evaluation(trainer, TEST)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin_evaluation(trainer, PREDICT)

    def on_validation_batch_start(self, *_: Any, **__: Any) -> None:
        self._evaluation.data_arrived()

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self._evaluation.step()

    def on_test_end(self, *_: Any, **__: Any) -> None:
        self._evaluation.pause()
        self._evaluation = self._stages.unprofiled

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
    on_predict_end = on_test_end

    def _begin_evaluation(self, trainer: Trainer, stage: str) -> None:
        self._evaluation = self._stages[stage]
        self._begin(trainer, self._evaluation)

    def _begin(self, trainer: Trainer, stage: Stage) -> None:
        if not self._has_other_recorder:
            stage.begin(trainer, out=self._out, run=self._run, global_step=lambda: trainer.global_step)

    def _stop(self, cause: str | None) -> None:
        self._evaluation = self._stages.unprofiled
        self._stages.stop(cause)
        self._trainer = None

    def _log(self, capture: Capture, place: Place) -> None:
        trainer, step = self._trainer, self._stages[capture.stage].global_step_of(capture)
        if trainer is None or not trainer.is_global_zero or not self._log_results:
            return
        for trainer_logger in trainer.loggers:
            with guard(f"logging the results to {type(trainer_logger).__name__}"):
                results.log_summary(trainer_logger, capture, place, trainer.global_step if step is None else step)
                if self._log_files:
                    results.log_files(trainer_logger, capture, place)


# with Any, LightningCLI saves these arguments as text and mappings, and does not build objects from them
ProfilerCallback.__init__.__annotations__.update(schedule=Any, on_trace_ready=Any)
