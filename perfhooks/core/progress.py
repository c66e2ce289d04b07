"""Progress on a terminal. Without a terminal nothing is written."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from perfhooks.core import words
from perfhooks.core.clocks import time
from perfhooks.core.guard import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def show_spinner(text: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows one line. The line is removed at the end."""
    is_shown = False

    def tell(text: str) -> None:
        nonlocal is_shown
        if sys.stderr.isatty():  # check as late as possible, because the program may close standard error before
            is_shown = True
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()

    try:
        yield tell
    finally:
        if is_shown:
            tell("")


@contextmanager
def show_wait() -> Iterator[Callable[[float], None]]:
    """Yield a function that shows the elapsed seconds, if the wait is longer than a second."""
    is_shown = False
    with status_line() as tell:

        def show(seconds: float) -> None:
            nonlocal is_shown
            if seconds < 1:
                return
            if sys.stderr is not None and sys.stderr.isatty():
                tell(f"perfhooks: writing the report, {words.ms(seconds * 1e3)} so far ")
            elif not is_shown:
                logger.info("writing the report")
            is_shown = True

        yield show


@contextmanager
def show_count(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows the number of finished items and the total."""
    with status_line() as tell:
        yield lambda done, total: tell(f"{what} {done + 1} of {total}")


@contextmanager
def show_remaining(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a function that shows the current item with its number (from 1), the total and the remaining time."""
    start = time.monotonic()
    with status_line() as tell:

        def show(number: int, total: int, now: str) -> None:
            done = number - 1
            remaining_time = (
                f", {words.ms((time.monotonic() - start) / done * (total - done) * 1e3)} left" if done else ""
            )
            tell(f"{what} {number} of {total}{remaining_time}: {now[:60]}")

        yield show
