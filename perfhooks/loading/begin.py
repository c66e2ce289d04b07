"""What runs in a worker of a loader: it counts its batches, and looks at its own stack while a window is open.

A timer of the kernel is due every 10 ms or more, and Python's handler runs as soon as the main thread is
back from C::

    stack     | Python  | decode, in C                      | Python
    due       ·    ·    ·    ·    ·    ·    ·    ·    ·     ·    ·
    handled   ·    ·                                  6     ·    ·
                                                      └─ came late: it stands for six, all of them spent in that call

Each look is weighted by how often the timer was due, and not by the clock since the look before: that would give the
call in C also what ran before it began, half an interval on average, and take that from what runs between calls.

The timer sends a signal of its own to the main thread, so alarms, timers and handlers of the user's are left alone. A
thread that looks would get the interpreter's lock only where the main thread lets go of it, that is in C.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import os
import resource
import signal
import sys
import threading
import time
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perfhooks.loading.slots import Counts

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from perfhooks.loading.slots import Slots, StackLog

PERIOD: Final = 2_500_000
"""Nanoseconds, the unit of the time between two looks: there are `_LEAST` of them or more."""
_LEAST: Final = 4
_SHARE: Final = 0.01
"""Of a worker's time, that looks may take."""
_BESIDES: Final = 2
"""Times what a look computes by its own account, that it costs: interrupt and signal, and what it takes from caches.
By the processor's time of fixed work with looks and without, in turns, it was 1.2 to 2 times; by its own account a
look took 60 us on a quiet machine and 200 us on one whose two processors others wanted, too."""
_REMEMBERED: Final = 64
"""Looks whose cost counts."""
_FIRST_COST: Final = 70_000
"""Nanoseconds by its own account, of the first one."""
_MOST_FRAMES: Final = 60
_TO_THREAD: Final = 4
"""SIGEV_THREAD_ID of the kernel."""
_LOOP: Final = "_worker_loop"
"""torch's function that a worker runs: frames around it say nothing."""


class Begin:
    """Stands around the user's ``worker_init_fn``, which is called as ever.

    Args:
        slots: Where the workers write.
        then: The user's.
    """

    def __init__(self, slots: Slots, then: Callable[[int], object] | None) -> None:
        self._slots, self._then = slots, then

    def __call__(self, worker: int) -> None:
        """A worker begins."""
        try:
            _Worker(self._slots, worker).begin()
        except Exception:  # the worker works on, unseen
            logging.getLogger("perfhooks").debug("worker %s of a loader is not seen", worker, exc_info=True)
        if self._then is not None:
            self._then(worker)


