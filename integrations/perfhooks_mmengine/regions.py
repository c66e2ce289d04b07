from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from mmengine.model import is_model_wrapper

from perfhooks.adapters import Parts, hide_frames, hide_from_warnings, labels
from perfhooks_mmengine.updates import optim_wrappers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perfhooks import Profiler

_BEFORE_DATA: Final = {
    "train": ("before_train_epoch", "after_train_iter"),
    "validate": ("before_val_epoch", "after_val_iter"),
    "test": ("before_test_epoch", "after_test_iter"),
}
_UPDATE: Final = {"backward": labels.BACKWARD, "step": labels.OPTIMIZER, "zero_grad": labels.OPTIMIZER}


def parts_of(profiler: Profiler, stage: str) -> Parts:
    return Parts(profiler, {"save_checkpoint": labels.CHECKPOINT}, more=functools.partial(_wrap, stage), waits=True)


def _wrap(stage: str, parts: Parts, runner: Any) -> None:
    parts.methods.wrap(runner, "call_hook", functools.partial(_around_hooks, parts, _BEFORE_DATA[stage]))
    if runner.cfg.get("compile"):
        return  # wrappers would trigger a new compilation inside the window
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    parts.wrap(getattr(model, "data_preprocessor", None), "forward", labels.TRANSFER)
    if stage != "train":
        parts.wrap(runner.model, "test_step" if stage == "test" else "val_step", labels.FORWARD)
        return
    for optim_wrapper in optim_wrappers(runner):
        parts.methods.wrap(optim_wrapper, "optim_context", functools.partial(_around_forward, parts))
        for name, part in _UPDATE.items():
            parts.wrap(optim_wrapper, name, part)


def _around_hooks(parts: Parts, before_data: tuple[str, ...], call_hook: Callable[..., None]) -> Callable[..., None]:
    """Interrupt the label of the wait for data while other hooks run."""

    @functools.wraps(call_hook)
    @hide_from_warnings
    def labelled(fn_name: str, **arguments: Any) -> None:
        parts.end(labels.DATA)
        try:
            call_hook(fn_name, **arguments)
        except BaseException as error:
            hide_frames(error)
            raise
        if fn_name in before_data:
            parts.wait()

    return labelled


def _around_forward(parts: Parts, optim_context: Callable[..., Any]) -> Callable[..., Any]:
    @contextmanager
    @functools.wraps(optim_context)
    @hide_from_warnings
    def labelled(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with parts.part(labels.FORWARD), optim_context(*args, **kwargs) as value:
            yield value

    return labelled
