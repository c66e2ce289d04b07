"""Counters of a thread and its process, read around slow steps only."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import sys
import threading
from collections import Counter, deque
from itertools import repeat
from operator import itemgetter, methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.core.clocks import time
from perfhooks.core.thread_time import CountedThread
from perfhooks.record.watch.sampling import Frame, places_of
from perfhooks.run.job import current_job
from perfhooks.run.liveness import born_s, clock_s
from perfhooks.run.steps import CpuInterval
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PROC: Final = Path("/proc")
_STATM: Final = Path("/proc/self/statm")
_MAX_PROCESSES: Final = 500


class Counters(NamedTuple):
    """Cumulative counters of a thread or process; None if not available."""

    cpu_ns: int | None = None
    switches: int | None = None
    faults: int | None = None
    retries: int | None = None
    waited_ns: int | None = None

    @classmethod
    def read(cls, thread: CountedThread) -> Counters:
        return cls(thread.cpu_ns(), thread.switches(), thread.faults(), _retries(), thread.waited_ns())

    def since(self, before: Counters) -> Counters:
        pairs = zip(self, before, strict=True)
        return Counters(*(None if now is None or then is None else max(0, now - then) for now, then in pairs))


class Queueing:
    """Run-queue wait of a thread, as a fraction of the time since the first reading."""

    def __init__(self) -> None:
        self._native = 0
        self._began = 0
        self._before: int | None = None

    def share(self, thread: CountedThread) -> float | None:
        """Return the fraction; None at the first reading. A new thread starts a new count."""
        now, waited = time.monotonic_ns(), thread.waited_ns()
        if thread.native != self._native:
            self._native, self._began, self._before = thread.native, now, waited
        if waited is None or self._before is None or now <= self._began:
            return None
        return min(max(waited - self._before, 0) / (now - self._began), 1.0)

    def since_last(self) -> float | None:
        """Return the run-queue wait of the calling thread since the last call, as a fraction of the time."""
        thread = CountedThread(threading.get_native_id())
        if not self._native:
            age_ns = round(1e9 * (clock_s() - (born_s(os.getpid()) or clock_s())))
            self._native, self._began, self._before = thread.native, time.monotonic_ns() - age_ns, 0
        share = self.share(thread)
        self._began, self._before = time.monotonic_ns(), thread.waited_ns()
        return share


def resident() -> int:
    """Return the resident memory in bytes; 0 if not available."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _retries() -> int | None:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    with contextlib.suppress(Exception):  # the training reports device errors itself
        if cuda is not None and cuda.is_initialized():
            stats = (cuda.memory_stats(device) for device in range(cuda.device_count()))
            return sum(int(statistics.get("num_alloc_retries", 0)) for statistics in stats)
    return None


_SHORTEST_NS: Final = 1_000_000
"""Minimum length of a stored garbage collection, ns."""


class Collections:
    """Garbage collections. The callbacks are in C: callbacks in Python drop Ctrl-C during a collection."""

    def __init__(self, thread: int = 0, *, in_cpu_time: bool = False) -> None:
        now = time.thread_time_ns if in_cpu_time else clock
        self._new: deque[tuple[tuple[int, int, tuple[Any, ...]], int]] = deque(maxlen=1 << 12)
        self._pauses: deque[tuple[int, int, Frame | None]] = deque(maxlen=1 << 12)
        # other threads may run no Python function
        find = {(thread, False): functools.partial(next, places_of(thread))}.get
        keys = zip(map(_CALL, repeat(threading.get_ident)), map(_CALL, repeat(sys.is_finalizing)), strict=False)
        places = map(_CALL, map(find, keys, repeat(tuple)))
        began: deque[tuple[int, int, tuple[Any, ...]]] = deque([(0, 0, ())], maxlen=1)
        start = _appending(began, map(_CALL, repeat(threading.get_ident)), map(_CALL, repeat(now)), places)
        stop = _appending(self._new, map(itemgetter(0), repeat(began)), map(_CALL, repeat(now)))
        self._listener: Callable[..., object] = functools.partial(getattr, _Phases(start, stop))

    def listen(self) -> None:
        if self._listener not in gc.callbacks:
            gc.callbacks.append(self._listener)

    def end(self) -> None:
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._listener)

    def ns_by_thread(self) -> Counter[int]:
        total: Counter[int] = Counter()
        for (thread, begin, _), end in self._new.copy():
            total[thread] += end - begin if begin else 0
        return total

    def store(self) -> None:
        while self._new:
            (_, begin, place), end = self._new.popleft()
            if begin and end - begin >= _SHORTEST_NS:
                self._pauses.append((begin, end, Frame(place[0], place[1] or 0) if place else None))

    def within(self, begin: int, end: int) -> tuple[int, Frame | None]:
        """Return the time of collections in an interval in ns, and the code in which the longest collection began."""
        self.store()
        overlaps = [(min(stop, end) - max(start, begin), where) for start, stop, where in self._pauses.copy()]
        overlaps = [(length, where) for length, where in overlaps if length > 0]
        return sum(length for length, _ in overlaps), max(overlaps, key=lambda pair: pair[0], default=(0, None))[1]

    def forget(self, before: int) -> None:
        while self._pauses and self._pauses[0][1] < before:
            self._pauses.popleft()


