"""Other Python threads of the program, which compete with the training for the GIL and the CPUs.

Each system call of the training lets another thread take the GIL, for up to 5 ms. While other threads are busy, a
recording delays the training ten times as much as usual.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from perfhooks.core.process import THREADS, has_real_threads
from perfhooks.core.thread_time import CountedThread
from perfhooks.record.loop.limits.budget import FIRST_STEPS_S
from perfhooks.record.watch.sampling import live_clocks

_SHARE: Final = 0.2
"""Maximum time of a recording with busy threads, as a fraction of the training's time. Threads are busy if they use
more than this fraction of one CPU.
"""
_SHORTEST_S: Final = 0.005
_SHORTEST_CROWDED_S: Final = 0.025
"""On busy CPUs, a busy thread may get none for 5 ms."""
SHORTEST_WAIT_S: Final = FIRST_STEPS_S / _SHARE
"""Minimum training time in s before a recording with busy threads, so that it takes a limited share."""


class ThreadLoad:
    """CPU time of the other Python threads of the program since the creation of the object."""

    def __init__(self) -> None:
        self._began = time.perf_counter_ns()
        self._threads: dict[int, tuple[CountedThread, int]] = {}
        """Threads that existed at the start, each with its CPU time in ns."""
        self._threads = {ident: (thread, thread.cpu_ns() or 0) for ident, thread in self._counted()}
        self.used_s = sum(used for _, used in self._threads.values()) / 1e9

    @property
    def measured_s(self) -> float:
        return (time.perf_counter_ns() - self._began) / 1e9

    def is_busy(self) -> bool:
        used = 0
        for ident, thread in self._counted():
            used += max((thread.cpu_ns() or 0) - self._threads.get(ident, (thread, 0))[1], 0)
        return used > _SHARE * self.measured_s * 1e9

    def _counted(self) -> list[tuple[int, CountedThread]]:
        clocks = live_clocks()
        idents = [thread.ident for thread in _others() if thread.ident in clocks]
        return [
            (ident, (self._threads.get(ident) or (CountedThread(0, clocks[ident]),))[0]) for ident in idents if ident
        ]


def has_other_threads() -> bool:
    return bool(_others())


class BusyThreads:
    """Whether other threads compete for the GIL. The caller asks again, because a wait releases the GIL."""

    def __init__(self) -> None:
        self._load: ThreadLoad | None = None

    @property
    def is_measuring(self) -> bool:
        return self._load is not None

    def answer(self) -> bool | None:
        if self._load is None:
            if not has_other_threads():
                return False
            self._load = ThreadLoad()
            if self._load.used_s < _SHARE * _SHORTEST_S:
                return False
        measured_s = self._load.measured_s
        if measured_s < _SHORTEST_S:
            return None
        is_busy = self._load.is_busy()
        return None if not is_busy and _is_crowded() and measured_s < _SHORTEST_CROWDED_S else is_busy


def _is_crowded() -> bool:
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1)


def _others() -> list[threading.Thread]:
    if not has_real_threads():
        return []
    here = threading.current_thread()
    return [thread for thread in threading.enumerate() if thread is not here and not thread.name.startswith(THREADS)]
