from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from typing_extensions import Unpack

from perfhooks import OptionError, Options, adapters
from perfhooks.adapters import Adapter, Parts, Stage, guard, labels, with_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from perfhooks import Capture, Profiler
    from perfhooks.adapters import HandlerLike, Place, ScheduleLike

T = TypeVar("T")

STAGES: Final = ("train", "validate", "test", "predict")
_METHODS: Final = {
    "backward": labels.BACKWARD,
    "clip_gradients": labels.OPTIMIZER,
    "save": labels.CHECKPOINT,
}
_END: Final = object()


@with_options(without=("stage",), keep_results=False)
class ProfilerCallback(Adapter):
    """Profiles the loops of a program with Fabric.

        callback = ProfilerCallback("wait=100 warmup=2 active=3 repeat=2")
        fabric = Fabric(callbacks=[callback])
        for batch in callback.steps(fabric.setup_dataloaders(loader)): ...

    Files go to ``perf`` in the folder of Fabric's first logger, else in the working directory, unless ``out`` is set.

    Fabric's hooks are sufficient for steps that are optimizer updates. To record waits for data, batches as steps, or
    other loops, iterate over `steps`.

    Args:
        schedule: Steps to record, as for :class:`perfhooks.Profiler`; or a mapping of loops to schedules, with the keys
            ``train``, ``validate``, ``test``, ``predict``. None records one small window of the training.
        on_trace_ready: Handlers of each window, as for :class:`perfhooks.Profiler`.
        step_unit: Unit of a training step: an ``"optimizer"`` update, or a ``"batch"`` of `steps`. With several
            optimizers and without `steps`, updates of the first active optimizer count.
        log_results: Whether to log the means of a window's step table by ``fabric.log_dict``.
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
        log_results: bool = True,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            schedule,
            on_trace_ready,
            options,
            framework="the program",
            loops=STAGES,
            step_unit=step_unit,
            labels=_parts,
            listener=self._log if log_results else None,
        )
        self._fabric: Any = None
        self._out: str | None = None
        self._run: str | None = None
        self._leader: Any = None
        self._fetches = self._updated = False

    def steps(self, loader: Iterable[T], stage: str = "train") -> Batches[T]:
        """Iterate over the result of ``fabric.setup_dataloaders``, and report steps and the wait for data.

        Args:
            loader: Any iterable. The result supports ``len()`` if the loader does, and can be iterated in each epoch.
            stage: Name of the loop. Inside a training step, other loops are recorded as the part ``validation``.

        Raises:
            OptionError: The stage is unknown.
        """
        if stage not in STAGES:
            raise OptionError(f"stage must be one of {', '.join(STAGES)}, got {stage!r}")
        return Batches(self, loader, stage)

    def region(self, name: str) -> AbstractContextManager[Any]:
        """Label a part of a training step in windows: ``with callback.region("forward"): ...``."""
        return self._train.profiler.region(name)

    def stop(self, cause: str | None = None) -> None:
        """Stop all loops and save an open window. The end of the process also stops all loops.

        Args:
            cause: Reason of an early end.
        """
        self._stages.stop(cause)

    def state_dict(self) -> dict[str, Any]:
        """Return the finished steps of each loop, for ``fabric.save(path, {"profiler": callback, ...})``."""
        return {"steps": self._stages.counts()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue the step counts of a checkpoint, for ``fabric.load``."""
        with guard("reading the steps from the checkpoint"):
            counts = adapters.read_counts(state_dict.get("steps"))
            for stage in self._stages.values():
                stage.pause("the training was resumed")
            self._stages.resume(counts)

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Set the folder of the run in a hook that all ranks reach."""
        if self._fabric is fabric:
            return
        self._fabric = fabric
        with guard("reading the log folder of Fabric"):
            logger = next(iter(fabric.loggers), None)
            folder = None if logger is None else logger.log_dir or logger.root_dir
            self._out = None if folder is None else adapters.folder_in(folder)
        self._run = fabric.broadcast(self._run or adapters.new_run_name())

    def on_after_optimizer_step(self, strategy: Any, optimizer: Any) -> None:
        """End a step, unless a loop over `steps` ends the steps."""
        self._updated = True
        if self._fetches or not self._by_update:
            return
        if self._leader is None:
            self._leader = optimizer
            self.begin(self._train, self._train.count + 1)
        elif self._leader is optimizer:
            self._train.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Stop all loops, for ``fabric.call("on_train_end")``."""
        self.stop()

    def on_exception(self, *_: Any, exception: BaseException | None = None, **__: Any) -> None:
        """Stop all loops with a reason, for ``fabric.call("on_exception", exception=error)``."""
        self.stop(None if exception is None else adapters.cause_of(exception))

    def begin(self, stage: Stage, step: int | None = None) -> None:
        stage.begin(self._fabric, step=step, out=self._out, run=self._run)

    def batches(self, loader: Iterable[T], name: str) -> Iterator[T]:
        stage = self._stages[name]
        if name == "train":
            self._fetches = True
            yield from self._pass(stage, loader, by_update=self._by_update)
            return
        with self._train.parts.validation():
            try:
                yield from self._pass(stage, loader, by_update=False)
            finally:
                stage.pause()

    def _pass(self, stage: Stage, loader: Iterable[T], *, by_update: bool) -> Iterator[T]:
        self.begin(stage)
        region = stage.profiler.region
        with region(labels.DATA):
            items = iter(loader)
        while True:
            with region(labels.DATA):
                item: Any = next(items, _END)
            if item is _END:
                return
            stage.data_arrived()
            yield item
            if not by_update:
                stage.step()
            elif self._updated:
                self._updated = False
                stage.step()

    def _log(self, capture: Capture, place: Place) -> None:
        if self._fabric is not None:
            self._fabric.log_dict(adapters.scalars(capture), step=adapters.last_step(capture))


def _parts(profiler: Profiler, stage: str) -> Parts:
    return Parts(profiler, _METHODS if stage == "train" else {})


class Batches(Generic[T]):
    def __init__(self, callback: ProfilerCallback, loader: Iterable[T], stage: str) -> None:
        self._callback = callback
        self._loader = loader
        self._stage = stage

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises TypeError for loaders without length

    def __iter__(self) -> Iterator[T]:
        return self._callback.batches(self._loader, self._stage)
