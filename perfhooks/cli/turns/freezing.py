"""Pause the children of a program that waits for its next block, so that its loader workers do not prefetch.

With ``ptrace``, unlike SIGSTOP, the kernel resumes the processes if the supervisor dies, and the training gets no
SIGCHLD.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from perfhooks.cli.turns import processes

if TYPE_CHECKING:
    from collections.abc import Collection

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_LONGEST_S: Final = 0.5
"""Maximum wait in s. A thread that reads from a disk pauses only after the read."""


class Freezer:
    def __init__(self) -> None:
        self._signals: dict[int, int | None] = {}
        """Pending signal of each thread: 0 without one, None until the thread is paused."""
        self.refusal = ""

    def freeze(self, pids: Collection[int]) -> None:
        """Pause all descendants of the processes ``pids``, but not these processes."""
        if sys.platform != "linux":
            self.refusal = "only Linux can pause processes"
            return
        deadline = time.monotonic() + _LONGEST_S
        known_threads = set[int]()
        while time.monotonic() < deadline:
            running = [process for process in processes.below(pids) if process.state != "T" and not process.is_dead]
            threads = {thread for process in running for thread in processes.threads(process)} - known_threads
            if not threads:
                return
            known_threads |= threads
            for thread in threads:
                self._pause(thread)
            while self._is_incomplete() and time.monotonic() < deadline:
                time.sleep(0.0005)

    def thaw(self) -> None:
        """Resume the paused threads. Callers repeat the call, because a thread may pause after the first call."""
        self._is_incomplete()
        for thread, number in list(self._signals.items()):
            if number is not None:
                _ptrace(_DETACH, thread, number)
                del self._signals[thread]

    def _pause(self, thread: int) -> None:
        failure = 0 if thread in self._signals else _ptrace(_SEIZE, thread)
        if failure:
            if failure != errno.ESRCH:
                self.refusal = os.strerror(failure)
            return
        self._signals[thread] = None
        _ptrace(_INTERRUPT, thread)

    def _is_incomplete(self) -> bool:
        for thread in list(self._signals):
            try:
                # __WALL of Linux: wait for threads, too
                changed, status = os.waitpid(thread, 0x40000000 | os.WNOHANG)
            except ChildProcessError:
                del self._signals[thread]
                continue
            if changed and not os.WIFSTOPPED(status):
                del self._signals[thread]
            elif changed:
                is_pause = status >> 16
                self._signals[thread] = 0 if is_pause else os.WSTOPSIG(status)
        return None in self._signals.values()


def _ptrace(request: int, thread: int, number: int = 0) -> int:
    return ctypes.get_errno() if _library().ptrace(request, thread, None, number) else 0


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.restype = ctypes.c_long
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    return library
