"""The boundary between profiling and training: what fails on our side ends here, as one log line."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

OnError = Literal["warn", "raise"]

logger = logging.getLogger("perfhooks")


class _Console(logging.StreamHandler):  # type: ignore[type-arg]  # generic only for type checkers before 3.11
    """Writes to the standard error of the moment, and only while nobody else shows the program's log."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and logger.handlers == [self]:
            self.setStream(sys.stderr)
            super().emit(record)


def speak_up() -> None:
    """Let INFO lines reach the terminal of a program that never configured logging."""
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        return
    console = _Console()
    console.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.addHandler(console)
    logger.setLevel(logging.INFO)


@contextmanager
def guard(what: str, on_error: OnError = "warn") -> Iterator[None]:
    """Keep a failure of ours from reaching the training loop.

    Args:
        what: What is being done, as the start of a sentence ("saving the trace").
        on_error: ``"warn"`` logs one line, and the traceback at DEBUG; ``"raise"`` lets the error through.
    """
    try:
        yield
    except Exception as error:
        if on_error == "raise":
            raise
        logger.warning("%s failed (%s: %s); training goes on", what, type(error).__name__, error)
        logger.debug("%s failed", what, exc_info=True)
