"""How a process ends, or splits: open profilers are closed before Python's end, and left alone in forked children."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class Closable(Protocol):
    """A profiler, as far as this module needs to know."""

    def stop(self, cause: str | None = None) -> None:
        """End what is being recorded, and keep it."""

    def abandon(self) -> None:
        """Forget what is being recorded."""


_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def opened(profiler: Closable) -> None:
    """Remember a profiler that has been started."""
    _open.add(profiler)


def closed(profiler: Closable) -> None:
    """Forget a profiler that has been stopped."""
    _open.discard(profiler)


@atexit.register
def _close_all() -> None:
    """An open recorder at the end of the interpreter is a segmentation fault."""
    for profiler in list(_open):
        profiler.stop("the interpreter exited")


def _abandon_all() -> None:
    for profiler in list(_open):
        profiler.abandon()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
