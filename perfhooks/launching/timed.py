"""A program that neither fetches nor updates has no steps: time ends its one window.

A thread waits until the program has computed for a while without a fetch or an update. Then it has the main thread
start and stop the recorder between two of its instructions, as torch records the thread that starts it. That is done by
``Py_AddPendingCall``, Python's own way for that in its C interface. A probe of some milliseconds comes first: a program
that prepares its data, say, and calls no operator of torch is left alone until it does.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from perfhooks import frames
from perfhooks.guard import guard
from perfhooks.launching.startup import is_loader_worker
from perfhooks.run.job import is_in_job
from perfhooks.watching.sampling import outwards

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from perfhooks.launching.profiling import OperatorProbe

LENGTH_S: Final = 5.0
"""Of the window: a batch of most models, and a trace of some hundred megabytes at most."""
_TRIAL_S: Final = 0.02
"""Of a probe: some thousand operators. One that takes longer is seen as well, as the probe ends after it."""
_LOOK_S: Final = 1.0
"""Between two looks at a program that is not to be recorded now."""
_ANSWER_S: Final = 30.0
"""How long the main thread may take to answer: it cannot while it is in a single call of C."""
_BUSY: Final = 0.1
"""Of the time, in which the main thread computes. A launcher's, which waits for others, has 0.01; one that shares its
processor with others may have 0.2."""
_NOT_IN: Final = (
    *("<frozen importlib", "/logging/", "/threading.py", "/subprocess.py"),
    *("/multiprocessing/queues.py", "/multiprocessing/synchronize.py", "/multiprocessing/connection.py"),
    *(*frames.COMPILER, *frames.RECORDER),
)
"""Code in the middle of which nothing of ours is to run: it holds locks that we need, or compiles what it sees."""


class Listener(Protocol):
    """Who listens to the program for steps."""

    @property
    def is_without_steps(self) -> bool:
        """Whether there were none, and nothing else speaks against a window."""

    def begin_timed(self) -> None:
        """Begin to record."""

    def end_timed(self) -> None:
        """It is long enough."""

    def hear_timed(self) -> bool:
        """Whether its files are there."""


class TimedWindow:
    """Sees to it that a program without steps gets its window.

    Args:
        signal: That of this process: whether there are steps, and who profiles.
        after_s: How long the first fetch or update may take.
    """

    def __init__(self, signal: Listener, after_s: float) -> None:
        self._signal = signal
        self._after_s = after_s
        self._pid = os.getpid()
        self._over = threading.Event()
        self._act: Callable[[], bool] | None = None
        self._answered = threading.Event()
        self._answer = False
        self._probe: OperatorProbe | None = None
        self._has_operators = False
        # kept as long as Python may still call it
        self._pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._on_main_thread)
        threading.Thread(target=self._watch, name="perfhooks-timed", daemon=True).start()

    def give_up(self) -> None:
        """There are steps after all, or the process ends."""
        self._over.set()
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.stop()

    def _watch(self) -> None:
        with guard("recording a program without steps"):
            if self._comes_to_compute() and not is_of_somebody_else():
                while not self._over.is_set() and not self._ask(self._begin):
                    self._over.wait(_LOOK_S)
                self._over.wait(LENGTH_S)
                while not self._over.is_set() and not self._ask(self._end):
                    self._over.wait(_LOOK_S)
                while not self._over.is_set() and not self._ask(self._signal.hear_timed):
                    self._over.wait(_LOOK_S)

    def _comes_to_compute(self) -> bool:
        """Wait until the program calls operators of torch, and has made no step."""
        pause, last = self._after_s, (time.monotonic(), _computed_s())
        while not self._over.wait(pause):
            now = time.monotonic(), _computed_s()
            is_busy = now[1] - last[1] >= _BUSY * (now[0] - last[0])
            last, pause = now, _LOOK_S
            if is_busy and self._ask(self._try):
                self._over.wait(_TRIAL_S)
                while not self._over.is_set() and not self._ask(self._end_probe):
                    self._over.wait(_TRIAL_S)
                if self._has_operators:
                    return True
                pause = self._after_s = max(2 * self._after_s, _LOOK_S)
        return False

    # -- in the main thread -------------------------------------------------------------------------------------------

    def _ask(self, act: Callable[[], bool]) -> bool:
        """Have the main thread do something; whether it has."""
        self._answered.clear()
        self._answer, self._act = False, act
        ctypes.pythonapi.Py_AddPendingCall(self._pending, None)
        self._answered.wait(_ANSWER_S)
        self._act = None
        return self._answer

    def _on_main_thread(self, _: object) -> int:
        act, self._act = self._act, None
        if act is not None and os.getpid() == self._pid:
            failed = True
            with guard("recording a program without steps"):
                # what this call has interrupted
                self._answer = is_harmless_in(sys._getframe(1)) and act()
                failed = False
            if failed:
                self._over.set()
            self._answered.set()
        return 0

    def _try(self) -> bool:
        from perfhooks.launching.profiling import OperatorProbe

        self._has_operators = False
        if self._probe is None and not self._over.is_set() and self._signal.is_without_steps:
            self._probe = OperatorProbe()
        return True

    def _end_probe(self) -> bool:
        probe, self._probe = self._probe, None
        if probe is not None:
            self._has_operators = probe.stop()
        return True

    def _begin(self) -> bool:
        if not self._over.is_set():
            self._signal.begin_timed()
        return True

    def _end(self) -> bool:
        self._signal.end_timed()
        return True


def is_harmless_in(frame: FrameType | None) -> bool:
    """Whether code of ours may run in the middle of what a stack does.

    Args:
        frame: The innermost frame.
    """
    return not any(part in caller.f_code.co_filename for caller in outwards(frame) for part in _NOT_IN)


def is_of_somebody_else() -> bool:
    """Whether this process works for another one: a loader's or a pool's worker, or a tool of torch's own."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if getattr(spec, "name", "").startswith("torch.") or is_loader_worker():
        return True
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None and not is_in_job()


def _computed_s() -> float:
    """Seconds that the main thread has computed; where the system does not say, those of all threads."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident or 0))
    except (AttributeError, OSError):
        return time.process_time()