def _appending(target: deque[Any], *values: Iterator[object]) -> Callable[..., object]:
    return functools.partial(next, map(target.append, zip(*values, strict=False)))


_CALL: Final = methodcaller("__call__")


class _Phases:
    """One class, because each class is a reference cycle."""

    def __init__(self, at_start: Callable[..., object], at_stop: Callable[..., object]) -> None:
        self.at_start, self.at_stop = at_start, at_stop

    start = property(methodcaller("at_start"))
    stop = property(methodcaller("at_stop"))


class _Count(NamedTuple):
    step: int
    wall_ns: float
    thread_ns: float
    process_ns: float
    waited_ns: float
    others_ns: float


class CpuWaits:
    def __init__(self) -> None:
        self._thread: CountedThread | None = None
        self._before: _Count | None = None
        self._is_alone = False
        self.rows: list[CpuInterval] = []

    def read(self, native: int, step: int) -> None:
        thread = self._thread
        if thread is None or thread.native != native:
            thread = self._thread = CountedThread(native)
            self._before = None
            # CPU time of other ranks on this host would count as time of other programs
            self._is_alone = current_job().world_size == 1
        before = self._before
        if before is not None and step == before.step:
            return
        # read these four together: the slower `others_ns` leaves time for a context switch
        wall, thread_ns, queued_ns, process_ns = clock(), thread.cpu_ns(), thread.waited_ns(), time.process_time_ns()
        if thread_ns is None or queued_ns is None:
            return
        foreign_ns = others_ns() if self._is_alone else math.nan
        self._before = now = _Count(step, wall, thread_ns, process_ns, queued_ns, foreign_ns)
        if before is not None and step > before.step:
            # nan stays nan, because comparisons with it are false
            values = (0.0 if new < old else (new - old) / 1e6 for new, old in zip(now[1:], before[1:], strict=True))
            self.rows.append(CpuInterval(before.step, step, *values))


def others_ns() -> float:
    """Return the CPU time of other programs in ns, as the mean over all CPUs; ``nan`` if not available."""
    tick, cpus = 1e9 / os.sysconf("SC_CLK_TCK"), os.cpu_count()
    with contextlib.suppress(OSError, ValueError, IndexError):
        with (_PROC / "stat").open(encoding="ascii", errors="replace") as file:
            # user, nice, system, idle, iowait, irq, softirq and steal, see proc(5)
            user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
        used_ns = tick * (user + nice + system + irq + softirq + steal)
        if cpus and used_ns:
            own_ns = sum(os.times()[:4]) * 1e9 + tick * sum(_descendant_ticks(os.getpid()))
            return max(used_ns - own_ns, 0.0) / cpus
    return math.nan


def _descendant_ticks(pid: int) -> Iterator[int]:
    pids, count = [pid], 0
    while pids and count < _MAX_PROCESSES:
        folder = _PROC / str(pids.pop())
        with contextlib.suppress(OSError, ValueError, IndexError):
            children = (folder / "task" / folder.name / "children").read_text(encoding="ascii").split()
            pids += map(int, children)
            if count:
                fields = (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
                yield sum(map(int, fields[11:15]))
        count += 1
