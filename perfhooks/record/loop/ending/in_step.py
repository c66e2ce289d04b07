"""End a recording inside a step: a thread of perfhooks measures the recording, and the main thread ends it.

torch's recorder must end in the thread that it records, while that thread runs no operator. Python runs pending calls
(``Py_AddPendingCall``) in the main thread between two instructions, like signal handlers.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import functools
import os
import sys
import sysconfig
import threading
from typing import TYPE_CHECKING, Final

import torch

from perfhooks.core import frames
from perfhooks.core.clocks import time
from perfhooks.core.guard import guard
from perfhooks.core.thread_time import CountedThread
from perfhooks.record.loop.ending import lifetime, signals
from perfhooks.record.watch.sampling import leave_profilers, outwards

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

SHORTEST_S: Final = 0.02
"""Minimum time between measurements in s. Each measurement takes the GIL from the training."""
LONGEST_S: Final = 0.1
"""Maximum time between measurements in s if no stacks are recorded: at most 20,000 operators are recorded in this time.
Python calls are recorded ten times as fast, so windows with stacks are measured every `SHORTEST_S`.
"""
_PACKAGES: Final = "-packages"
_LIBRARIES: Final = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen ")


class _PendingCall:
    """Argument of ``Py_AddPendingCall``, for which Python calls ``__bool__``.

    Exceptions of ``__bool__`` reach the program.
    """

    def __init__(self, act: Callable[[], object], *, has_dynamo: bool) -> None:
        self._run = functools.partial(_run, act)
        self._process = os.getpid()
        if has_dynamo:  # the main thread may run compiled code, and torch.compile would compile this call
            sys.modules["torch._dynamo.decorators"].skip(_PendingCall.__bool__)
            self._run = torch.compiler.disable(self._run)

    def __bool__(self) -> bool:
        try:
            if os.getpid() == self._process:
                self._run(sys._getframe().f_back)
        finally:
            _pending.clear()  # only now, see `_pending`
        return False


_pending: Final[list[_PendingCall]] = []
"""Reference that keeps the pending call alive. At most one call is pending: with two, Python 3.11 hangs if one of the
calls enters a traced function.
"""


def in_main_thread(act: Callable[[], object]) -> None:
    """Call a function in the main thread, between two instructions.

    The call is dropped if the main thread is in a backward pass, in code of perfhooks, in an import of torch._dynamo,
    or in Python's library, which may hold a lock. Callers repeat a dropped call.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if not _pending and not (dynamo and dynamo.__spec__ and getattr(dynamo.__spec__, "_initializing", False)):
        call = _PendingCall(act, has_dynamo="torch._dynamo.decorators" in sys.modules)
        _pending.append(call)
        is_true = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
        if ctypes.pythonapi.Py_AddPendingCall(is_true, ctypes.c_void_p(id(call))):
            _pending.clear()


def _run(act: Callable[[], object], frame: FrameType | None) -> None:
    if _may_run(frame):
        with lifetime.busy(), guard("ending a recording inside a step"):
            act()


def _may_run(frame: FrameType | None) -> bool:
    """Return whether the recorder can end now. At the end of a backward pass, torch would restore the recorder."""
    if signals.deferral.is_active or torch._C._current_graph_task_id() != -1:  # noqa: SLF001 -- torch has no public name
        return False
    inner = ""
    for caller in outwards(frame):
        file, name = caller.f_code.co_filename, caller.f_code.co_name
        if any(part in file for part in frames.RECORDER):
            return False
        if frames.is_ours(file):
            if inner != frames.CALLS_MODULE:
                return False
        elif not frames.is_torch(file):
            return _PACKAGES in file or not file.startswith(_LIBRARIES)
        inner = name
    return False


def pause_s(passed_s: float, used: float, longest_s: float) -> float:
    remaining_s = passed_s * (1 - used) / max(used, 1e-9)
    return min(max(remaining_s / 4, SHORTEST_S), longest_s)


def used_at_next_measurement(before: float, used: float, passed_s: float, late_s: float) -> float:
    """Return the used fraction of the budget. ``late_s`` is the delay of the last measurement."""
    return used + (used - before) / passed_s * (SHORTEST_S + late_s)


class Overseer:
    """Thread that measures a recording, and ends it in the main thread if the next measurement would be too late.

    ``used`` returns the used fraction of the budget. Its argument is how long the thread waited for the GIL, in s.
    """

    def __init__(self, used: Callable[[float], float], end: Callable[[], object], longest_s: float) -> None:
        self._used, self._end, self._longest_s = used, end, longest_s
        self._is_over = _thread.allocate_lock()
        self.is_running = False

    def begin(self) -> None:
        """Start the thread after the recorder, so that the recorder records no stacks of the thread."""
        if threading.current_thread() is threading.main_thread():
            self._is_over = is_over = _thread.allocate_lock()
            is_over.acquire()
            with contextlib.suppress(RuntimeError):
                _thread.start_new_thread(self._live, (is_over,))
                self.is_running = True

    def end(self) -> None:
        if self.is_running:
            self.is_running = False
            self._is_over.release()

    def _live(self, is_over: _thread.LockType) -> None:
        with guard("measuring how much of its budget a recording has used"):
            began = last = time.monotonic()
            used, pause = 0.0, SHORTEST_S
            thread = CountedThread(_thread.get_native_id())
            queued_ns = thread.waited_ns()
            while not is_over.acquire(timeout=pause):
                gil_wait_s = time.monotonic() - last - pause
                leave_profilers()
                queued_before_ns, queued_ns = queued_ns, thread.waited_ns()
                gil_wait_s -= 1e-9 * ((queued_ns or 0) - (queued_before_ns or 0))
                before, used, now = used, self._used(gil_wait_s), time.monotonic()
                late_s = max(now - last - pause, 0.0)
                if used_at_next_measurement(before, used, now - last, late_s) >= 1:
                    in_main_thread(functools.partial(self._end_recording, is_over))
                last, pause = now, pause_s(now - began, used, self._longest_s)

    def _end_recording(self, is_over: _thread.LockType) -> None:
        if self.is_running and is_over is self._is_over:
            self._end()
