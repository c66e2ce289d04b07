from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core.clocks import time

if TYPE_CHECKING:
    from collections.abc import Callable


class CountedThread:
    """Counters of a thread of this process; ``native`` is the kernel's thread ID, ``clock`` its CPU clock."""

    def __init__(self, native: int, clock: int | None = None) -> None:
        self.native = native
        self._folder = f"/proc/self/task/{native}"
        # as pthread_getcpuclockid, which crashes if the thread has ended
        self._clock = (~native << 3) | 6 if clock is None and sys.platform == "linux" else clock
        self._schedstat: int | None = None

    def cpu_ns(self) -> int | None:
        with contextlib.suppress(OSError):
            return None if self._clock is None else time.clock_gettime_ns(self._clock)
        return None

    def waited_ns(self) -> int | None:
        """Return the run-queue wait in nanoseconds; None outside Linux.

        Source: ``schedstat``, see https://docs.kernel.org/scheduler/sched-stats.html. The file stays open, because
        opening a file releases the GIL for up to 5 ms.
        """
        with contextlib.suppress(OSError, ValueError, IndexError):
            if self._schedstat is None:
                self._schedstat = os.open(f"{self._folder}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._schedstat, 100, 0).split()[1])
        return None

    def __del__(self) -> None:
        if self._schedstat is not None:
            with contextlib.suppress(OSError):
                os.close(self._schedstat)

    def is_blocked(self) -> bool | None:
        """Return whether the thread waits in a system call or for a page of memory, see proc(5); None if unknown."""
        with contextlib.suppress(OSError):
            return not self._read("syscall").startswith("running")
        return None

    def switches(self) -> int | None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = self._read("status").splitlines()
            return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
        return None

    def faults(self) -> int | None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = self._read("stat").rpartition(")")[2].split()
            return int(fields[7]) + int(fields[9])
        return None

    def _read(self, name: str) -> str:
        return Path(self._folder, name).read_text(encoding="ascii", errors="replace")


class _SilentTime(NamedTuple):
    total_ns: int = 0
    began_ns: int | None = None


_NONE: Final = _SilentTime()


class SilentTimes:
    """CPU time of each thread in forks, which make no Python calls."""

    def __init__(self) -> None:
        self._times: dict[int, _SilentTime] = {}

    def begin(self) -> None:
        ident = threading.get_ident()
        total_ns, began_ns = self._of(ident)
        self._times[ident] = _SilentTime(total_ns, time.thread_time_ns() if began_ns is None else began_ns)

    def end(self) -> None:
        ident = threading.get_ident()
        total_ns, began_ns = self._of(ident)
        now = time.thread_time_ns()
        self._times[ident] = _SilentTime(total_ns + now - (now if began_ns is None else began_ns))

    def forget(self) -> None:
        self._times.clear()

    def _of(self, ident: int) -> _SilentTime:
        return self._times.get(ident, _NONE)

    def without(self, ident: int, clock: Callable[[], int | None]) -> int:
        while True:
            silent, now = self._of(ident), clock() or 0
            if self._of(ident) is silent:  # else the thread was silent meanwhile
                return (now if silent.began_ns is None else silent.began_ns) - silent.total_ns


silent_times: Final = SilentTimes()
