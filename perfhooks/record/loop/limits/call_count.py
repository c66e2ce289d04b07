from __future__ import annotations

import sys
import time
from typing import Any


class CallCount:
    """Counts the Python calls of its thread, including calls of C functions, up to ``most``."""

    def __init__(self, most: float) -> None:
        self._most = 2 * most
        self._events = 0
        self._began = 0.0
        self.cpu_s = 0.0

    def begin(self) -> None:
        self._began = time.thread_time()
        if sys.getprofile() is None:
            sys.setprofile(self._count)

    def end(self) -> None:
        if sys.getprofile() == self._count:
            sys.setprofile(None)
        if self._events:
            self.cpu_s = time.thread_time() - self._began

    @property
    def calls(self) -> float:
        return self._events / 2

    def _count(self, _frame: Any, _event: str, _argument: Any) -> None:
        self._events += 1
        if self._events > self._most:
            sys.setprofile(None)


def end_in_child() -> None:
    if isinstance(getattr(sys.getprofile(), "__self__", None), CallCount):
        sys.setprofile(None)
