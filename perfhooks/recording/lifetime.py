"""How a process ends, or splits: open profilers are closed before Python's end, and left alone in forked children."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol


class Closable(Protocol):
    """A profiler, as far as this module needs to know."""

    def stop(self, cause: str | None = None) -> None:
        """End what is being recorded, and keep it."""

    def leave(self) -> None:
        """Stop, and wait for files for a while."""

    def abandon(self) -> None:
        """Forget what is being recorded."""


_known: set[Closable] = set()
"""Started, or with files to wait for; kept alive, as the end of the process must find them."""
_watched: weakref.WeakSet[Closable] = weakref.WeakSet()
"""With an open window, in the main thread."""


def opened(profiler: Closable) -> None:
    """Remember a profiler until the process ends, or until it is forgotten."""
    _known.add(profiler)


def forget(profiler: Closable) -> None:
    """A profiler has stopped and waits for nothing."""
    _known.discard(profiler)


@atexit.register
def _leave_all() -> None:
    """An open recorder at the end of the interpreter is a segmentation fault."""
    for profiler in list(_known):
        profiler.leave()
    _known.clear()


def _abandon_all() -> None:
    for profiler in list(_known):
        profiler.abandon()
    _known.clear()
    _watched.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


class _Busy(AbstractContextManager[None]):
    """Our own code at work: SIGTERM and Ctrl-C wait until it is done, as a recorder cut off in its stop loses all."""

    depth = 0
    postponed = False
    interrupted = False

    def __enter__(self) -> None:
        self.depth += 1
        if self.depth == 1 and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _on_sigint)

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if self.depth:
            return
        if signal.getsignal(signal.SIGINT) is _on_sigint:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupted, self.interrupted = self.interrupted, False
        if self.postponed:
            _terminate()
        if interrupted:
            raise KeyboardInterrupt


_busy: Final = _Busy()


def busy() -> AbstractContextManager[None]:
    """Hold signals back while the recorder is being started, stopped or saved; in other threads there are none."""
    return _busy if threading.current_thread() is threading.main_thread() else _NOT_MAIN


class _Nothing(AbstractContextManager[None]):
    def __exit__(self, *_: object) -> None:
        pass


_NOT_MAIN: Final = _Nothing()


def watch(profiler: Closable) -> None:
    """A window opens: let a SIGTERM that nobody else handles keep it."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        _watched.add(profiler)


def unwatch(profiler: Closable) -> None:
    """The window has closed: SIGTERM means again what it meant before."""
    _watched.discard(profiler)
    if threading.current_thread() is not threading.main_thread():
        return
    if not _watched and not _busy.postponed and signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_sigterm(_signal: int, _frame: Any) -> None:
    if _busy.depth:
        _busy.postponed = True
    else:
        _terminate()


def _on_sigint(number: int, frame: Any) -> None:
    """Hold back the first Ctrl-C; whoever presses it again does not want to wait."""
    if _busy.interrupted:
        _busy.interrupted = False
        signal.default_int_handler(number, frame)
    _busy.interrupted = True


def _terminate() -> None:
    """Keep what is being recorded, then die of the signal as if nobody had looked."""
    _busy.postponed = False
    for profiler in list(_watched):
        profiler.stop("SIGTERM")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
