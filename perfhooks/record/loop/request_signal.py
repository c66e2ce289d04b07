"""A signal that asks a process for a window, where the user has named one."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

from perfhooks.core.guard import logger
from perfhooks.record.loop.ending import signals

if TYPE_CHECKING:
    from perfhooks.record.watch.loops import WatchedLoop

_heard: dict[int, list[WatchedLoop]] = {}
"""The loops of this process that each signal is for."""


def listen(name: str, loop: WatchedLoop) -> None:
    """Let a signal ask for windows of a loop, if nobody else handles it.

    The handler stays until the process ends: without one the signal would kill it.

    Args:
        name: ``USR2``.
        loop: Its ``is_signalled`` is set.
    """
    number = getattr(signal, f"SIG{name.upper().removeprefix('SIG')}")
    if number not in _heard:
        if threading.current_thread() is not threading.main_thread():
            logger.warning("signal=%r is not heard: only the main thread can ask for a signal", name)
            return
        if signals.held.handler(number) is not signal.SIG_DFL:
            logger.warning("signal=%r is not heard: the program handles it itself", name)
            return
        signals.held.set_handler(number, _handle)
        _heard[number] = []
    if loop not in _heard[number]:
        _heard[number].append(loop)


def _handle(number: int, _frame: object) -> None:
    for loop in _heard[number]:
        loop.is_signalled = True
