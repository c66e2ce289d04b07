"""Pauses one of the two programs of ``perfhooks compare --run`` while the other one runs a block of steps.

    A   ░░██████▌          ░░██████▌          ░░██████▌            ▌ paused: waits for one line from a socket
    B   ▌        ░░██████▌          ░░██████▌          ░░██...
         ◄──────► one block: some untimed steps (░), then the requested number of timed steps

The first steps of a block take longer, because the other program's data is in the caches. Each block runs on the CPU of
the other program's last block, because step times differ between CPUs.

All ranks receive the same number of steps, so no rank waits in a collective. Child processes are stopped between two
blocks: loader workers would prefetch batches. If the socket closes, the supervisor has died, and the program ends
itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import socket
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import msgspec

from perfhooks.core import process
from perfhooks.core.clocks import time
from perfhooks.core.guard import logger
from perfhooks.core.thread_time import CountedThread
from perfhooks.record.launch.step_detectors import NEVER, NO_PROFILER
from perfhooks.run.job import current_job
from perfhooks.run.live import change_notes

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.record.launch.command_line import Request

_CPUS: Final = Path("/sys/devices/system/cpu")


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    ranks: int
    steps: int
    wall_ns: int
    cpu_ns: int
    busy_ns: int
    waited_ns: int | None
    """Run-queue wait of the training thread in ns; None if unknown."""
    is_alone: bool
    """Whether the training uses no device and no child processes."""
    processor: int | None


class Turn(msgspec.Struct, frozen=True):
    steps: int
    """Number of timed steps in the block; 0 lets the program run to its end."""
    lead: int = 0
    """Number of untimed steps before the timed steps, to warm up the CPU caches."""
    processor: int | None = None


class _Clocks(NamedTuple):
    wall_ns: int
    cpu_ns: int
    busy_ns: int
    waited_ns: int | None

    @classmethod
    def read(cls, thread: CountedThread) -> _Clocks:
        return cls(time.monotonic_ns(), time.process_time_ns(), time.thread_time_ns(), thread.waited_ns())

    def since(self, before: _Clocks) -> _Clocks:
        is_measured = self.waited_ns is not None and before.waited_ns is not None
        waited = (self.waited_ns or 0) - (before.waited_ns or 0) if is_measured else None
        differences = (self.wall_ns - before.wall_ns, self.cpu_ns - before.cpu_ns, self.busy_ns - before.busy_ns)
        return _Clocks(*differences, waited)


class HeldSteps:
    """Counts steps in place of a profiler, and holds the training between blocks."""

    pulse = NO_PROFILER
    folder = None

    def __init__(self, address: str) -> None:
        self._address = address
        self._done = 0
        self._until = 0
        self._timed = 0
        """Number of timed steps after step `_until`; 0 holds the program at that step."""
        self._at_begin = 0
        self._thread = CountedThread(threading.get_native_id())
        self._clocks = _Clocks.read(self._thread)
        self._socket: socket.socket | None = None
        self._answers: BinaryIO | None = None
        forget = weakref.WeakMethod(self._forget)
        process.in_child(process.Child.TURNS, lambda: (forget_child := forget()) and forget_child())

    def step(self) -> None:
        self._done += 1
        if self._done >= self._until:
            self._on_boundary()

    @property
    def steps(self) -> int:
        return self._done

    def let_go(self) -> None:
        self._until = NEVER
        for end in (self._answers, self._socket):
            if end is not None:
                end.close()

    def _forget(self) -> None:
        """Close a child's copy of the socket, which would hide the death of the parent."""
        self._until = NEVER
        if self._socket is not None:
            os.close(self._socket.detach())  # a thread of the parent may have held the lock of the reader

    def _on_boundary(self) -> None:
        if self._until == NEVER:
            return
        uses_device = _await_devices()
        if self._timed:
            self._time(self._timed)
        else:
            self._hold(uses_device=uses_device)

    def _time(self, steps: int) -> None:
        # count from the scheduled start: an error of a signal handler may have delayed this rank by one step
        self._at_begin, self._until, self._timed = self._done, self._until + steps, 0
        self._clocks = _Clocks.read(self._thread)

    def _hold(self, *, uses_device: bool) -> None:
        elapsed = _Clocks.read(self._thread).since(self._clocks)
        job = current_job()
        end = TurnEnd(
            rank=job.rank,
            ranks=job.world_size,
            steps=self._done - self._at_begin,
            wall_ns=elapsed.wall_ns,
            cpu_ns=elapsed.cpu_ns,
            busy_ns=elapsed.busy_ns,
            waited_ns=elapsed.waited_ns,
            is_alone=not uses_device and not _has_children(),
            processor=_cpu(),
        )
        turn = None
        try:
            turn = self._next(end)
        finally:
            if turn is None:  # close even if a signal handler raised: the next answer would be for another block
                self.let_go()
        if turn is None:
            return
        self._until, self._timed = self._done + turn.lead, turn.steps
        if not turn.lead:
            self._time(turn.steps)

    def _next(self, end: TurnEnd) -> Turn | None:
        try:
            self._send(end)
            turn = self._receive()
        except (OSError, msgspec.MsgspecError) as error:
            logger.debug("no more turns: %s", error)
            return None
        if turn.processor is not None:
            _move_to_cpu(turn.processor)
        return turn if turn.steps else None

    def _send(self, end: TurnEnd) -> None:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(self._address)
            self._answers = self._socket.makefile("rb")
        self._socket.sendall(msgspec.json.encode(end) + b"\n")

    def _receive(self) -> Turn:
        line = b"" if self._answers is None else self._answers.readline(100)
        if not line:
            os.kill(os.getpid(), signal.SIGKILL)
        return msgspec.json.decode(line, type=Turn)


