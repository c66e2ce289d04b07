"""Looks at the thread that trains, from another one: where it is, and what it did since the look before.

Whoever looks needs the interpreter, and gets it where the training lets go of it, which is in C code. So a line that
was seen is more often one of C than it should be. What makes up for that is how late the look came::

    the training   ── C ──┤ Python ├── C ──────┤ Python, for more than 5 ms ├── C ──
    looks              ▲     △······▲    ▲          △·····▲
                    in time   late, held   in time   late, held, and Python was made to let go: the line is exact

A look is meant for a moment (△); what the training did then is what counts for the time since the look before. If the
look came late, and not because the looking thread waited for a processor, the interpreter was held.
"""

from __future__ import annotations

import enum
import os
import platform
import stat
import sys
import threading
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core import frames
from perfhooks.core.thread_time import RUNS, CountedThread
from perfhooks.record.watch.sampling import innermost_of, outwards, stack_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.record.watch.sampling import Stack

_LATE_NS: Final = 300_000
"""A look that comes so late has waited for the interpreter: to wake up takes a virtual machine a third of that."""
_FORCED: Final = 0.9
"""Of the switch interval: who has waited so long has made Python let go where it was."""
_COMPUTES: Final = 0.25
"""A thread that computes less of the time that it had a processor for, or wanted one, waits for something."""
_MOST_STACKS: Final = 5000
"""Different stacks that are kept of a run."""
_DEEPEST: Final = 200
"""Frames in which a module's call is looked for."""


class Doing(enum.Enum):
    """What a thread does, as the system tells."""

    COMPUTING = enum.auto()
    QUEUEING = enum.auto()
    """It could run, and others have the processor."""
    FILE = enum.auto()
    """It waits for a disk, in a call that reads, writes or flushes a file."""
    PAGE = enum.auto()
    """It waits for a page of its memory: swapped out, or of a file that is mapped."""
    LOCK = enum.auto()
    """It waits for another thread."""
    WAITING = enum.auto()
    """For something else, or nobody tells for what."""


class Look(NamedTuple):
    """What was seen."""

    stack: Stack
    spent_ns: int
    """The time since the look before, for which it stands."""
    at: int = 0
    """The clock."""
    is_held: bool = False
    """Whether the interpreter was held."""
    is_exact: bool = True
    """Whether the line is the one that the thread was at; else it is only near."""
    is_evaluating: bool = False
    """Whether a module was called that is in evaluation mode."""
    doing: Doing = Doing.COMPUTING


class Looker:
    """Looks at one thread; what it needs of the looking thread is known from the first look on."""

    def __init__(self) -> None:
        self._stack: Stack = ()
        self._own: CountedThread | None = None
        self._own_waited: int | None = None
        self._thread: CountedThread | None = None
        self._cpu: int | None = None
        self._waited: int | None = None

    def thread(self, ident: int, native: int) -> CountedThread:
        """The thread that trains now."""
        if self._thread is None or self._thread.native != native:
            self._thread, self._cpu, self._waited = CountedThread(ident, native), None, None
        return self._thread

    def look(self, ident: int, native: int, *, now: int, spent_ns: int, late_ns: int) -> Look:
        """Look.

        Args:
            ident: The thread that trains.
            native: The same as the system numbers it.
            now: The clock.
            spent_ns: Since the look before.
            late_ns: How much later the look comes than it was meant to.
        """
        # first what needs the interpreter: to ask the system gives it to the training, which goes on
        stack, is_evaluating = stack_of(ident), _is_evaluating(ident)
        if (
            stack != self._stack
        ):  # else the one that is there is kept: new objects bring Python's next collection nearer
            self._stack = stack
        doing = self._doing(self.thread(ident, native), spent_ns)
        held_ns = late_ns - self._own_delay()
        return Look(
            self._stack,
            spent_ns,
            now,
            is_held=held_ns > _LATE_NS,
            is_exact=not _LATE_NS < held_ns < _FORCED * sys.getswitchinterval() * 1e9,
            is_evaluating=is_evaluating,
            doing=doing,
        )

    def _own_delay(self) -> int:
        """How long the looking thread waited for a processor since the last look."""
        if self._own is None:
            self._own = CountedThread(threading.get_ident(), threading.get_native_id())
        before, self._own_waited = self._own_waited, self._own.waited_ns()
        return 0 if before is None or self._own_waited is None else self._own_waited - before

    def _doing(self, thread: CountedThread, spent_ns: int) -> Doing:
        cpu = thread.cpu_ns()
        before, self._cpu = self._cpu, cpu
        computed = 0 if cpu is None or before is None else cpu - before
        if computed >= spent_ns / 2:
            self._waited = None
            return Doing.COMPUTING
        waited = thread.waited_ns()
        before, self._waited = self._waited, waited
        queued = 0 if waited is None or before is None else waited - before
        if queued >= spent_ns / 2:
            return Doing.QUEUEING
        return Doing.COMPUTING if computed >= _COMPUTES * (spent_ns - queued) else _waits_for(thread.call())


