from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class OpenLabels:
    """Labels that have begun but not ended, innermost last. ``region`` returns a context manager for a label."""

    def __init__(self, region: Callable[[str], AbstractContextManager[Any]]) -> None:
        self._region = region
        self._open: list[tuple[str, AbstractContextManager[Any]]] = []

    def begin(self, label: str, key: str | None = None) -> None:
        """Begin a label. `end` ends the label with this ``key`` (by default, the label)."""
        region = self._region(label)
        region.__enter__()
        self._open.append((key or label, region))

    def end(self, key: str) -> None:
        """End the innermost label with this key, and labels inside it that an exception left open."""
        if self.has(key):
            while self._close_last() != key:
                pass

    def has(self, key: str) -> bool:
        return any(key == name for name, _ in self._open)

    @property
    def innermost(self) -> str | None:
        return self._open[-1][0] if self._open else None

    def close(self) -> None:
        while self._open:
            self._close_last()

    def _close_last(self) -> str:
        key, region = self._open.pop()
        region.__exit__(None, None, None)
        return key
