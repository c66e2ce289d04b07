"""What a terminal shows while something takes its time; nothing where nobody is looking."""

from __future__ import annotations

import sys
import time
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


@contextmanager
def remaining(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """Say on a terminal what is being done, how far it has come, and how long the rest will take.

    Yields:
        Takes which of how many is being done, from 1, and what it is.
    """
    shown = sys.stderr.isatty()
    began = time.monotonic()

    def tell(number: int, total: int, now: str) -> None:
        if not shown:
            return
        done = number - 1
        left = f", {(time.monotonic() - began) / done * (total - done):.0f} s left" if done else ""
        sys.stderr.write(f"\r{what} {number} of {total}{left}: {now[:60]}\x1b[K")
        sys.stderr.flush()

    try:
        yield tell
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
