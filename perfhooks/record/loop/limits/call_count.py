from __future__ import annotations

import sys
from typing import Any, Final

from perfhooks.core.clocks import time

_CALLS_PER_MARK: Final = 500
"""Calls between two readings of the CPU time: 1% of the calls in a trace of 20 MB."""


class CallCount:
    """Counts the Python calls of one thread, including calls of C functions, up to ``most``."""

    def __init__(self, most: float) -> None:
        self._most = 2 * most
        self._events = 0
        self._next = min(2.0 * _CALLS_PER_MARK, self._most)
        self._began = 0.0
        self.cpu_s = 0.0
        self.marks: list[tuple[float, float]] = []
        self.is_complete = True

    def begin(self) -> None:
        self._began = time.thread_time()
        if sys.getprofile() is None:
            sys.setprofile(self._count)

    def end(self) -> None:
        if sys.getprofile() == self._count:
            sys.setprofile(None)
        if self._events and self.is_complete:
            self.cpu_s = time.thread_time() - self._began

    @property
    def calls(self) -> float:
        return self._events / 2

    def _count(self, _frame: Any, _event: str, _argument: Any) -> None:
        self._events += 1
        if self._events > self._next:
            self._mark()

    def _mark(self) -> None:
        self.cpu_s = time.thread_time() - self._began
        self.marks.append((self.calls, self.cpu_s))
        self._next = min(self._next + 2 * _CALLS_PER_MARK, self._most)
        if self._events > self._most:
            self.is_complete = False
            sys.setprofile(None)


def end_in_child() -> None:
    if isinstance(getattr(sys.getprofile(), "__self__", None), CallCount):
        sys.setprofile(None)
