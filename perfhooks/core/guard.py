"""The boundary between profiling and training: what fails on our side ends here, as one log line."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from perfhooks.core.frames import is_ours

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.core.errors import OnError

logger = logging.getLogger("perfhooks")


class _Console(logging.StreamHandler):  # type: ignore[type-arg]  # generic only for type checkers before 3.11
    """Writes to the standard error of the moment, and only while nobody else shows the program's log."""

    def emit(self, record: logging.LogRecord) -> None:
        is_alone = not logger.propagate or not logging.getLogger().handlers
        if not is_alone or logger.handlers != [self] or _is_kept(record):
            return
        if is_own_stderr():
            write_error(f"{self.format(record)}\n")
        else:
            self.stream = sys.stderr  # setStream flushes the one before, which may have been closed
            super().emit(record)


def _is_kept(record: logging.LogRecord) -> bool:
    """Whether a line would stay in a notebook that is saved; warnings may."""
    return record.levelno < logging.WARNING and type(sys.stderr).__module__.startswith("ipykernel")


_STDERR: Final = 2


def is_own_stderr() -> bool:
    """Return whether ``sys.stderr`` is the standard error of the process, and not an object of the program."""
    try:
        return sys.__stderr__ is not None and sys.stderr is sys.__stderr__ and sys.__stderr__.fileno() == _STDERR
    except (OSError, ValueError):  # it was closed
        return False


def is_terminal() -> bool:
    """Return whether `write_error` writes to a terminal."""
    return os.isatty(_STDERR)


def write_error(text: str) -> None:
    """Write to standard error; a reader that is gone, or that does not read, changes nothing for the program.

    ``sys.stderr`` would keep text that it cannot write, and Python would then end with exit code 120.
    """
    if sys.__stderr__ is None or sys.__stderr__.closed:
        return
    content = text.encode(sys.__stderr__.encoding or "utf-8", "replace")
    pipe = {signal.SIGPIPE} if hasattr(signal, "pthread_sigmask") else set()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, pipe) if pipe else set()
    try:
        sys.__stderr__.flush()
        while content and select.select([], [_STDERR], [], 1.0)[1]:
            content = content[os.write(_STDERR, content[: select.PIPE_BUF]) :]
    except (OSError, ValueError):
        if pipe & signal.sigpending():
            signal.sigwait(pipe)
    finally:
        if pipe:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def speak_up(*, apart: bool = False) -> None:
    """Let INFO lines reach the terminal of a program that never configured logging.

    Args:
        apart: Keep them out of the program's own log too, wherever that goes, as it knows nothing of us.
    """
    if apart:
        logger.propagate = False
    elif logger.hasHandlers():
        return
    if logger.handlers or logger.level != logging.NOTSET:
        return
    console = _Console()
    console.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.addHandler(console)
    logger.setLevel(logging.INFO)


MOST_CHARACTERS: Final = 1000
"""Of an exception's text; some carry whole tables."""


def cause_of(error: BaseException) -> str:
    """An exception as the cause of something, whatever it does when it is asked for its text."""
    name = type(error).__name__
    try:
        return f"{name}: {str(error)[:MOST_CHARACTERS]}".rstrip(": ")
    except Exception:  # noqa: BLE001 -- the text is code of the user's
        return name


def hide_frames(error: BaseException) -> None:
    """Leave our frames out of the traceback of an exception of the program, which passes through a stand-in of ours.

    On Python 3.10 an exception that is raised again keeps them.
    """
    trace = error.__traceback__
    while trace is not None and is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    error.__traceback__ = trace
    while trace is not None:
        inner = trace.tb_next
        while inner is not None and is_ours(inner.tb_frame.f_code.co_filename):
            inner = inner.tb_next
        if inner is not trace.tb_next:
            trace.tb_next = inner
        trace = inner


def is_of_handler(error: BaseException) -> bool:
    """Whether an exception comes from a signal handler of the program's, so that it is not for us to catch."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(each, "__func__", each), "__code__", None) for each in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


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
        if on_error == "raise" or is_of_handler(error):
            raise
        logger.warning("%s failed (%s); training goes on", what, cause_of(error))
        logger.debug("%s failed", what, exc_info=True)
