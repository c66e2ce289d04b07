"""Signals are deferred while perfhooks works. SIGTERM and SIGHUP are deferred only until a window is saved.

Without deferral, perfhooks could catch exceptions of the program's signal handlers. A Python handler runs too late if
the main thread is in a long call.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import functools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from typing_extensions import Self

from perfhooks.core import process
from perfhooks.core.clocks import time
from perfhooks.core.thread_time import CountedThread
from perfhooks.record.watch.sampling import frames_of

Handler = Callable[[int, Any], object]


_DEFERRED: Final = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGXCPU")
    if hasattr(signal, name)
)

_ENDS: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a training. A closed terminal sends SIGHUP."""


_WAIT_S: Final = 0.05
"""Interval of checks of the main thread. A pause of the process counts as one interval at most."""


class _Deferral(contextlib.AbstractContextManager["_Deferral"]):
    """Defers the program's own signal handlers; main thread only."""

    def __init__(self) -> None:
        self._depth = 0
        self._handlers: dict[int, Any] = {}
        self._arrived: list[int] = []

    def __enter__(self) -> Self:
        if not self._depth:
            self._defer_all()
        # from here on no handler can interrupt us and leave a wrong count
        self._depth += 1
        return self

    def _defer_all(self) -> None:
        handlers = {number: self.handler(number) for number in _DEFERRED}
        self._handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
        try:
            for number in self._handlers:
                signal.signal(number, _defer)
        except BaseException:
            self._deliver(self.release())
            raise

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth <= 0:
            self._deliver(self.release())

    @property
    def is_active(self) -> bool:
        return self._depth > 0

    def handler(self, number: int) -> Any:
        handler = signal.getsignal(number)
        return self._handlers.get(number, signal.SIG_DFL) if handler is _defer else handler

    def set_handler(self, number: int, handler: Any) -> None:
        if self._depth:
            self._handlers[number] = handler
            handler = _defer
        signal.signal(number, handler)

    def arrive(self, number: int) -> None:
        if number in _ENDS:
            _signal_thread.is_noticed = True
        is_repeated = number in self._arrived
        if not is_repeated:
            self._arrived.append(number)
        if not self._depth or (is_repeated and number == signal.SIGINT):
            self._deliver(self.release())

    def release(self) -> list[int]:
        self._depth = 0
        arrived, self._arrived = self._arrived, []
        # restore Ctrl-C last, because it can arrive immediately
        for number, handler in reversed(self._handlers.items()):
            if signal.getsignal(number) is _defer:
                signal.signal(number, handler)
        return arrived

    def _deliver(self, arrived: list[int]) -> None:
        if not arrived:
            return
        number, *later = arrived
        try:
            handler = signal.getsignal(number)
            if callable(handler):
                handler(number, sys._getframe(1))
            else:
                os.kill(os.getpid(), number)
        finally:
            self._deliver(later)


deferral: Final = _Deferral()


def _defer(number: int, _frame: object) -> None:
    deferral.arrive(number)