class _Worker:
    """This process, as it counts."""

    def __init__(self, slots: Slots, number: int) -> None:
        self._slots, self._number = slots, number
        self._looks: _Looks | None = None
        self._version = self._batches = self._making = self._longest = self._processor = 0
        self._waited = self._handed_over = self._queued = 0
        self._squares, self._memory = 0.0, -1
        self._began = self._done = time.monotonic_ns()
        self._queue = _Queue()
        self._put: Any = None

    def begin(self) -> None:
        """Count from here on, and look whenever a window opens."""
        if threading.current_thread() is threading.main_thread():
            with contextlib.suppress(OSError, AttributeError):
                self._looks = _Looks(self._slots, self._number)
        kinds = sys.modules["torch.utils.data"]._DatasetKind  # noqa: SLF001 -- torch has no public way
        make = kinds.create_fetcher

        def create_fetcher(*args: Any, **kwargs: Any) -> Any:
            fetcher = make(*args, **kwargs)
            caller = sys._getframe(1)
            if caller.f_code.co_name == _LOOP:  # and not a loader that a dataset reads in here
                fetcher.fetch = self._counted(fetcher.fetch)
                self._put = caller.f_locals.get("data_queue")
            return fetcher

        kinds.create_fetcher = staticmethod(create_fetcher)
        self._note()
        util.Finalize(None, self._end, exitpriority=100)
        if self._looks is not None:
            self._looks.turn()

    def _end(self) -> None:
        if self._looks is not None:
            self._looks.end()
            self._looks = None
            self._note()

    def _counted(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def counted(index: Any) -> Any:
            self._queue.waited(0)
            began, computed = time.monotonic_ns(), time.process_time_ns()
            self._waited += began - self._done
            try:
                return fetch(index)
            finally:
                self._done = now = time.monotonic_ns()
                took = now - began
                self._batches += 1
                self._making += took
                self._squares += (took * 1e-9) ** 2
                self._longest = max(self._longest, took)
                computed = time.process_time_ns() - computed
                self._processor += computed
                self._queued += self._queue.waited(took - computed)
                self._note()

        return counted

    def _note(self) -> None:
        """Write down what was counted."""
        if self._batches > 1 and self._batches & (self._batches - 1) == 0:  # asking takes a millisecond
            self._memory = _own_memory()
        self._version += 2
        counts = Counts(
            self._version, os.getpid(), 0 if self._looks is None else self._looks.signal, self._batches, self._making,
            self._squares, self._longest, self._processor, self._waited, self._hands_over(),
            self._queued if self._queue.is_told else -1,
            self._memory, self._began,
        )  # fmt: skip  # in the order of the fields
        self._slots.write(self._number, counts)

    def _hands_over(self) -> int:
        """What the thread that hands batches over has computed, in nanoseconds."""
        thread = getattr(self._put, "_thread", None)
        if thread is not None and thread.ident is not None and thread.is_alive():
            with contextlib.suppress(OSError):
                self._handed_over = time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))
        return self._handed_over


class _Queue:
    """How long this thread could have run and had no processor, as Linux counts it."""

    def __init__(self) -> None:
        self._file = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").open("rb", buffering=0)  # noqa: SIM115 -- kept open: it is asked at each look
        self._then = self._read()
        self.is_told = self._then[1] > 0
        self.read = 0
        """What it had read from disks and file systems of a network when it was asked last, since the time before;
        in blocks of 512 bytes."""

    def _read(self) -> tuple[int, int, int]:
        used = resource.getrusage(resource.RUSAGE_THREAD)
        with contextlib.suppress(OSError, ValueError, IndexError):
            return used.ru_nvcsw, int(os.pread(self._file.fileno(), 64, 0).split()[1]), used.ru_inblock
        return used.ru_nvcsw, 0, used.ru_inblock

    def waited(self, idle: int) -> int:
        """Since it was asked last, in nanoseconds; 0 where the system does not tell.

        A thread that gave up its processor not once waited for nothing else. The system counts neither what a container
        may not compute, nor what a machine below this one takes.

        Args:
            idle: How long it did not compute meanwhile, in nanoseconds.
        """
        then, self._then = self._then, self._read()
        switches, queued, self.read = (now - before for now, before in zip(self._then, then, strict=True))
        return max(idle, 0) if switches == 0 else max(queued, 0)


