"""Errors that signal handlers of the program raise while code of perfhooks runs in the main thread.

This module imports little, because every Python process under ``perfhooks run`` may import it.
"""

from __future__ import annotations

import contextlib
import signal
from types import FunctionType, MethodType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


def is_of_handler(error: BaseException) -> bool:
    """Return whether a signal handler of the program raised the error, so perfhooks must not catch it."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {_code(handler) for handler in handlers} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code(handler: object) -> object:
    while hasattr(handler, "func"):
        handler = handler.func
    if callable(handler) and not isinstance(handler, (FunctionType, MethodType)):
        handler = type(handler).__call__
    return getattr(getattr(handler, "__func__", handler), "__code__", None)


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Run work at the end of the process that exceptions of the program's signal handlers cannot interrupt.

    The signal handlers still run at once, but their exceptions are dropped: the program has no code left to catch them.
    SIGINT is unchanged, because Ctrl-C ends the wait for files.
    """
    try:
        _contain_all()
        yield
    finally:
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if isinstance(handler, _Contained):
                signal.signal(number, handler.handler)


class _Contained:
    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: object) -> None:
        with contextlib.suppress(BaseException):
            self.handler(number, frame)


def _contain_all() -> None:
    try:
        for number in signal.valid_signals() - {signal.SIGINT}:
            handler = signal.getsignal(number)
            if callable(handler) and not str(getattr(handler, "__module__", "")).startswith("perfhooks"):
                signal.signal(number, _Contained(handler))
    except BaseException as error:  # noqa: BLE001 -- the work at the end must begin
        if is_of_handler(error):  # a handler raised before its replacement
            _contain_all()