class _SignalThread:
    """Detects SIGTERM and SIGHUP at once, and ends the process if the main thread does not handle them.

    Python writes the number of every handled signal into a file descriptor, even if the main thread is busy.
    """

    def __init__(self) -> None:
        self.is_noticed = False
        """Whether the main thread handles the signal; an event has a lock, and signals nest."""
        self._ours: tuple[socket.socket, socket.socket] | None = None
        self._paused = False
        self._mask: set[signal.Signals | int] | None = None

    def begin(self) -> bool:
        """Return False if another library, for example an event loop, uses Python's file descriptor for signals."""
        if not process.has_real_threads():
            return False  # greenlets share the main thread, which a wait in C would block
        self.is_noticed = False
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        self._ours = receiver, sender
        try:
            if before == -1:
                # It waits in C only. With stacks, torch records every waiting Python frame, so this thread would be in
                # the user's trace.
                batches = iter(functools.partial(receiver.recv, 64), b"")
                _thread.start_new_thread(any, (map(functools.partial(self._handle, receiver), batches),))
                return True
            signal.set_wakeup_fd(before)
        except RuntimeError:
            pass
        self.end()
        receiver.close()
        return False

    def end(self) -> None:
        if self._ours is None:
            return
        (_, sender), self._ours = self._ours, None
        before = signal.set_wakeup_fd(-1)
        if before not in (-1, sender.fileno()):
            signal.set_wakeup_fd(before)
        with contextlib.suppress(OSError):
            sender.send(b"\0")
        sender.close()

    def pause(self) -> None:
        if self._ours is not None and threading.current_thread() is threading.main_thread():
            # a signal before the child has reset its handlers would be counted as ours, and then lost
            self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # runs handlers, which may raise
            before = signal.set_wakeup_fd(-1)
            self._paused = before == self._ours[1].fileno()
            if not self._paused:
                signal.set_wakeup_fd(before)

    def go_on(self) -> None:
        if self._paused and self._ours is not None:
            signal.set_wakeup_fd(self._ours[1].fileno(), warn_on_full_buffer=False)
        self._paused = False
        self.unmask()

    def unmask(self) -> None:
        mask, self._mask = self._mask, None
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def forget(self) -> None:
        if self._ours is not None:
            signal.set_wakeup_fd(-1)
            for end in self._ours:
                end.close()
            self._ours = None

    def _handle(self, receiver: socket.socket, numbers: bytes) -> bool:
        if 0 in numbers:
            receiver.close()
            return True
        ours = [number for number in _ENDS if number in numbers and deferral.handler(number) is _ours]
        # the main thread may wait in a collective without end
        if ours and not self._wait_for_notice(0.1 if _is_in_collective() else process.EXIT_S):
            _die(ours[0])
        return False

    def _wait_for_notice(self, limit_s: float) -> bool:
        """Wait until the main thread handles the signal, without the time in which it has no CPU."""
        main = threading.main_thread()
        thread = CountedThread(main.native_id or 0)
        while limit_s > 0:
            before = thread.cpu_ns() or 0
            time.sleep(_WAIT_S)
            if self.is_noticed:
                return True
            is_waiting = thread.is_blocked() is not False
            limit_s -= _WAIT_S if is_waiting else min(((thread.cpu_ns() or 0) - before) * 1e-9, _WAIT_S)
        return False


_signal_thread: Final = _SignalThread()


def _is_in_collective() -> bool:
    innermost = frames_of(threading.main_thread().ident or 0, 1)
    return any(f"torch{os.sep}distributed{os.sep}" in frame.file for frame in innermost)


def _die(number: int) -> None:
    """End the process by a signal. Python itself resets signal handlers in the main thread only."""
    ctypes.CDLL(None).signal(number, None)
    os.kill(os.getpid(), number)


_ours: Handler | None = None


def _handled_by(handler: object) -> list[int]:
    return [number for number in _ENDS if handler is not None and deferral.handler(number) is handler]


def set_end_handler(handler: Handler) -> bool:
    """Return whether the handler is set for SIGTERM or SIGHUP.

    Signals that the program handles or ignores stay unchanged. ``nohup`` ignores SIGHUP.
    """
    global _ours  # noqa: PLW0603 -- a process has one handler of a signal
    if _ours is None and (numbers := _handled_by(signal.SIG_DFL)) and _signal_thread.begin():
        _ours = _marking_notice(handler)
        for number in numbers:
            deferral.set_handler(number, _ours)
    return _ours is not None and bool(_handled_by(_ours))


def reset_end_handler() -> None:
    """Remove the handler of perfhooks, unless the program has replaced the handler."""
    global _ours  # noqa: PLW0603 -- as above
    for number in _handled_by(_ours):
        deferral.set_handler(number, signal.SIG_DFL)
    _ours = None
    _signal_thread.end()


def forget() -> None:
    global _ours  # noqa: PLW0603 -- as above
    deferral.release()
    for number in _handled_by(_ours):
        signal.signal(number, signal.SIG_DFL)
    _ours = None


def _in_child() -> None:
    _signal_thread.forget()
    forget()
    _signal_thread.unmask()


process.around_forks(_signal_thread.pause, _signal_thread.go_on)
process.in_child(process.Child.SIGNALS, _in_child)


def _marking_notice(handler: Handler) -> Handler:
    process = os.getpid()

    def notice(number: int, frame: Any) -> None:
        _signal_thread.is_noticed = True
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif deferral.handler(number) is _ours:
            handler(number, frame)
        # the program's own handler has called this one

    return notice
