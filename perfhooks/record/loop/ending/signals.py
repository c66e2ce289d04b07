"""Signals while we are at work: they wait until a window is saved. SIGTERM and SIGHUP wait for nothing but that.

Python runs handlers in the main thread, between two of its instructions. So a handler of the program's may raise in the
middle of our own code, where its exception would be taken for ours; and a handler of ours comes too late where the main
thread is inside of a call that does not return, as a rank that waits for the others in a collective.
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
from types import BuiltinFunctionType
from typing import Any, Final

from typing_extensions import Self

from perfhooks.core import process

Handler = Callable[[int, Any], object]

GRACE_S: Final = 0.5
"""How long the main thread may take to come to a signal that ends it, in seconds: most operators of a step take less,
and whoever sends SIGTERM waits longer before SIGKILL (30 s in torchrun, Kubernetes and SLURM)."""

_GRACE_IN_COLLECTIVE_S: Final = 0.1
"""The same where the main thread is inside of torch.distributed, which it may leave soon or never."""

_HELD: Final = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGXCPU")
    if hasattr(signal, name)
)
"""What a program handles to be told of something that happens outside of it."""

_ENDS: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that keep the open window and then end the process. A terminal that closes sends SIGHUP."""


class _Held(contextlib.AbstractContextManager["_Held"]):
    """Holds back the program's own signal handlers; main thread only."""

    def __init__(self) -> None:
        self._depth = 0
        self._handlers: dict[int, Any] = {}
        """What each signal that is held back will mean again."""
        self._arrived: list[int] = []

    def __enter__(self) -> Self:
        if not self._depth:
            self._hold()
        # nothing can interrupt us any more and leave a wrong count
        self._depth += 1
        return self

    def _hold(self) -> None:
        handlers = {number: self.handler(number) for number in _HELD}
        self._handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
        try:
            for number in self._handlers:
                signal.signal(number, _hold_back)
        except BaseException:  # of a handler that is not held back yet
            self._deliver(self.release())
            raise

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth <= 0:
            self._deliver(self.release())

    @property
    def is_active(self) -> bool:
        """Whether signals are held back."""
        return self._depth > 0

    def handler(self, number: int) -> Any:
        """What a signal means when nothing is held back."""
        handler = signal.getsignal(number)
        return self._handlers.get(number, signal.SIG_DFL) if handler is _hold_back else handler

    def set_handler(self, number: int, handler: Any) -> None:
        """Let a signal mean something, as soon as nothing is held back."""
        if self._depth:
            self._handlers[number] = handler
            handler = _hold_back
        signal.signal(number, handler)

    def arrive(self, number: int) -> None:
        """Remember a signal; whoever presses Ctrl-C again does not want to wait."""
        if number in _ENDS:
            _watchman.noticed.set()
        again = number in self._arrived
        if not again:
            self._arrived.append(number)
        if not self._depth or (again and number == signal.SIGINT):
            self._deliver(self.release())

    def release(self) -> list[int]:
        """Hold nothing back any more.

        Returns:
            The signals that have arrived meanwhile, in their order.
        """
        self._depth = 0
        arrived, self._arrived = self._arrived, []
        # Ctrl-C last: it may come as soon as it can
        for number, handler in reversed(self._handlers.items()):
            if signal.getsignal(number) is _hold_back:
                signal.signal(number, handler)
        return arrived

    def _deliver(self, arrived: list[int]) -> None:
        """Let every signal do what it does now, even if one of them raises."""
        if not arrived:
            return
        number, *rest = arrived
        try:
            handler = signal.getsignal(number)
            if callable(handler):
                handler(number, sys._getframe(1))
            else:
                os.kill(os.getpid(), number)
        finally:
            self._deliver(rest)


held: Final = _Held()
"""While this is entered, signals wait."""


def _hold_back(number: int, _frame: object) -> None:
    held.arrive(number)


