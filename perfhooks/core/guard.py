"""The boundary to the training: an error of perfhooks becomes one log line."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from perfhooks.core.frames import is_ours
from perfhooks.core.handlers import is_of_handler
from perfhooks.core.words import MAX_TEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.core.errors import OnError

logger = logging.getLogger("perfhooks")


class _Console(logging.StreamHandler):  # type: ignore[type-arg]  # generic only for type checkers before 3.11
    """Log handler that writes to the current ``sys.stderr``, unless the program configured logging."""

    def emit(self, record: logging.LogRecord) -> None:
        is_alone = not logger.propagate or not logging.getLogger().handlers
        if not is_alone or logger.handlers != [self] or _is_stored_in_notebook(record):
            return
        if is_own_stderr():
            write_error(f"{self.format(record)}\n")
        else:
            self.stream = sys.stderr  # setStream would flush the previous stream, which may be closed
            super().emit(record)


def _is_stored_in_notebook(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING and type(sys.stderr).__module__.startswith("ipykernel")


MAX_FAILURES: Final = 3
"""Number of failures after which perfhooks stops recording, or stops its worker process."""
_STDERR: Final = 2


def is_own_stderr() -> bool:
    try:
        return sys.__stderr__ is not None and sys.stderr is sys.__stderr__ and sys.__stderr__.fileno() == _STDERR
    except (OSError, ValueError):
        return False


def is_terminal() -> bool:
    return os.isatty(_STDERR)


def stderr_file() -> str:
    """Return device and inode of standard error; empty if closed."""
    try:
        status = os.fstat(_STDERR)
    except OSError:
        return ""
    return f"{status.st_dev}-{status.st_ino}"


def write_error(text: str) -> None:
    """Write to standard error, even if the pipe's reader is closed or blocked.

    Text that remains in the buffer of ``sys.stderr`` would end Python with exit code 120.
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


def enable_console_log(*, apart: bool = False) -> None:
    """Show INFO lines on the terminal if the program did not configure logging.

    ``apart`` keeps the INFO lines out of the program's own log.
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


def cause_of(error: BaseException) -> str:
    """Return type and message of an exception, even if its ``__str__`` raises."""
    name = type(error).__name__
    try:
        text = str(error).rstrip()
        if "Original Traceback" in text:  # torch raises errors of loader workers and replicas with their traceback
            return text.rpartition("\n")[2][:MAX_TEXT]
        return f"{name}: {text[:MAX_TEXT]}".rstrip(": ")
    except Exception:  # noqa: BLE001 -- __str__ is user code
        return name


def hide_frames(error: BaseException) -> None:
    """Remove frames of perfhooks from the traceback. On Python 3.10 the frames remain if the exception is re-raised."""
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


@contextmanager
def guard(what: str, on_error: OnError = "warn") -> Iterator[None]:
    """Log an error of perfhooks instead of ending the training. The log line begins with ``what``."""
    try:
        yield
    except Exception as error:
        if on_error == "raise" or is_of_handler(error):
            raise
        logger.warning("%s failed (%s); the training continues", what, cause_of(error))
        logger.debug("%s failed", what, exc_info=True)
