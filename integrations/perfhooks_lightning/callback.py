"""The callback: Lightning's hooks as start, step and stop of a profiler for each loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from typing_extensions import Unpack

from perfhooks import Options
from perfhooks import adapters as adapting
from perfhooks.adapters import Face, Stage, guard, labels, logger, with_options
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
class ProfilerCallback(Face, Callback):
    """Profiles the loops of a Trainer, each on a schedule of its own.

        callback = ProfilerCallback("wait=100 warmup=2 active=3 repeat=2", with_stack=True)
        Trainer(callbacks=[callback]).fit(module, loader)
        print(callback.summary())

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
        self._global_step: int  # known once training begins
        self._fits = self._recorded_otherwise = False
        self._out = ""
        self._run = adapting.new_run_name()

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint: how many steps each loop has done."""
        return {"steps": self._stages.counts()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From the checkpoint; the loops of a ``fit`` go on there."""
        if self._fits:
            with guard("reading the steps from the checkpoint"):
                self._stages.resume(adapting.read_counts(state_dict.get("steps")))

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        """Agree with the other ranks on where the files go; Lightning's log_dir is the same on all of them."""
        self._trainer = trainer
        self._fits = stage == "fit"
        self._out = adapting.folder_in(trainer.log_dir or trainer.default_root_dir)
        self._run = trainer.strategy.broadcast(self._run)
        self._recorded_otherwise = framework.is_a(trainer.profiler, "PyTorchProfiler")
        if self._recorded_otherwise:
            logger.warning("the trainer has a PyTorchProfiler, which a second one would break: nothing is recorded")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """All is done."""
        self._stop(None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """All ended in an error, Ctrl-C or SIGTERM: Lightning calls no other hook then."""
        self._stop(adapting.cause_of(exception))

    # -- training ----------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The first step begins."""
        self._global_step = trainer.global_step
        self._begin(trainer, self._train)

    def on_train_batch_start(self, *_: Any) -> None:
        """The batch is here, on its device."""
        if not self._by_update:
            self._train.data_arrived()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """A step ends and the next one begins."""
        if not self._by_update or self._updated(trainer):
            self._train.step()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training ended, early or not."""
        self._train.pause()

    def _updated(self, trainer: Trainer) -> bool:
        """Whether an optimizer has made a step since the last call; how many did is not told by their count."""
        before, self._global_step = self._global_step, trainer.global_step
        return before != self._global_step

    # -- validation, test, prediction --------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation begins, on its own or inside a training step."""
        if trainer.sanity_checking:
            return
        self._train.parts.begin(labels.VALIDATION)
        self._begin_evaluation(trainer, VALIDATE)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation ended."""
        self.on_test_end()
        self._train.parts.end(labels.VALIDATION)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Testing begins."""
        self._begin_evaluation(trainer, TEST)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prediction begins."""
        self._begin_evaluation(trainer, PREDICT)

    def on_validation_batch_start(self, *_: Any, **__: Any) -> None:
        """The batch is here, on its device."""
        self._evaluation.data_arrived()

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """A step ends and the next one begins."""
        self._evaluation.step()

    def on_test_end(self, *_: Any, **__: Any) -> None:
        """Testing or prediction ended."""
        self._evaluation.pause()
        self._evaluation = self._stages.unprofiled

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
    on_predict_end = on_test_end

    def _begin_evaluation(self, trainer: Trainer, stage: str) -> None:
        self._evaluation = self._stages[stage]
        self._begin(trainer, self._evaluation)

    # -- all loops ---------------------------------------------------------------------------------------------------

    def _begin(self, trainer: Trainer, stage: Stage) -> None:
        if not self._recorded_otherwise:
            stage.begin(trainer, out=self._out, run=self._run, global_step=lambda: trainer.global_step)

    def _stop(self, cause: str | None) -> None:
        self._evaluation = self._stages.unprofiled
        self._stages.stop(cause)
        self._trainer = None

    def _log(self, capture: Capture, place: Place) -> None:
        """A window has its files."""
        trainer, step = self._trainer, self._stages[capture.stage].global_step_of(capture)
        if trainer is None or not trainer.is_global_zero or not self._log_results:
            return
        for one in trainer.loggers:
            with guard(f"logging the results to {type(one).__name__}"):
                results.log_summary(one, capture, place, trainer.global_step if step is None else step)
                if self._log_files:
                    results.log_files(one, capture, place)


# LightningCLI saves what it was given: as text and mappings, not as objects that it would make of them
ProfilerCallback.__init__.__annotations__.update(schedule=Any, on_trace_ready=Any)
