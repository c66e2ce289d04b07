"""Samples of the training thread: its stack, and its state since the previous sample.

The sampler needs the GIL, which the training releases mostly inside C code, so plain sampling would overstate C code.
The delay of a sample shows whether the training held the GIL::

    the training   ── C ──┤ Python ├── C ──────┤ Python, for more than 5 ms ├── C ──
    samples            ▲     △······▲    ▲          △·····▲
                    in time   late, held   in time   late, held: Python was forced to release the GIL, the line is exact

A sample is scheduled for a moment (△). If the sample is late, and the sampling thread did not wait for a CPU, the
training held the GIL.
"""

from __future__ import annotations

import enum
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core import frames
from perfhooks.core.thread_time import CountedThread
from perfhooks.record.watch.sampling import frames_of, stack, variables_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.record.watch.sampling import Frame, Stack

_LATE_NS: Final = 300_000
"""Minimum delay in ns of a sample that waited for the GIL. On a virtual machine, a thread needs a third of this delay
to wake up.
"""
MIN_CPU: Final = 0.25
"""Minimum CPU time of a computing thread, as a fraction of the elapsed time without run-queue waits."""
_MAX_STACKS: Final = 5000
_IS_ENABLED: Final = {"no_grad": False, "inference_mode": False, "enable_grad": True}
"""Whether a decorator of torch enables gradients."""


class State(enum.Enum):
    COMPUTING = enum.auto()
    QUEUEING = enum.auto()
    """State of a thread that is ready to run, but has no CPU."""
    BLOCKED = enum.auto()
    """State of a thread that waits in a system call, or for a page of memory."""
    UNKNOWN = enum.auto()


class Sample(NamedTuple):
    stack: Stack
    spent_ns: int
    at: int = 0
    is_held: bool = False
    is_exact: bool = True
    """Whether the line is exact, not a later line at which the training released the GIL."""
    is_evaluating: bool = False
    state: State = State.COMPUTING


def spent(samples: Sequence[Sample]) -> int:
    return sum(sample.spent_ns for sample in samples)


class Sampler:
    def __init__(self) -> None:
        self._stack: Stack = ()
        self._own: CountedThread | None = None
        self._own_waited: int | None = None
        self._thread: CountedThread | None = None
        self._cpu: int | None = None
        self._waited: int | None = None

    def thread(self, native: int) -> CountedThread:
        if self._thread is None or self._thread.native != native:
            self._thread, self._cpu, self._waited = CountedThread(native), None, None
        return self._thread

    def sample(self, ident: int, native: int, *, now: int, spent_ns: int, late_ns: int) -> Sample:
        # stack first: the system calls below release the GIL, and the training continues
        read = frames_of(ident, 200)
        sampled, is_evaluating = stack(read), _is_evaluating(ident, read)
        if sampled != self._stack:  # keep an equal stack: new objects bring Python's next collection nearer
            self._stack = sampled
        state = self._state(self.thread(native), spent_ns)
        held_ns = late_ns - self._own_queue_ns()
        return Sample(
            self._stack,
            spent_ns,
            now,
            is_held=held_ns > _LATE_NS,
            # after 90% of Python's switch interval the GIL was released by force, at the sampled line
            is_exact=not _LATE_NS < held_ns < 0.9 * sys.getswitchinterval() * 1e9,
            is_evaluating=is_evaluating,
            state=state,
        )

    def _own_queue_ns(self) -> int:
        if self._own is None:
            self._own = CountedThread(threading.get_native_id())
        before, self._own_waited = self._own_waited, self._own.waited_ns()
        return 0 if before is None or self._own_waited is None else self._own_waited - before

    def _state(self, thread: CountedThread, spent_ns: int) -> State:
        cpu = thread.cpu_ns()
        before, self._cpu = self._cpu, cpu
        computed = 0 if cpu is None or before is None else cpu - before
        if computed >= spent_ns / 2:
            self._waited = None
            return State.COMPUTING
        waited = thread.waited_ns()
        before, self._waited = self._waited, waited
        queued = 0 if waited is None or before is None else waited - before
        if queued >= spent_ns / 2:
            return State.QUEUEING
        if computed >= MIN_CPU * (spent_ns - queued):
            return State.COMPUTING
        # Linux counts a run-queue wait only when it ends
        return {True: State.BLOCKED, False: State.QUEUEING, None: State.UNKNOWN}[thread.is_blocked()]


def _is_evaluating(thread: int, stack: Sequence[Frame]) -> bool:
    calls = {frame.code for frame in stack if frame.name == frames.CALLS_MODULE and frames.MODELS in frame.file}
    if not calls:
        return False
    switches = {frame.code for frame in stack if frame.file.endswith(frames.SWITCHES_GRADIENTS)}
    module, switch = None, None
    for code, owner, factory in variables_of(thread, calls | switches, "self", "ctx_factory"):
        if code in calls:
            module, switch = owner, None
        elif module is not None and switch is None:
            # the innermost one counts: LBFGS disables gradients, and enables them for the function that it calls
            switch = _IS_ENABLED.get(type(getattr(factory, "__self__", None)).__name__)
    return not switch if switch is not None else getattr(module, "training", True) is False


class FoldedStacks:
    def __init__(self) -> None:
        self._ns: Counter[str] = Counter()
        self.is_new = False

    def add(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            text = ";".join(str(frame).replace(";", ",") for frame in sample.stack) or "no Python frame"
            text += ";held the interpreter" if sample.is_held else ""
            if text in self._ns or len(self._ns) < _MAX_STACKS:
                self._ns[text] += sample.spent_ns
                self.is_new = True

    def text(self) -> str:
        self.is_new = False
        return "".join(f"{stack} {max(1, round(spent / 1e6))}\n" for stack, spent in sorted(self._ns.items()))
