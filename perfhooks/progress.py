"""What a terminal shows while something takes its time; nothing where nobody is looking."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATIENCE_S: Final = 0.5
"""A wait shorter than this is over before a person has read about it."""


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show on a terminal that something goes on."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


@contextmanager
def waiting() -> Iterator[Callable[[int, float], None]]:
    """Show on a terminal, after a moment, that somebody is being waited for.

    Yields:
        Takes how many windows are waited for, and since how many seconds.
    """
    shown = False

    def show(count: int, seconds: float) -> None:
        nonlocal shown
        if seconds >= _PATIENCE_S and sys.stderr.isatty():
            shown = True
            sys.stderr.write(f"\rperfhooks: finishing {count} window{'s' * (count > 1)}, {seconds:.0f} s \x1b[K")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Say on a terminal how far a long piece of work has come."""
    shown = sys.stderr.isatty()

    def tell(done: int, total: int) -> None:
        if shown:
            sys.stderr.write(f"\r{what} {done + 1} of {total}\x1b[K")
            sys.stderr.flush()

    try:
        yield tell
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
