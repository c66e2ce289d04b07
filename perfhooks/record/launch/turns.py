"""One of two programs that take turns, for ``perfhooks compare --run``: it is held where a step ends, and let go again.

    A   ░░██████▌          ░░██████▌          ░░██████▌            ▌ held: it waits for one line of a socket
    B   ▌        ░░██████▌          ░░██████▌          ░░██...
         ◄──────► one turn: some steps that are not timed (░), then so many as it was told

The first steps of a turn take up to twice as long: the caches have what the other program put there. And each turn goes
on where the other program's ended, on the same processor: on a shared machine one is often half as fast as the next
for a while, and a system keeps each program on its own. Of a small training, alone on two such processors, neighbouring
turns of 20 ms differed by 27% without that and by 11% with it.

All ranks of a program are given the same number of steps, so they are held at the same step, and none of them waits
for another one in a collective. Between two turns nothing is done: the device has ended its work when the clocks are
read, and child processes are stopped, as the workers of a loader, which would work ahead: the next turn would find
batches that took no time. `perfhooks.cli.turns.freezing` does that once all ranks are held, as a rank may have
started another one. The end of the socket is the death of the supervisor, and the program does not outlive it.
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
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import msgspec

from perfhooks.core import process
from perfhooks.core.guard import logger
from perfhooks.core.thread_time import CountedThread
from perfhooks.record.launch.step_detectors import NEVER, NOBODY
from perfhooks.run.job import current_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.record.launch.command_line import Request

_LONGEST: Final = 100
"""Bytes of an answer, which is three numbers."""
_PROCESSORS: Final = Path("/sys/devices/system/cpu")


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank says when it is held: what its turn took."""

    rank: int
    ranks: int
    """Of the program."""
    steps: int
    """Of this turn, that were timed."""
    wall_ns: int
    cpu_ns: int
    """What all threads of the process computed."""
    busy_ns: int
    """What the thread of the steps computed."""
    waited_ns: int | None
    """How long that thread could have run and waited for a processor; None where the system does not tell."""
    is_alone: bool
    """Whether nothing works for it but its own threads: no device, and no process that it has started."""
    processor: int | None
    """On which that thread ran last; None where the system does not tell."""


class Turn(msgspec.Struct, frozen=True):
    """An answer."""

    steps: int
    """The timed steps until the next hold; 0 for no more holds."""
    lead: int = 0
    """How many more come before those, and are not timed."""
    processor: int | None = None
    """On which the other program's turn has ended."""


class _Clocks(NamedTuple):
    wall_ns: int
    cpu_ns: int
    busy_ns: int
    waited_ns: int | None

    @classmethod
    def read(cls, thread: CountedThread) -> _Clocks:
        return cls(time.monotonic_ns(), time.process_time_ns(), time.thread_time_ns(), thread.waited_ns())

    def since(self, before: _Clocks) -> _Clocks:
        """What has passed on each."""
        knows = self.waited_ns is not None and before.waited_ns is not None
        waited = (self.waited_ns or 0) - (before.waited_ns or 0) if knows else None
        passed = (self.wall_ns - before.wall_ns, self.cpu_ns - before.cpu_ns, self.busy_ns - before.busy_ns)
        return _Clocks(*passed, waited)