def _is_evaluating(ident: int) -> bool:
    """Whether the outermost module that a thread calls is in evaluation mode."""
    call = None
    for frame in islice(outwards(innermost_of(ident)), _DEEPEST):
        if frame.f_code.co_name == frames.CALLS_MODULE and frames.MODELS in frame.f_code.co_filename:
            call = frame
    return call is not None and getattr(call.f_locals.get("self"), "training", True) is False


class Folded:
    """Stacks with the milliseconds that were spent in each, over a whole run."""

    def __init__(self) -> None:
        self._spent: Counter[str] = Counter()
        self.is_new = False
        """Whether there is something that was not written yet."""

    def add(self, looks: Sequence[Look]) -> None:
        """Take looks, each with the nanoseconds that it stands for."""
        for look in looks:
            text = ";".join(str(frame).replace(";", ",") for frame in look.stack) or "no Python frame"
            text += ";held the interpreter" if look.is_held else ""
            if text in self._spent or len(self._spent) < _MOST_STACKS:
                self._spent[text] += look.spent_ns
                self.is_new = True

    def text(self) -> str:
        """One line a stack: its frames, and whole milliseconds."""
        self.is_new = False
        return "".join(f"{stack} {max(1, round(spent / 1e6))}\n" for stack, spent in sorted(self._spent.items()))


_CALLS: Final = {
    "x86_64": ({202}, {26, 74, 75, 162, 277, 306}, {0, 1, 17, 18, 19, 20, 40, 295, 296, 326}),
    "aarch64": ({98}, {81, 82, 83, 84, 227, 267}, {63, 64, 65, 66, 67, 68, 69, 70, 71, 285}),
}
"""By processor, the numbers of the calls that wait for a lock (``futex``), that flush files, and that read or write one
(``fsync``, ``msync``, ``sync`` and the like; ``read``, ``pwrite64``, ``sendfile`` and the like), see syscalls(2)."""
_LOCKS, _FLUSHES, _TRANSFERS = _CALLS.get(platform.machine(), (set(), set(), set()))


def _waits_for(call: tuple[int, int] | None) -> Doing:
    """What a thread waits for, by the call that it is in."""
    number, descriptor = call or (None, 0)
    if number == RUNS:  # how long it waits for a processor is counted once it has one
        return Doing.QUEUEING
    if number == -1:
        return Doing.PAGE
    if number in _LOCKS:
        return Doing.LOCK
    return Doing.FILE if number in _FLUSHES or (number in _TRANSFERS and _is_file(descriptor)) else Doing.WAITING


def _is_file(descriptor: int) -> bool:
    """Whether this process has a file open under a number: no pipe, socket or terminal."""
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except (OSError, OverflowError):
        return False