class _Looks:
    """The looks of this process, by a timer that runs while a window is open."""

    def __init__(self, slots: Slots, number: int) -> None:
        self._slots, self._number, self._queue = slots, number, _Queue()
        self._log: StackLog | None = None
        self._window = self._began = self._ticks = self._computed = self._looked = 0
        self._cost = float(_FIRST_COST)
        self._every = PERIOD
        self._stacks: dict[tuple[Any, ...], int] = {}
        self._is_looking = False
        free = [each for each in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1) if _is_free(each)]
        if not free:
            raise OSError("no signal is free")
        self.signal = free[0]
        self._timer = _Timer(self.signal)
        signal.signal(self.signal, self._hear)
        signal.siginterrupt(self.signal, False)  # calls of the system in C code of others go on as if nothing had been

    def turn(self) -> None:
        """Begin to look, or end, as the switch says."""
        window = self._slots.window
        if window == self._window:
            return
        self._window = window
        self._timer.set(0)
        self._stacks.clear()
        self._log = None
        if window:
            self._log = self._slots.log(self._number, window)
            self._computed = time.thread_time_ns()
            self._queue.waited(0)
            self._pace()

    def _pace(self) -> None:
        """Look from now on as often as it may be."""
        self._every = PERIOD * max(math.ceil(self._cost * _BESIDES / _SHARE / PERIOD), _LEAST)
        self._ticks, self._began = 0, time.monotonic_ns()
        self._timer.set(self._every)

    def end(self) -> None:
        """Look no more: Python takes its handlers away before it ends, and the signal would then end the process."""
        self._timer.set(0)
        signal.signal(self.signal, signal.SIG_IGN)
        self._timer.delete()

    def _hear(self, _number: int, frame: FrameType | None) -> None:
        now = time.monotonic_ns()
        if self._is_looking:  # the next look stands for this one as well
            return
        self._is_looking = True
        computed = time.thread_time_ns()
        try:
            if self._slots.window != self._window:
                self.turn()
            elif self._log is not None and not self._look(now, frame):
                self._timer.set(0)
            else:
                self._count(time.thread_time_ns() - computed)
        except Exception:  # noqa: BLE001 -- the worker works on
            self._timer.set(0)
        finally:
            self._is_looking = False

    def _count(self, cost: int) -> None:
        """A look has cost that much: look less often, or more, if that is far from what others did."""
        self._looked += 1
        self._cost += (cost - self._cost) / min(self._looked + 1, _REMEMBERED)
        if self._looked & (self._looked - 1) == 0:  # seldom: what is left of an interval is lost
            self._pace()

    def _look(self, now: int, frame: FrameType | None) -> bool:
        """Note where this process is; whether there is room for more."""
        ticks = (now - self._began) // self._every
        since = (ticks - self._ticks) * self._every // PERIOD
        if since <= 0 or self._log is None:
            return True
        late = now - self._began - (self._ticks + 1) * self._every
        self._ticks = ticks
        stack: list[Any] = []
        while frame is not None and len(stack) < 2 * _MOST_FRAMES:
            code = frame.f_code
            if code.co_name == _LOOP:
                stack += (code, frame.f_lineno)
                break
            stack += (code, frame.f_lineno)
            frame = frame.f_back
        key = tuple(stack)
        number = self._stacks.get(key)
        if number is None:
            number = self._log.define(_text(key))
            if number is None:
                return False
            self._stacks[key] = number
        until = time.thread_time_ns()
        computed, self._computed = max(until - self._computed, 0), until
        queued = self._queue.waited(since * PERIOD - computed)
        return self._log.add(number, since, late, computed, queued, self._queue.read)


def _text(key: tuple[Any, ...]) -> str:
    pairs = zip(key[::2], key[1::2], strict=True)
    frames = [f"{code.co_filename}({line or 0}): {code.co_name}" for code, line in pairs]
    return ";".join(" ".join(frame.replace(";", ":").split()) for frame in reversed(frames))


def _is_free(number: int) -> bool:
    return signal.getsignal(number) is signal.SIG_DFL


class _Timer:
    """A timer of the kernel that sends a signal to this thread, and to no other.

    Source: timer_create(2), sigevent(7); Python has no such timer before 3.13's, and none at all for a thread.
    """

    def __init__(self, number: int) -> None:
        library: Any = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "timer_create"):  # glibc before 2.34
            library = ctypes.CDLL("librt.so.1", use_errno=True)
        self._library, self._id = library, ctypes.c_void_p()
        event = (ctypes.c_int * 16)()
        event[2], event[3], event[4] = number, _TO_THREAD, threading.get_native_id()
        if library.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._id)):
            raise OSError(ctypes.get_errno(), "no timer")

    def set(self, period: int) -> None:
        """Be due every so many nanoseconds; 0 ends it."""
        value = (ctypes.c_long * 4)(0, period, 0, period)
        self._library.timer_settime(self._id, 0, ctypes.byref(value), None)

    def delete(self) -> None:
        """Give it back."""
        self._library.timer_delete(self._id)


def _own_memory() -> int:
    """Bytes that this process shares with nobody; -1 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError), Path("/proc/self/smaps_rollup").open("rb") as file:
        return sum(1024 * int(line.split()[1]) for line in file if line.startswith(b"Private_"))
    return -1