class HeldSteps:
    """Stands where a profiler does, and counts steps.

    Args:
        address: The socket of ``perfhooks compare``.
    """

    pulse = NOBODY
    folder = None

    def __init__(self, address: str) -> None:
        self._address = address
        self._done = 0
        self._until = 0
        """The number of steps at which something happens; the first step is held, before anything is timed."""
        self._timed = 0
        """How many steps are timed from there on; none where it is held there."""
        self._at_begin = 0
        self._thread = CountedThread(threading.get_ident(), threading.get_native_id())
        self._clocks = _Clocks.read(self._thread)
        self._socket: socket.socket | None = None
        self._answers: BinaryIO | None = None
        forget = weakref.WeakMethod(self._forget)
        process.in_child(process.Child.TURNS, lambda: (known := forget()) and known())

    def step(self) -> None:
        """A step has ended."""
        self._done += 1
        if self._done >= self._until:
            self._arrive()

    def let_go(self) -> None:
        """Take no more turns."""
        self._until = NEVER
        for end in (self._answers, self._socket):
            if end is not None:
                end.close()

    def _forget(self) -> None:
        """Take no part: this process is a forked child. A copy of the socket would hide the death of the parent."""
        self._until = NEVER
        if self._socket is not None:
            os.close(self._socket.detach())  # a thread of the parent may have held the lock of the reader

    def _arrive(self) -> None:
        """At the end of the steps that are not timed, or of those that are."""
        if self._until == NEVER:
            return
        uses_device = _await_devices()
        if self._timed:
            self._time(self._timed)
        else:
            self._hold(uses_device=uses_device)

    def _time(self, steps: int) -> None:
        # from where it was to begin: if a signal's handler has raised meanwhile, other ranks are a step behind
        self._at_begin, self._until, self._timed = self._done, self._until + steps, 0
        self._clocks = _Clocks.read(self._thread)

    def _hold(self, *, uses_device: bool) -> None:
        passed = _Clocks.read(self._thread).since(self._clocks)
        job = current_job()
        end = TurnEnd(
            rank=job.rank,
            ranks=job.world_size,
            steps=self._done - self._at_begin,
            wall_ns=passed.wall_ns,
            cpu_ns=passed.cpu_ns,
            busy_ns=passed.busy_ns,
            waited_ns=passed.waited_ns,
            is_alone=not uses_device and not _has_children(),
            processor=_processor(),
        )
        turn = None
        try:
            turn = self._next(end)
        finally:
            if turn is None:  # also where a signal's handler raised: the answer that comes would be for another turn
                self.let_go()
        if turn is None:
            return
        self._until, self._timed = self._done + turn.lead, turn.steps
        if not turn.lead:
            self._time(turn.steps)

    def _next(self, end: TurnEnd) -> Turn | None:
        """Wait for the next turn; None for no more."""
        try:
            self._say(end)
            turn = self._answer()
        except (OSError, msgspec.MsgspecError) as error:
            logger.debug("no more turns: %s", error)
            return None
        if turn.processor is not None:
            _go_on_at(turn.processor)
        return turn if turn.steps else None

    def _say(self, end: TurnEnd) -> None:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(self._address)
            self._answers = self._socket.makefile("rb")
        self._socket.sendall(msgspec.json.encode(end) + b"\n")

    def _answer(self) -> Turn:
        line = b"" if self._answers is None else self._answers.readline(_LONGEST)
        if not line:
            os.kill(os.getpid(), signal.SIGKILL)
        return msgspec.json.decode(line, type=Turn)


class Turns:
    """Has the place of `perfhooks.record.launch.profiling.Profilers` where nothing is recorded.

    Args:
        asked: Names the socket.
    """

    current: HeldSteps | None = None

    def __init__(self, asked: Request) -> None:
        self.asked = asked

    def begin(self, *_: object) -> None:
        """Steps are told from here on; where they were before, they are counted on."""
        if self.current is None:
            self.current = HeldSteps(self.asked.turns)

    def end(self, _: str | None) -> str | None:
        """Steps are told no more."""
        if self.current is not None:
            self.current.let_go()
        return None

    def pause(self, _: str) -> None:
        """No window is open."""

    def keep(self, *_: object) -> None:
        """Nothing was recorded."""

    def say_counts(self, _: object) -> None:
        """Nobody shows them."""


def _await_devices() -> bool:
    """Let the devices that this process uses end the work of the steps before; whether it uses any."""
    are_used = False
    for name in ("cuda", "xpu"):
        kind: Any = getattr(sys.modules.get("torch"), name, None)
        with contextlib.suppress(Exception):  # a device that is in trouble tells the program itself
            for device in range(kind.device_count()) if kind is not None and kind.is_initialized() else ():
                if kind.memory_reserved(device):
                    are_used = True
                    kind.synchronize(device)
    return are_used


def _has_children() -> bool:
    """Whether this process has started others; where the system does not say so in one call, it may have."""
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _processor() -> int | None:
    """On which this thread runs."""
    return _says_processor()()


@functools.cache
def _says_processor() -> Callable[[], int | None]:
    """Python has no name for it; nor have all systems."""
    return getattr(ctypes.CDLL(None), "sched_getcpu", lambda: None)


def _go_on_at(processor: int) -> None:
    """Move this thread to a processor, from which the system may move it on as ever.

    Not where it was forbidden to run, nor to another node: its memory would be far away.
    """
    here = _processor()
    if here in (None, processor) or not hasattr(os, "sched_setaffinity"):
        return
    allowed = os.sched_getaffinity(0)
    if processor in allowed and _node(processor) == _node(here):
        with contextlib.suppress(OSError):
            try:
                os.sched_setaffinity(0, {processor})
            finally:
                os.sched_setaffinity(0, allowed)


@functools.cache
def _node(processor: int | None) -> frozenset[str]:
    """The node of memory that is near to it, if the system knows any."""
    return frozenset(path.name for path in (_PROCESSORS / f"cpu{processor}").glob("node*"))