class Turns:
    current: HeldSteps | None = None

    def __init__(self, request: Request) -> None:
        self.request = request

    def begin(self, *_: object) -> None:
        if self.current is None:
            self.current = HeldSteps(self.request.turns)

    def end(self, _: str | None) -> str | None:
        if self.current is not None:
            self.current.let_go()
        return None

    def pause(self, _: str) -> None:
        """Do nothing: no window is open."""

    def keep(self, *_: object) -> None:
        """Do nothing: nothing was recorded."""

    def write_counts(self, _: object) -> None:
        if self.current is not None and self.request.changes is not None:
            change_notes.leave_steps(self.request.notes, self.current.steps)


def _await_devices() -> bool:
    is_used = False
    for name in ("cuda", "xpu"):
        kind: Any = getattr(sys.modules.get("torch"), name, None)
        with contextlib.suppress(Exception):  # the program reports device errors itself
            for device in range(kind.device_count()) if kind is not None and kind.is_initialized() else ():
                if kind.memory_reserved(device):
                    is_used = True
                    kind.synchronize(device)
    return is_used


def _has_children() -> bool:
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _cpu() -> int | None:
    return _sched_getcpu()()


@functools.cache
def _sched_getcpu() -> Callable[[], int | None]:
    return getattr(ctypes.CDLL(None), "sched_getcpu", lambda: None)


def _move_to_cpu(cpu: int) -> None:
    """Move this thread to a CPU of the same NUMA node, without pinning the thread."""
    current = _cpu()
    if current in (None, cpu) or not hasattr(os, "sched_setaffinity"):
        return
    allowed = os.sched_getaffinity(0)
    if cpu in allowed and _node(cpu) == _node(current):
        with contextlib.suppress(OSError):
            try:
                os.sched_setaffinity(0, {cpu})
            finally:
                os.sched_setaffinity(0, allowed)


@functools.cache
def _node(cpu: int | None) -> frozenset[str]:
    return frozenset(path.name for path in (_CPUS / f"cpu{cpu}").glob("node*"))
