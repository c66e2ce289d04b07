"""The parts of a step, from what Lightning tells the profiler of its trainer about everything that it does."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from perfhooks import labels
from perfhooks_lightning import framework

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from lightning.pytorch.profilers import Profiler
else:
    Profiler = framework.modules()[0].profilers.Profiler

_FETCHES: Final = ("train_dataloader_next", "val_next", "test_next", "predict_next")
_PARTS: Final = {
    **dict.fromkeys(_FETCHES, labels.DATA),
    "batch_to_device": labels.TRANSFER,
    **dict.fromkeys(("training_step", "validation_step", "test_step", "predict_step"), labels.FORWARD),
    **dict.fromkeys(("optimizer_step", "optimizer_zero_grad", "lr_scheduler_step"), labels.OPTIMIZER),
    "save_checkpoint": labels.CHECKPOINT,
    # the gap between the end of a batch and on_validation_start, in which the workers are started
    "on_validation_model_zero_grad": labels.VALIDATION,
}
"""What Lightning's actions are in the terms of a step, by the last word of their names."""

_LASTS: Final = ("on_validation_model_zero_grad",)
"""Actions whose end is not the end of the part that they begin."""

_EPOCH: Final = "run_training_epoch"
_UNNAMED: Final = ("run_training_batch",)
"""Actions that say nothing that the step does not say."""


class Regions(Profiler):
    """Stands before the trainer's own profiler while a window records, and passes everything on to it.

    Lightning reads ``trainer.profiler`` afresh whenever it does something, so that this costs nothing at other times,
    and needs no change to the user's module.

    Args:
        inner: The trainer's own profiler.
        region: Opens a label in the trace.
        own: How the actions of our own callback begin; they get no label.
    """

    def __init__(self, inner: Profiler, region: Callable[[str], AbstractContextManager[Any]], own: str) -> None:
        super().__init__(inner.dirpath, inner.filename)
        self.inner = inner
        self._region = region
        self._own = own
        self._open: list[tuple[str, AbstractContextManager[Any]]] = []
        self._thread = threading.get_ident()

    @classmethod
    def before(cls, trainer: Any, region: Callable[[str], AbstractContextManager[Any]], own: str) -> Regions:
        """Put one before the trainer's profiler."""
        regions = cls(trainer.profiler, region, own)
        trainer.profiler = regions
        return regions

    def leave(self, trainer: Any) -> None:
        """Close all labels and put the trainer's own profiler back."""
        self.close()
        if trainer.profiler is self:
            trainer.profiler = self.inner

    def begin(self, part: str, key: str | None = None) -> None:
        """Open a label; ``key`` is what ``end`` will call it, if not by its name."""
        region = self._region(part)
        region.__enter__()
        self._open.append((key or part, region))

    def end(self, key: str) -> None:
        """Close the innermost label of this key and, after an exception, those that were left open inside."""
        if self.has(key):
            while self._close_last() != key:
                pass

    def has(self, key: str) -> bool:
        """Whether a label of this key is open."""
        return any(key == name for name, _ in self._open)

    def close(self) -> None:
        """Close all labels."""
        while self._open:
            self._close_last()

    def _close_last(self) -> str:
        key, region = self._open.pop()
        region.__exit__(None, None, None)
        return key

    def _enter(self, action: str) -> None:
        if threading.get_ident() != self._thread:
            return
        if action == _EPOCH:
            # up to the first fetch nothing happens but the start of the workers
            self.begin(labels.DATA, key=action)
        elif not action.startswith(self._own) and action not in _UNNAMED:
            part = self._part(action)
            if part == labels.DATA:
                self.end(_EPOCH)
            self.begin(part or action, key=part if action.endswith(_LASTS) else action)

    def _leave(self, action: str) -> None:
        if threading.get_ident() == self._thread and not action.endswith(_LASTS):
            self.end(action)

    def _part(self, action: str) -> str | None:
        """The part that an action is; inside validation everything is validation, except for saving a checkpoint."""
        owner, _, hook = action.rpartition(".")
        if owner.startswith("[Callback]"):
            return None
        part = _PARTS.get(hook) if owner.startswith("[") or not owner else None
        return None if self.has(labels.VALIDATION) and part != labels.CHECKPOINT else part

    # -- what Lightning calls ----------------------------------------------------------------------------------------

    def start(self, action_name: str) -> None:
        """An action begins."""
        self.inner.start(action_name)
        self._enter(action_name)

    def stop(self, action_name: str) -> None:
        """An action ends."""
        self._leave(action_name)
        self.inner.stop(action_name)

    @contextmanager
    def profile(self, action_name: str) -> Iterator[Any]:
        """An action, from its beginning to its end."""
        with self.inner.profile(action_name) as given:
            self._enter(action_name)
            try:
                yield given
            finally:
                self._leave(action_name)

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Of the trainer's own profiler."""
        self.inner.setup(stage, local_rank, log_dir)

    def summary(self) -> str:
        """Of the trainer's own profiler."""
        return self.inner.summary()

    def describe(self) -> None:
        """Of the trainer's own profiler."""
        self.inner.describe()

    def teardown(self, stage: str | None) -> None:
        """Of the trainer's own profiler."""
        self.inner.teardown(stage)

    def __del__(self) -> None:
        """The trainer's own profiler outlives this one: Lightning's would tear it down."""

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)
