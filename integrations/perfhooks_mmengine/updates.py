"""Optimizer updates as steps: iterations that only accumulate gradients end no step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmengine.optim import OptimWrapperDict

if TYPE_CHECKING:
    from collections.abc import Callable


def optim_wrappers(runner: Any) -> list[Any]:
    has_several = isinstance(runner.optim_wrapper, OptimWrapperDict)
    return list(runner.optim_wrapper.values()) if has_several else [runner.optim_wrapper]


class Updates:
    def __init__(self) -> None:
        self._iteration = 0
        self._answers: list[Callable[[], bool]] = []

    def start(self, runner: Any) -> None:
        self._iteration = runner.iter
        self._answers = [getattr(wrapper, "should_update", lambda: True) for wrapper in optim_wrappers(runner)]

    def end_iteration(self) -> bool:
        """End an iteration. Return whether the iteration updated the model."""
        self._iteration += 1
        return self._has_updated()

    def before_end(self, checkpoint: dict[str, Any]) -> bool:
        """Return whether a checkpoint includes an update of an unfinished iteration."""
        return bool(checkpoint["meta"]["iter"] > self._iteration) and self._has_updated()

    def _has_updated(self) -> bool:
        return any(answer() for answer in self._answers)
