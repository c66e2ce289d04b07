"""Errors that signal handlers of the program raise while code of perfhooks runs in the main thread.

This module imports little, because every Python process under ``perfhooks run`` may import it.
"""

from __future__ import annotations

import signal
from types import FunctionType, MethodType


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
