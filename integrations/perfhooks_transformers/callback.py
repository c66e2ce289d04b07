from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import ref

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState
from typing_extensions import Unpack

from perfhooks import Options, adapters
from perfhooks.adapters import Adapter, Parts, WrappedMethods, guard, labels, with_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from transformers import TrainerControl, TrainerState, TrainingArguments

    from perfhooks import Capture, Profiler
    from perfhooks.adapters import HandlerLike, Place, ScheduleLike

STAGES: Final = ("train", "validate", "predict")
_LOOPS: Final = {"evaluate": "validate", "predict": "predict"}
_TRAINING: Final = {
    "get_batch_samples": labels.DATA,
    "compute_loss": labels.FORWARD,
    "accelerator.backward": labels.BACKWARD,
}
_EVALUATION: Final = {"prediction_step": labels.FORWARD}


@with_options(without=("stage",), keep_results=False)
class ProfilerCallback(Adapter, TrainerCallback, ExportableState):
    """Profiles the loops of a Trainer. Each loop has its own schedule.

        callback = ProfilerCallback("wait=100 warmup=2 active=3 repeat=2", with_stack=True)
        Trainer(model, args, train_dataset=data, callbacks=[callback]).train()
        print(callback.summary())

    Files go to ``perf`` in ``args.output_dir``, unless ``out`` is set. A training step lasts from one ``on_step_end``
    to the next. The step includes the wait for data, evaluations and checkpoints.

    Args:
        schedule: Steps to record, as for :class:`perfhooks.Profiler`; or a mapping of loops to schedules, with the keys
            ``train``, ``validate`` (``trainer.evaluate``), ``predict``. None records one small window of the training.
        on_trace_ready: Handlers of each window, as for :class:`perfhooks.Profiler`.
        step_unit: Unit of a training step: an ``"optimizer"`` update, counted by ``state.global_step``, or a
            ``"batch"``.
        module_names: Whether to label the forward pass of every module with its name.
        log_results: Whether to log the means of a window's step table by ``Trainer.log``.
        steps: Step counts of a checkpoint. Set only by the Trainer (``restore_callback_states_from_checkpoint``).
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
        step_unit: Literal["batch", "optimizer"] = "optimizer",
        module_names: bool = False,
        log_results: bool = True,
        steps: Mapping[str, int] | None = None,
        **options: Unpack[Options],
    ) -> None:
        trainer = None if steps is None else adapters.caller(Trainer)
        if trainer is not None:
            # transformers builds the callback again from a checkpoint; the original callback is still in this list
            original = next(callback for callback in trainer.callback_handler.callbacks if type(callback) is type(self))
            self.__dict__ = original.__dict__
            return
        super().__init__(
            schedule,
            on_trace_ready,
            options,
            framework="the Trainer",
            loops=STAGES,
            step_unit=step_unit,
            labels=partial(_parts, module_names=module_names),
            listener=self._log if log_results else None,
        )
        self._trainer: Callable[[], Trainer | None] = type(None)
        self._methods = WrappedMethods()

    def state(self) -> dict[str, Any]:
        """Return the finished steps of each loop, for the checkpoint."""
        return {"args": {"steps": self._stages.counts()}, "attributes": {}}

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._watch()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Begin the first step of a training, or of a retry with smaller batches."""
        self._watch()
        with guard("reading the steps from the checkpoint"):
            self._stages.resume(_counts(state.stateful_callbacks, type(self).__name__) if state.global_step else {})
        self._train.pause("the training restarted")
        step = state.global_step if self._by_update or not state.global_step else None
        self._train.begin(self._trainer(), step=step, out=adapters.folder_in(args.output_dir or ""))

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._train.data_arrived()

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        if not self._by_update:
            self._train.step()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._train.parts.begin(labels.OPTIMIZER)

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **_: Any) -> None:
        self._train.parts.end(labels.OPTIMIZER)
        self._train.step()
        self.on_log(args, state, control)

    def on_log(self, args: Any, state: Any, control: TrainerControl, **_: Any) -> None:
        if control.should_save and not (control.should_log or control.should_evaluate):
            self._train.parts.begin(labels.CHECKPOINT)

    on_epoch_end = on_evaluate = on_log

    def on_save(self, *_: Any, **__: Any) -> None:
        self._train.parts.end(labels.CHECKPOINT)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._stages.stop()

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        self._evaluation.step()
        self._evaluation.parts.wait()

    def _watch(self) -> None:
        """Wrap three methods of the Trainer, because no hook reports errors or the start of a loop."""
        trainer = adapters.caller(Trainer)
        if trainer is None or trainer is self._trainer():
            return
        self._methods.unwrap()
        self._trainer = ref(trainer)
        self._methods.wrap_in(trainer, "train", self._stages.until_error)
        for name, stage in _LOOPS.items():
            self._methods.wrap_in(trainer, name, partial(self._looping, trainer, stage))

    @contextmanager
    def _looping(self, trainer: Trainer, name: str) -> Iterator[None]:
        outer, out = self._evaluation, adapters.folder_in(trainer.args.output_dir or "")
        stage = self._stages[name] if outer is self._stages.unprofiled else outer
        with self._train.parts.validation(), ExitStack() as stack:
            if stage is not outer:
                stack.enter_context(stage.running(trainer, for_good=not trainer.is_in_train, out=out))
                stack.callback(setattr, self, "_evaluation", outer)
                self._evaluation = stage
            yield

    def _log(self, capture: Capture, place: Place) -> None:
        trainer = self._trainer()
        if trainer is None or not trainer.is_world_process_zero():
            return
        should_log = trainer.control.should_log
        # not log() of a subclass, which may reset the values collected for the Trainer's log lines
        Trainer.log(trainer, adapters.scalars(capture))
        trainer.control.should_log = should_log


def _parts(profiler: Profiler, stage: str, *, module_names: bool) -> Parts:
    methods = _TRAINING if stage == "train" else _EVALUATION
    return Parts(profiler, methods, waits=stage != "train", modules=attrgetter("model") if module_names else None)


def _counts(callbacks: Any, name: str) -> dict[str, int]:
    ours = callbacks.get(name) if isinstance(callbacks, dict) else callbacks
    # with several callbacks the state is a list, and each checkpoint appends the states of all callbacks
    ours = ours[-1] if isinstance(ours, list) and ours else ours
    return adapters.read_counts(ours and ours["args"]["steps"])
