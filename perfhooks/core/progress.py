"""What a terminal shows while something takes its time; nothing where nobody is looking."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from perfhooks.core import words
from perfhooks.core.guard import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATIENCE_S: Final = 1.0
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
def line() -> Iterator[Callable[[str], None]]:
    """One line on a terminal that says how things stand, and is gone at the end.

    Yields:
        Takes what it says from now on; nothing is shown before.
    """
    is_shown = False

    def tell(text: str) -> None:
        nonlocal is_shown
        if sys.stderr.isatty():  # asked as late as can be: a program may have closed it, and never wait that long
            is_shown = True
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()

    try:
        yield tell
    finally:
        if is_shown:
            tell("")


@contextmanager
def waiting() -> Iterator[Callable[[float], None]]:
    """Say on one line, after a second, that the process waits for its files; a terminal forgets the line at the end.

    Yields:
        Takes for how many seconds the process has waited.
    """
    is_said = False
    with line() as tell:

        def show(seconds: float) -> None:
            nonlocal is_said
            if seconds < _PATIENCE_S:
                return
            if sys.stderr is not None and sys.stderr.isatty():
                tell(f"perfhooks: writing the report, {words.ms(seconds * 1e3)} ")
            elif not is_said:
                logger.info("writing the report")
            is_said = True

        yield show


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Say on a terminal how far a long piece of work has come."""
    with line() as tell:
        yield lambda done, total: tell(f"{what} {done + 1} of {total}")


@contextmanager
def remaining(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """Say on a terminal what is being done, how far it has come, and how long the rest will take.

    Yields:
        Takes which of how many is being done, from 1, and what it is.
    """
    began = time.monotonic()
    with line() as tell:

        def show(number: int, total: int, now: str) -> None:
            done = number - 1
            left = f", {words.ms((time.monotonic() - began) / done * (total - done) * 1e3)} left" if done else ""
            tell(f"{what} {number} of {total}{left}: {now[:60]}")

        yield show
