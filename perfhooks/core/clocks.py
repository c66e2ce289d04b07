"""A second instance of Python's module ``time``: programs may replace functions of the first (freezegun).

time-machine replaces the system clock in both.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import time as first
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import time
else:
    time = importlib.util.module_from_spec(first.__spec__)
    first.__spec__.loader.exec_module(time)

    def _sleep(seconds: float) -> None:
        first.sleep(seconds)  # maybe that of gevent, which lets other threads run

    time.sleep = _sleep

__all__ = ["system_ahead_s", "time"]

if hasattr(os, "fork"):
    _read_clock = ctypes.PyDLL(None).clock_gettime

    def _time_ns() -> int:
        seconds_and_ns = (ctypes.c_long * 2)()
        _read_clock(time.CLOCK_REALTIME, seconds_and_ns)
        return seconds_and_ns[0] * 10**9 + seconds_and_ns[1]

    time.time_ns = _time_ns
    time.time = lambda: _time_ns() / 1e9


def system_ahead_s() -> float:
    """Return how many seconds the system clock is ahead of ``perf_counter``.

    The thread may be paused between two readings, so the shortest of several measurements counts.
    """
    return min(_read() for _ in range(5))[1]


def _read() -> tuple[float, float]:
    before, now, after = time.perf_counter(), time.time(), time.perf_counter()
    return after - before, now - (before + after) / 2
