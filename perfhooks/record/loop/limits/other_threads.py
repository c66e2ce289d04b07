"""Other Python threads of the program, which compete with the training for the GIL and the CPUs.

Each system call of the training lets another thread take the GIL, for up to 5 ms. While other threads are busy, a
recording delays the training ten times as much as usual.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from perfhooks.core.clocks import time
from perfhooks.core.process import THREADS, has_real_threads
from perfhooks.core.thread_time import CountedThread
from perfhooks.record.loop.limits.budget import FIRST_STEPS_S
from perfhooks.record.watch.sampling import live_clocks
from perfhooks.run.circumstances import cores

_SHARE: Final = 0.2
"""Maximum share of a recording in the training time. Threads are busy if they use more than this share of one CPU."""
SHORTEST_WAIT_S: Final = FIRST_STEPS_S / _SHARE
"""Minimum training time in s before a recording with busy threads, so that it takes a limited share."""


class ThreadLoad:
    """CPU time of the other Python threads of the program since the creation of the object."""

    def __init__(self) -> None:
        self._began = time.perf_counter_ns()
        self._threads: dict[int, tuple[CountedThread, int]] = {}
        """Threads that existed at the start, each with its CPU time in ns."""
        self._threads = {ident: (thread, thread.cpu_ns() or 0) for ident, thread in self._counted()}

    def is_busy(self) -> bool:
        used = 0
        for ident, thread in self._counted():
            used += max((thread.cpu_ns() or 0) - self._threads.get(ident, (thread, 0))[1], 0)
        return used > _SHARE * (time.perf_counter_ns() - self._began)

    def _counted(self) -> list[tuple[int, CountedThread]]:
        clocks = live_clocks()
        idents = [thread.ident for thread in _others() if thread.ident in clocks]
        return [
            (ident, (self._threads.get(ident) or (CountedThread(0, clocks[ident]),))[0]) for ident in idents if ident
        ]


def has_other_threads() -> bool:
    return bool(_others())


def has_busy_threads() -> bool:
    """Return whether other threads compete with the calling thread for the GIL.

    If all usable CPUs are busy, measure up to five times: a busy thread may get no CPU for 5 ms.
    """
    if not has_other_threads():
        return False
    return _is_busy_for(0.005) or (_is_crowded() and any(_is_busy_for(0.005) for _ in range(4)))


def _is_crowded() -> bool:
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > (cores() or 1)


def _is_busy_for(seconds: float) -> bool:
    load = ThreadLoad()
    time.sleep(seconds)
    return load.is_busy()


def _others() -> list[threading.Thread]:
    if not has_real_threads():
        return []
    here = threading.current_thread()
    return [thread for thread in threading.enumerate() if thread is not here and not thread.name.startswith(THREADS)]
