"""What happened to a thread and its process lately: read around slow steps, and at no other time."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.core.thread_time import CountedThread
from perfhooks.record.watch.sampling import caller
from perfhooks.run.job import current_job
from perfhooks.run.liveness import began_s
from perfhooks.run.steps import Stretch
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perfhooks.record.watch.sampling import Frame


_PROC: Final = Path("/proc")
_STATM: Final = Path("/proc/self/statm")
_MOST_BELOW: Final = 500
"""Processes that this one has started, of which it is asked what they used; nobody starts as many."""


class Counters(NamedTuple):
    """Counts that only grow; None where the system, or the device, does not tell."""

    cpu_ns: int | None = None
    """What the thread has computed."""
    switches: int | None = None
    """How often it was off a processor, whether it waited or was made to."""
    faults: int | None = None
    """Its page faults."""
    retries: int | None = None
    """How often the device's allocator had to give memory back and try again."""
    waited_ns: int | None = None
    """How long it could have run and waited for a processor."""
    system_ns: int | None = None
    """What of its computing was the system's, as when it is given memory."""

    @classmethod
    def read(cls, thread: CountedThread) -> Counters:
        """Those of a thread now."""
        faults, system_ns = thread.faults_and_system_ns()
        return cls(thread.cpu_ns(), thread.switches(), faults, _retries(), thread.waited_ns(), system_ns)

    def since(self, before: Counters) -> Counters:
        """What was added."""
        pairs = zip(self, before, strict=True)
        return Counters(*(None if now is None or then is None else max(0, now - then) for now, then in pairs))


class Queueing:
    """What share of its time a thread waits for a processor, since it was first looked at."""

    def __init__(self) -> None:
        self._native = 0
        self._began = 0
        self._before: int | None = None

    def share(self, thread: CountedThread) -> float | None:
        """From 0 to 1; None where the system does not tell, and at the first look.

        Args:
            thread: The one to look at; where it is another one than before, what was seen is forgotten.
        """
        now, waited = time.monotonic_ns(), thread.waited_ns()
        if thread.native != self._native:
            self._native, self._began, self._before = thread.native, now, waited
        if waited is None or self._before is None or now <= self._began:
            return None
        return min(max(waited - self._before, 0) / (now - self._began), 1.0)

    def since_last(self) -> float | None:
        """That of the thread that calls this, since it did last; at first since the process began."""
        thread = CountedThread(threading.get_ident(), threading.get_native_id())
        if not self._native:
            age_ns = round(1e9 * (time.time() - began_s()))
            self._native, self._began, self._before = thread.native, time.monotonic_ns() - age_ns, 0
        share = self.share(thread)
        self._began, self._before = time.monotonic_ns(), thread.waited_ns()
        return share


def resident() -> int:
    """The memory of this process, in bytes; 0 where the system does not say it in a file."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _retries() -> int | None:
    """Retries of torch's allocator on all devices that are in use."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    with contextlib.suppress(Exception):  # a device that is in trouble is not ours to report
        if cuda is not None and cuda.is_initialized():
            stats = (cuda.memory_stats(device) for device in range(cuda.device_count()))
            return sum(int(each.get("num_alloc_retries", 0)) for each in stats)
    return None


