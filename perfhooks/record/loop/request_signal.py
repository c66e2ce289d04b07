from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

from perfhooks.core.guard import logger
from perfhooks.record.loop.ending import signals

if TYPE_CHECKING:
    from perfhooks.record.watch.loops import WatchedLoop

_loops: dict[int, list[WatchedLoop]] = {}


def listen(name: str, loop: WatchedLoop) -> None:
    """Request a window on a signal.

    The handler is never removed, because without a handler the signal would end the process.
    """
    number = getattr(signal, f"SIG{name.upper().removeprefix('SIG')}")
    if number not in _loops:
        if threading.current_thread() is not threading.main_thread():
            logger.warning("signal=%r is ignored: start the profiler in the main thread to use a signal", name)
            return
        if signals.deferral.handler(number) is not signal.SIG_DFL:
            logger.warning("signal=%r is ignored: the program handles it itself", name)
            return
        _loops[number] = []
        signals.deferral.set_handler(number, _handle)
    if loop not in _loops[number]:
        _loops[number].append(loop)


def _handle(number: int, _frame: object) -> None:
    for loop in _loops[number]:
        loop.is_signalled = True
