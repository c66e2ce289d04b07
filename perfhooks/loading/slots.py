"""Memory that a training shares with the workers of one loader: what they count, and what they look at in a window.

::

    | switch | worker 0: counts, signal | what it looked at ... | worker 1: counts, signal | what it looked at ... |
      4 KiB    4 KiB                      up to 1 MiB

It has no name in any file system, so nothing is left behind, and `/dev/shm`, which batches fill, is left alone. What
nobody has written takes no memory. The training writes the switch and nothing else; a worker writes its own part only.
"""

from __future__ import annotations

import mmap
import os
import struct
from multiprocessing import reduction
from typing import Any, Final, NamedTuple

_PAGE: Final = 4096
_ROOM: Final = 1 << 20
"""Bytes for what a worker looks at: of 13,000 looks or more, which is two minutes."""
_SLOT: Final = _PAGE + _ROOM
_COUNTS: Final = struct.Struct("<qqqqqdqqqqqqq")
_LOG: Final = struct.Struct("<qq")
_LOG_AT: Final = 512
_LOOK: Final = struct.Struct("<iiqqqq")
_TRIES: Final = 100
"""Readings of counts that are being written; writing them takes a microsecond."""


class Counts(NamedTuple):
    """What a worker has counted since it began, in nanoseconds; the first one is odd while they are being written."""

    version: int = 0
    pid: int = 0
    """0 as long as it has not begun."""
    signal: int = 0
    """What makes it look; 0 where it cannot, and when it ends."""
    batches: int = 0
    making: int = 0
    squares: float = 0.0
    """Of seconds."""
    longest: int = 0
    processor: int = 0
    waited: int = 0
    handed_over: int = 0
    queued: int = 0
    """-1 where the system does not tell."""
    memory: int = -1
    """Bytes; -1 where it was not asked."""
    began: int = 0
    """By the monotonic clock, which all processes of a machine share."""


class StackLook(NamedTuple):
    """One look at a worker, or what one stack is, which comes before the first look that finds it."""

    stack: str
    """Frames, the outermost first, as ``file.py(12): function;file.py(40): other``."""
    ticks: int
    """How often the timer was due since the look before: more than once where C code held it up."""
    late: int
    """How long after the first of them the worker came to look, in nanoseconds."""
    processor: int
    """What it computed since the look before, in nanoseconds."""
    queued: int
    """What it waited for a processor meanwhile; 0 where the system does not tell."""
    read: int = 0
    """Blocks of 512 bytes that came from a disk, or a file system of a network, meanwhile."""


class Slots:
    """The memory of one loader's workers.

    Args:
        workers: How many there are.
    """

    def __init__(self, workers: int) -> None:
        self.attach(os.memfd_create("perfhooks", os.MFD_CLOEXEC), workers)

    def attach(self, file: int, workers: int) -> None:
        """Take a file of this process's own for the memory of so many workers."""
        size = _PAGE + workers * _SLOT
        self._file, self.workers = file, workers
        os.ftruncate(file, size)
        self._memory = mmap.mmap(file, size)

    @classmethod
    def attached(cls, file: Any, workers: int) -> Slots:
        """The same memory, in a process that was not forked.

        Args:
            file: What `multiprocessing` has duplicated.
            workers: How many there are.
        """
        slots = cls.__new__(cls)
        slots.attach(file.detach(), workers)
        return slots

    def __reduce__(self) -> tuple[Any, ...]:
        # only for a worker that is being started as a new program; a forked one has the memory already
        return Slots.attached, (reduction.DupFd(self._file), self.workers)

    def close(self) -> None:
        """Let go of it; it is gone when the workers have ended as well."""
        self._memory.close()
        os.close(self._file)

    @property
    def window(self) -> int:
        """The number of the window in which workers look; 0 while there is none."""
        return int.from_bytes(self._memory[:8], "little")

    @window.setter
    def window(self, number: int) -> None:
        self._memory[:8] = number.to_bytes(8, "little")

    def write(self, worker: int, counts: Counts) -> None:
        """Write what a worker has counted."""
        at = _PAGE + worker * _SLOT
        version = counts.version | 1
        self._memory[at : at + 8] = version.to_bytes(8, "little")
        _COUNTS.pack_into(self._memory, at, version, *counts[1:])
        self._memory[at : at + 8] = (version + 1).to_bytes(8, "little")

    def counts(self, worker: int) -> Counts:
        """What a worker has counted up to now."""
        found = Counts()
        for _ in range(_TRIES):
            found = Counts(*_COUNTS.unpack_from(self._memory, _PAGE + worker * _SLOT))
            if found.version % 2 == 0 and found == Counts(*_COUNTS.unpack_from(self._memory, _PAGE + worker * _SLOT)):
                break
        return found

    def log(self, worker: int, window: int) -> StackLog:
        """Where a worker is to write what it looks at in a window."""
        return StackLog(self._memory, _PAGE + worker * _SLOT, window)

    def looks(self, worker: int, window: int) -> list[StackLook]:
        """What a worker has looked at in a window, up to now."""
        at = _PAGE + worker * _SLOT
        found, used = _LOG.unpack_from(self._memory, at + _LOG_AT)
        if found != window:
            return []
        stacks: list[str] = []
        looks: list[StackLook] = []
        place, end = at + _PAGE, at + _PAGE + min(used, _ROOM)
        while place < end:
            stack, ticks, *look = _LOOK.unpack_from(self._memory, place)
            place += _LOOK.size
            if stack < 0:
                stacks.append(self._memory[place : place + ticks].decode(errors="replace"))
                place += ticks
            else:
                looks.append(StackLook(stacks[stack], ticks, *look))
        return looks


class StackLog:
    """What one worker looks at in one window, as it writes it down."""

    def __init__(self, memory: mmap.mmap, at: int, window: int) -> None:
        self._memory, self._at, self._window = memory, at, window
        self._used = self._stacks = 0
        self._note()

    def _note(self) -> None:
        _LOG.pack_into(self._memory, self._at + _LOG_AT, self._window, self._used)

    def define(self, stack: str) -> int | None:
        """The number by which a stack is called from now on; None where there is no room for it."""
        text = stack.encode()[: 64 << 10]
        if self._used + len(text) + 2 * _LOOK.size > _ROOM:
            return None
        place = self._at + _PAGE + self._used
        _LOOK.pack_into(self._memory, place, -1, len(text), 0, 0, 0, 0)
        self._memory[place + _LOOK.size : place + _LOOK.size + len(text)] = text
        self._used += _LOOK.size + len(text)
        self._note()
        self._stacks += 1
        return self._stacks - 1

    def add(self, stack: int, *look: int) -> bool:
        """Note a look, the fields of `StackLook`; whether there was room for it."""
        if self._used + _LOOK.size > _ROOM:
            return False
        _LOOK.pack_into(self._memory, self._at + _PAGE + self._used, stack, *look)
        self._used += _LOOK.size
        self._note()
        return True