class _Watchman:
    """A thread that hears of SIGTERM and SIGHUP at once, and ends the process if the main thread does not come to it.

    Python writes the number of every signal that it handles into a file descriptor, from whatever thread gets it and
    whatever the main thread does.
    """

    def __init__(self) -> None:
        self.noticed = threading.Event()
        """The main thread has come to the signal."""
        self._ours: tuple[socket.socket, socket.socket] | None = None
        self._paused = False
        self._mask: set[signal.Signals | int] | None = None

    def begin(self) -> bool:
        """Watch from now on; False if somebody else is told of signals, as an event loop is."""
        if not isinstance(_thread.start_new_thread, BuiltinFunctionType):
            return False  # gevent has replaced it: its threads share the main thread, which the wait in C would block
        self.noticed.clear()
        hear, tell = socket.socketpair()
        tell.setblocking(False)
        before = signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
        self._ours = hear, tell
        try:
            if before == -1:
                # It waits in C alone: with stacks, torch records every Python frame that waits when a window begins,
                # and this thread would be a row in the user's trace.
                told = iter(functools.partial(hear.recv, 64), b"")
                _thread.start_new_thread(any, (map(functools.partial(self._heard, hear), told),))
                return True
            signal.set_wakeup_fd(before)
        except RuntimeError:  # no more threads
            pass
        self.end()
        hear.close()
        return False

    def end(self) -> None:
        """Watch no more."""
        if self._ours is None:
            return
        (_, tell), self._ours = self._ours, None
        before = signal.set_wakeup_fd(-1)
        if before not in (-1, tell.fileno()):
            signal.set_wakeup_fd(before)  # somebody has come after us
        with contextlib.suppress(OSError):
            tell.send(b"\0")
        tell.close()

    def pause(self) -> None:
        """A child is about to be forked: what it is sent must not be taken for ours."""
        if self._ours is not None and threading.current_thread() is threading.main_thread():
            # what arrives before the child has its own disposition would be noted for ours, and then forgotten
            self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
            before = signal.set_wakeup_fd(-1)
            self._paused = before == self._ours[1].fileno()
            if not self._paused:
                signal.set_wakeup_fd(before)  # somebody has come after us

    def go_on(self) -> None:
        """The child is there, and this is not it."""
        if self._paused and self._ours is not None:
            signal.set_wakeup_fd(self._ours[1].fileno(), warn_on_full_buffer=False)
        self._paused = False
        self.unmask()

    def unmask(self) -> None:
        """Let signals come again, as before the fork."""
        mask, self._mask = self._mask, None
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def forget(self) -> None:
        """This is the child."""
        if self._ours is not None:
            signal.set_wakeup_fd(-1)
            for end in self._ours:
                end.close()
            self._ours = None

    def _heard(self, hear: socket.socket, numbers: bytes) -> bool:
        """Hear of some signals; whether that was the last of it."""
        if 0 in numbers:
            hear.close()
            return True
        ours = [number for number in _ENDS if number in numbers and held.handler(number) is _ours]
        if ours and not self.noticed.wait(_GRACE_IN_COLLECTIVE_S if _is_in_collective() else GRACE_S):
            _die(ours[0])
        return False


_watchman: Final = _Watchman()


def _is_in_collective() -> bool:
    """Whether the main thread is inside of torch.distributed, where it may wait for ever."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and f"torch{os.sep}distributed{os.sep}" in frame.f_code.co_filename


def _die(number: int) -> None:
    """Die of a signal, from a thread that Python lets change no handler."""
    ctypes.CDLL(None).signal(number, None)
    os.kill(os.getpid(), number)


_ours: Handler | None = None
"""The handler of SIGTERM and SIGHUP while a window is open."""


def _handled_by(handler: object) -> list[int]:
    """Return the signals of `_ENDS` that have a handler; Python knows no handler of C code, which is None."""
    return [number for number in _ENDS if handler is not None and held.handler(number) is handler]


def on_end(handler: Handler) -> bool:
    """Have SIGTERM and SIGHUP call ``handler``, each if its default action would end the process.

    Signals that the program handles or ignores stay as they are. ``nohup`` ignores SIGHUP.

    Returns:
        Whether one of them does.
    """
    global _ours  # noqa: PLW0603 -- a process has one handler of a signal
    if _ours is None and (numbers := _handled_by(signal.SIG_DFL)) and _watchman.begin():
        _ours = _noticing(handler)
        for number in numbers:
            held.set_handler(number, _ours)
    return _ours is not None and bool(_handled_by(_ours))


def off_end() -> None:
    """Restore SIGTERM and SIGHUP, unless the program has set a handler meanwhile."""
    global _ours  # noqa: PLW0603 -- as above
    for number in _handled_by(_ours):
        held.set_handler(number, signal.SIG_DFL)
    _ours = None
    _watchman.end()


def forget() -> None:
    """This is a forked child: nothing is held back in it, and SIGTERM and SIGHUP end it."""
    global _ours  # noqa: PLW0603 -- as above
    held.release()
    for number in _handled_by(_ours):
        signal.signal(number, signal.SIG_DFL)
    _ours = None


def _in_child() -> None:
    _watchman.forget()
    forget()
    _watchman.unmask()


process.around_forks(_watchman.pause, _watchman.go_on)
process.in_child(process.Child.SIGNALS, _in_child)


def _noticing(handler: Handler) -> Handler:
    process = os.getpid()

    def notice(number: int, frame: Any) -> None:
        _watchman.noticed.set()
        if os.getpid() != process:  # a child that was just forked
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif held.handler(number) is _ours:
            handler(number, frame)
        # else the program has set a handler that also calls this one: without us there would be none to call

    return notice