def clock_mhz() -> float | None:
    """The clock of the device that is in use; None where it cannot be read."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    with contextlib.suppress(Exception):  # it needs a library that may not be there
        if cuda is not None and cuda.is_initialized():
            return float(cuda.clock_rate())
    return None


_MOST_PAUSES: Final = 4096
"""Kept at most: nobody asks for them while nobody watches."""
_MANY_YOUNG: Final = 50_000
"""Python collects every 700 or 2,000; there are more where a training had switched that off for a while."""


class Collections:
    """How long Python's garbage collections took, and where the longest began."""

    def __init__(self) -> None:
        self._pauses: list[tuple[int, int, Frame | None]] = []
        self._began = 0
        self._where: Frame | None = None
        self._listener: Callable[[str, dict[str, Any]], None] = self._heard

    def listen(self) -> None:
        """Hear of collections from now on."""
        if self._listener not in gc.callbacks:
            gc.callbacks.append(self._listener)

    def end(self) -> None:
        """Hear of none any more."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._listener)

    def _heard(self, phase: str, info: dict[str, Any]) -> None:
        """Called by Python in whatever thread collects; young objects take microseconds and are passed over."""
        if phase == "start":
            if info["generation"] or gc.get_count()[0] > _MANY_YOUNG:
                self._where = caller(1)
                self._began = time.perf_counter_ns()
        elif self._began:
            self._pauses.append((self._began, time.perf_counter_ns(), self._where))
            self._began = 0
            if len(self._pauses) > _MOST_PAUSES:
                del self._pauses[: _MOST_PAUSES // 2]

    def within(self, begin: int, end: int) -> tuple[int, Frame | None]:
        """The nanoseconds of collections in a stretch of time, and where the longest of them began."""
        inside = [(min(stop, end) - max(start, begin), where) for start, stop, where in self._pauses[:]]
        inside = [(length, where) for length, where in inside if length > 0]
        return sum(length for length, _ in inside), max(inside, key=lambda each: each[0], default=(0, None))[1]

    def forget(self, before: int) -> None:
        """Forget those that ended before a time."""
        while self._pauses and self._pauses[0][1] < before:
            del self._pauses[0]


class _Count(NamedTuple):
    step: int
    wall_ns: float
    thread_ns: float
    process_ns: float
    waited_ns: float
    others_ns: float


class Processors:
    """Looks once in a while at what a loop's thread has computed and waited; what is between two looks is a row."""

    def __init__(self) -> None:
        self._thread: CountedThread | None = None
        self._before: _Count | None = None
        self._is_alone = False
        self.rows: list[Stretch] = []
        """What nobody has written yet."""

    def look(self, ident: int, native: int, step: int) -> None:
        """Look at the thread of a loop.

        Args:
            ident: See `CountedThread`.
            native: The same.
            step: The step that goes on.
        """
        thread = self._thread
        if thread is None or thread.native != native:
            thread = self._thread = CountedThread(ident, native)
            self._before = None
            # other ranks of the machine are no children of this one, and do the same work
            self._is_alone = current_job().world_size == 1
        before = self._before
        if before is not None and step == before.step:
            return  # a step that is long goes on: its time belongs to it
        # together: what asks the system about others takes long enough for somebody to have the processor meanwhile
        wall, computed, waited, of_all = clock(), thread.cpu_ns(), thread.waited_ns(), time.process_time_ns()
        if computed is None or waited is None:
            return
        others = others_ns() if self._is_alone else math.nan
        self._before = now = _Count(step, wall, computed, of_all, waited, others)
        if before is not None and step > before.step:
            # a comparison with nan is false, so it stays
            spent = (0.0 if new < old else (new - old) / 1e6 for new, old in zip(now[1:], before[1:], strict=True))
            self.rows.append(Stretch(before.step, step, *spent))


def others_ns() -> float:
    """For how long each of the machine's processors was used by others than this process and those that it started.

    Returns:
        Nanoseconds since the machine began, the mean of its processors; ``nan`` where the system does not tell. It only
        means something beside an earlier one.
    """
    tick, processors = 1e9 / os.sysconf("SC_CLK_TCK"), os.cpu_count()
    with contextlib.suppress(OSError, ValueError, IndexError):
        with (_PROC / "stat").open(encoding="ascii", errors="replace") as file:
            # user, nice, system, idle, iowait, irq, softirq and steal, see proc(5)
            user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
        used = tick * (user + nice + system + irq + softirq + steal)
        if processors and used:
            own = sum(os.times()[:4]) * 1e9 + tick * sum(_below(os.getpid()))
            return max(used - own, 0.0) / processors
    return math.nan


def _below(pid: int) -> Iterator[int]:
    """What each process below another has used, in ticks, those that it has outlived included."""
    waiting, asked = [pid], 0
    while waiting and asked < _MOST_BELOW:
        folder = _PROC / str(waiting.pop())
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            # those that other threads than the first have started are few, and threads may be many
            children = (folder / "task" / folder.name / "children").read_text(encoding="ascii").split()
            waiting += map(int, children)
            if asked:
                fields = (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
                yield sum(map(int, fields[11:15]))
        asked += 1
