"""The parts of an iteration, labelled in the trace while a window is open; the model's own code stays as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapperDict

from perfhooks.adapting import OpenLabels, WrappedMethods, labels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from perfhooks import Profiler

Method = Callable[..., Any]

_BEFORE_DATA: Final = {
    "train": ("before_train_epoch", "after_train_iter"),
    "validate": ("before_val_epoch", "after_val_iter"),
    "test": ("before_test_epoch", "after_test_iter"),
}
"""The hook points after which a loop asks for its next batch."""


class Regions:
    """Labels the parts of one loop's iterations.

    Args:
        profiler: Whose windows are labelled.
        stage: Its loop.
    """

    def __init__(self, profiler: Profiler, stage: str) -> None:
        self._profiler = profiler
        self._stage = stage
        self._methods = WrappedMethods()
        self._wait = OpenLabels(profiler.region)
        self._validating = False
        self._on = False

    def put(self, runner: Any, *, waiting: bool) -> None:
        """Label what begins from now on."""
        self._on = True
        wrap = self._methods.wrap
        wrap(runner, "call_hook", self._around_hooks)
        wrap(runner, "save_checkpoint", self._inside(labels.CHECKPOINT))
        if waiting:
            self._wait_for_data()
        if runner.cfg.get("compile"):
            return  # torch.compile would compile the step again, in the middle of the window
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        wrap(getattr(model, "data_preprocessor", None), "forward", self._inside(labels.TRANSFER))
        if self._stage == "train":
            self._wrap_update(runner.optim_wrapper)
        else:
            wrap(runner.model, "test_step" if self._stage == "test" else "val_step", self._inside(labels.FORWARD))

    def take_off(self, runner: Any) -> None:
        """Leave everything as it was."""
        self._on = False
        self._data_arrived()
        self._methods.unwrap()

    def _wait_for_data(self) -> None:
        """What follows, up to the next hook point or a validation, is the wait for the next batch."""
        if not self._wait.has(labels.DATA):
            self._wait.begin(labels.DATA)

    @contextmanager
    def validation(self) -> Iterator[None]:
        """A validation that interrupts the loop: one part, whatever it does but save a checkpoint."""
        if not self._on:
            yield
            return
        waited = self._wait.has(labels.DATA)
        self._data_arrived()
        self._validating = True
        try:
            with self._profiler.region(labels.VALIDATION):
                yield
        finally:
            self._validating = False
        if waited:
            self._wait_for_data()

    def _data_arrived(self) -> None:
        self._wait.close()

    def _wrap_update(self, optim_wrapper: Any) -> None:
        several = isinstance(optim_wrapper, OptimWrapperDict)
        for one in optim_wrapper.values() if several else [optim_wrapper]:
            self._methods.wrap(one, "optim_context", self._inside_context(labels.FORWARD))
            self._methods.wrap(one, "backward", self._inside(labels.BACKWARD))
            self._methods.wrap(one, "step", self._inside(labels.OPTIMIZER))
            self._methods.wrap(one, "zero_grad", self._inside(labels.OPTIMIZER))

    def _region(self, part: str) -> AbstractContextManager[Any]:
        hidden = not self._on or (self._validating and part != labels.CHECKPOINT)
        return nullcontext() if hidden else self._profiler.region(part)

    def _inside(self, part: str) -> Callable[[Method], Method]:
        """Makes what goes around a method that is a part of the step."""

        def around(method: Method) -> Method:
            @functools.wraps(method)
            def labelled(*args: Any, **kwargs: Any) -> Any:
                with self._region(part):
                    return method(*args, **kwargs)

            return labelled

        return around

    def _inside_context(self, part: str) -> Callable[[Method], Method]:
        """Makes what goes around a method that opens a context, which is a part of the step."""

        def around(method: Method) -> Method:
            @contextmanager
            @functools.wraps(method)
            def labelled(*args: Any, **kwargs: Any) -> Iterator[Any]:
                with self._region(part), method(*args, **kwargs) as value:
                    yield value

            return labelled

        return around

    def _around_hooks(self, call_hook: Method) -> Method:
        """The wait for data lies between hook points, whatever the hooks themselves do."""

        @functools.wraps(call_hook)
        def labelled(fn_name: str, **arguments: Any) -> None:
            self._data_arrived()
            call_hook(fn_name, **arguments)
            if self._on and fn_name in _BEFORE_DATA[self._stage]:
                self._wait_for_data()

        return labelled
