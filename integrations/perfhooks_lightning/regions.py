from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from perfhooks.adapters import Parts, hide_from_warnings, labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perfhooks import Profiler

_FETCHES: Final = ("train_dataloader_next", "val_next", "test_next", "predict_next")
_PARTS: Final = {
    **dict.fromkeys(_FETCHES, labels.DATA),
    "batch_to_device": labels.TRANSFER,
    **dict.fromkeys(("training_step", "validation_step", "test_step", "predict_step"), labels.FORWARD),
    **dict.fromkeys(("optimizer_step", "optimizer_zero_grad", "lr_scheduler_step"), labels.OPTIMIZER),
    "save_checkpoint": labels.CHECKPOINT,
    # first action of a validation; Lightning starts the loader workers before on_validation_start
    "on_validation_model_zero_grad": labels.VALIDATION,
}
"""Part of the step, keyed by the last word in the name of an action that Lightning profiles."""

_EPOCH: Final = "run_training_epoch"
_UNNAMED: Final = ("run_training_batch",)


def parts_of(profiler: Profiler, _stage: str, *, own: str, module_names: bool) -> Parts:
    """Return labels for Lightning's actions, except those of perfhooks (prefix ``own``)."""
    modules = attrgetter("lightning_module") if module_names else None
    return Parts(profiler, {}, more=functools.partial(_Actions, own), modules=modules)


class _Actions:
    def __init__(self, own: str, parts: Parts, trainer: Any) -> None:
        self._own = own
        self._parts = parts
        self._labels = parts.labels
        self._trainer = trainer
        self._thread = threading.get_ident()
        for name, around in (("start", self._start), ("stop", self._stop), ("profile", self._profile)):
            parts.methods.wrap(trainer.profiler, name, around)
        for callback in trainer.callbacks:
            if own == f"[Callback]{callback.state_key}.":
                # Lightning does not name the backward pass of manual optimization
                parts.methods.wrap(callback, "on_before_backward", functools.partial(_before, parts.begin))
                parts.methods.wrap(callback, "on_after_backward", functools.partial(_before, parts.end))

    def _start(self, start: Callable[[str], None]) -> Callable[[str], None]:
        @functools.wraps(start)
        @hide_from_warnings
        def labelled(action_name: str) -> None:
            start(action_name)
            self._enter(action_name)

        return labelled

    def _stop(self, stop: Callable[[str], None]) -> Callable[[str], None]:
        @functools.wraps(stop)
        @hide_from_warnings
        def labelled(action_name: str) -> None:
            self._leave(action_name)
            stop(action_name)

        return labelled

    def _profile(self, profile: Callable[[str], Any]) -> Callable[[str], Any]:
        @contextmanager
        @functools.wraps(profile)
        @hide_from_warnings
        def labelled(action_name: str) -> Iterator[Any]:
            with profile(action_name) as value:
                # Lightning's profilers call start and stop here; other profilers may not
                is_new = self._labels.innermost != action_name
                if is_new:
                    self._enter(action_name)
                try:
                    yield value
                finally:
                    if is_new:
                        self._leave(action_name)

        return labelled

    def _enter(self, action: str) -> None:
        if not self._is_labelled() or action.startswith(self._own) or action in _UNNAMED:
            return
        part = self._part(action)
        if action == _EPOCH:
            # before the first fetch, Lightning only starts the loader workers
            self._labels.begin(labels.DATA, key=action)
        elif part == labels.VALIDATION:
            self._parts.begin(part)  # the callback of perfhooks ends this label
        else:
            if part == labels.DATA:
                self._labels.end(_EPOCH)
            self._labels.begin(part or action, key=action)

    def _leave(self, action: str) -> None:
        if self._is_labelled():
            self._labels.end(action)

    def _is_labelled(self) -> bool:
        return self._parts.is_on and threading.get_ident() == self._thread

    def _part(self, action: str) -> str | None:
        owner, _, hook = action.rpartition(".")
        part = _PARTS.get(hook) if owner.startswith("[") or not owner else None
        if hook == "training_step" and not self._trainer.lightning_module.automatic_optimization:
            part = None  # contains the step
        return None if self._labels.has(labels.VALIDATION) else part


def _before(act: Callable[[str], None], hook: Callable[..., None]) -> Callable[..., None]:

    @functools.wraps(hook)
    @hide_from_warnings
    def labelled(*args: Any, **kwargs: Any) -> None:
        act(labels.BACKWARD)
        hook(*args, **kwargs)

    return labelled
