"""Which loaders feed the steps of a window: torch's trace names none of their settings."""

from __future__ import annotations

from typing import Any

from perfhooks.run.circumstances import Loader


class LoadersRead:
    """The loaders that were read in the steps of a window, with the number of steps in which each was.

    A validation is in few steps, however many batches it reads; so what is in most of them feeds the training.
    """

    def __init__(self) -> None:
        self.of_step: set[int] = set()
        """The iterators that were read in the step that goes on."""
        self._steps: dict[Loader, int] = {}
        self._iterators: dict[Loader, set[int]] = {}

    def begin_step(self) -> None:
        """Another step begins."""
        self.of_step.clear()

    def add(self, iterator: Any) -> None:
        """One is read, for the first time in this step."""
        self.of_step.add(id(iterator))
        loader = Loader.of(iterator)
        self._steps[loader] = self._steps.get(loader, 0) + 1
        self._iterators.setdefault(loader, set()).add(id(iterator))

    @property
    def most(self) -> Loader | None:
        """The settings of that which was read in most steps, of several the first one; None where none was read."""
        return max(self._steps, key=self._steps.__getitem__, default=None)

    @property
    def iterators(self) -> set[int]:
        """The numbers of the iterators that had them."""
        most = self.most
        return set() if most is None else self._iterators[most]
