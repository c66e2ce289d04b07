"""Labels that begin in one hook of a framework and end in another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class OpenLabels:
    """The labels that are open in the trace, innermost last.

    Args:
        region: Opens one: ``profiler.region``.
    """

    def __init__(self, region: Callable[[str], AbstractContextManager[Any]]) -> None:
        self._region = region
        self._open: list[tuple[str, AbstractContextManager[Any]]] = []

    def begin(self, label: str, key: str | None = None) -> None:
        """Open a label; ``key`` is what ``end`` will call it, if not by its name."""
        region = self._region(label)
        region.__enter__()
        self._open.append((key or label, region))

    def end(self, key: str) -> None:
        """Close the innermost label of this key and, after an exception, those that were left open inside."""
        if self.has(key):
            while self._close_last() != key:
                pass

    def has(self, key: str) -> bool:
        """Whether a label of this key is open."""
        return any(key == name for name, _ in self._open)

    @property
    def innermost(self) -> str | None:
        """The key of the label that was opened last; None if none is open."""
        return self._open[-1][0] if self._open else None

    def close(self) -> None:
        """Close all labels."""
        while self._open:
            self._close_last()

    def _close_last(self) -> str:
        key, region = self._open.pop()
        region.__exit__(None, None, None)
        return key
