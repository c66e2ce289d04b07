"""Count the Python calls of a step, before a window with stacks records them."""

from __future__ import annotations

import sys
import time
from typing import Any


class CallCount:
    """Counts Python's calls in the thread that begins, those of C functions included.

    Args:
        most: Calls after which the count ends.
    """

    def __init__(self, most: float) -> None:
        self._most = 2 * most
        self._heard = 0
        self._began = 0.0
        self.cpu_s = 0.0
        """CPU time of the thread, in seconds."""

    def begin(self) -> None:
        """Count from here on, unless another profiler listens."""
        self._began = time.thread_time()
        if sys.getprofile() is None:
            sys.setprofile(self._hear)

    def end(self) -> None:
        """Count no more."""
        if sys.getprofile() == self._hear:
            sys.setprofile(None)
        if self._heard:
            self.cpu_s = time.thread_time() - self._began

    @property
    def calls(self) -> float:
        """Calls that were heard, each with its return."""
        return self._heard / 2

    def _hear(self, _frame: Any, _event: str, _argument: Any) -> None:
        self._heard += 1
        if self._heard > self._most:
            sys.setprofile(None)


def end_in_child() -> None:
    """Count nothing in a forked child, which has the hook of the thread that forked it."""
    if isinstance(getattr(sys.getprofile(), "__self__", None), CallCount):
        sys.setprofile(None)
