"""The parts of a step, from what Lightning tells the profiler of its trainer about everything that it does."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from perfhooks.adapting import ModuleNames, OpenLabels, labels
from perfhooks_lightning import framework

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning.pytorch.profilers import Profiler

    import perfhooks
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
        open_labels: Those of the step.
        own: How the actions of our own callback begin; they get no label.
    """

    def __init__(self, inner: Profiler, open_labels: OpenLabels, own: str) -> None:
        super().__init__(inner.dirpath, inner.filename)
        self.inner = inner
        self._labels = open_labels
        self._own = own
        self._thread = threading.get_ident()

    def _enter(self, action: str) -> None:
        if threading.get_ident() != self._thread:
            return
        if action == _EPOCH:
            # up to the first fetch nothing happens but the start of the workers
            self._labels.begin(labels.DATA, key=action)
        elif not action.startswith(self._own) and action not in _UNNAMED:
            part = self._part(action)
            if part == labels.DATA:
                self._labels.end(_EPOCH)
            self._labels.begin(part or action, key=part if action.endswith(_LASTS) else action)

    def _leave(self, action: str) -> None:
        if threading.get_ident() == self._thread and not action.endswith(_LASTS):
            self._labels.end(action)

    def _part(self, action: str) -> str | None:
        """The part that an action is; inside validation everything is validation, except for saving a checkpoint."""
        owner, _, hook = action.rpartition(".")
        if owner.startswith("[Callback]"):
            return None
        part = _PARTS.get(hook) if owner.startswith("[") or not owner else None
        return None if self._labels.has(labels.VALIDATION) and part != labels.CHECKPOINT else part

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


class Parts:
    """Labels the parts of a loop's steps while a window is open.

    Args:
        profiler: Of this loop.
        own: How Lightning names what our callback does.
        module_names: Whether to label the forward pass of every module.
    """

    def __init__(self, profiler: perfhooks.Profiler, *, own: str, module_names: bool) -> None:
        self._region = profiler.region
        self._own = own
        self._names_wanted = module_names
        self._labels = OpenLabels(profiler.region)
        self._regions: Regions | None = None
        self._names: ModuleNames | None = None

    def put(self, trainer: Any, *, waiting: bool) -> None:
        """A window has opened."""
        self._regions = trainer.profiler = Regions(trainer.profiler, self._labels, self._own)
        if self._names_wanted:
            self._names = ModuleNames(trainer.lightning_module, self._region)

    def take_off(self, trainer: Any) -> None:
        """The window has closed: the trainer has its own profiler again."""
        regions, self._regions = self._regions, None
        names, self._names = self._names, None
        self._labels.close()
        if regions is not None and trainer.profiler is regions:
            trainer.profiler = regions.inner
        if names is not None:
            names.remove()

    def enter(self, part: str) -> None:
        """A part of the step begins that Lightning does not name, if it has not begun already."""
        if self._regions is not None and not self._labels.has(part):
            self._labels.begin(part)

    def leave(self, part: str) -> None:
        """It ends."""
        self._labels.end(part)
