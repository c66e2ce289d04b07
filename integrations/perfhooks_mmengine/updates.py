"""Updates of the optimizer as the unit of steps: an iteration that only accumulates gradients ends none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmengine.optim import OptimWrapperDict

if TYPE_CHECKING:
    from collections.abc import Callable


def optim_wrappers(runner: Any) -> list[Any]:
    """What goes around each optimizer of a runner; mostly there is one."""
    several = isinstance(runner.optim_wrapper, OptimWrapperDict)
    return list(runner.optim_wrapper.values()) if several else [runner.optim_wrapper]


class Updates:
    """Tells which iterations have updated the model."""

    def __init__(self) -> None:
        self._iteration = 0
        self._answers: list[Callable[[], bool]] = []

    def start(self, runner: Any) -> None:
        """A training begins, or goes on."""
        self._iteration = runner.iter
        # an optimizer that cannot tell updates the model every time
        self._answers = [getattr(wrapper, "should_update", lambda: True) for wrapper in optim_wrappers(runner)]

    def end_iteration(self) -> bool:
        """Whether the iteration that ends has updated the model."""
        self._iteration += 1
        return self._updated()

    def before_end(self, checkpoint: dict[str, Any]) -> bool:
        """Whether a checkpoint holds an update of an iteration that has not ended yet, as far as we were told."""
        return bool(checkpoint["meta"]["iter"] > self._iteration) and self._updated()

    def _updated(self) -> bool:
        return any(answer() for answer in self._answers)
