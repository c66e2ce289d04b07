"""The process that owns all processes of a comparison or of a loader trial, and ends them.

    perfhooks compare       prints, and passes signals on
      └─ supervisor         starts the programs and git, and adopts orphans
           ├─ program A     with its ranks, loader workers and other children
           └─ program B     only in a comparison

If perfhooks or the supervisor dies, the survivor ends every process below itself. Signal handlers only store a signal.
`Owner.check` raises an error for the first signal only, so a second signal cannot interrupt the clean-up.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from perfhooks.cli.turns import processes
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.process import POLL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from multiprocessing.connection import Connection

Result = TypeVar("Result")

GRACE_S: Final = 7.0
"""Time from SIGTERM to SIGKILL in s. Loader workers need 5 s to notice the death of their training."""
_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SET_DEATH_SIGNAL, _SET_ADOPTS, _GET_ADOPTS = 1, 36, 37


class ComparisonEndError(Exception):
    """A signal asks perfhooks to end, or perfhooks has died."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Owner:
    def __init__(self, connection: Connection, parent: int) -> None:
        self._connection = connection
        self._parent = parent
        self._signals: list[int] = []
        self._is_ending = False
        self._started: list[subprocess.Popen[bytes]] = []
        self.ends = math.inf

    def note(self, number: int, _: object = None) -> None:
        self._signals.append(number)

    @property
    def is_orphan(self) -> bool:
        return os.getppid() != self._parent

    @property
    def is_hurried(self) -> bool:
        return len(self._signals) > 1

    def check(self) -> None:
        """Raise a ComparisonEndError once: after a signal, the death of perfhooks or the time limit."""
        is_late = time.monotonic() > self.ends
        if not self._is_ending and (self._signals or self.is_orphan or is_late):
            self._is_ending = True
            raise ComparisonEndError(self._signals[0] if self._signals else 0 if is_late else signal.SIGHUP)

    def start(self, words: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        die = functools.partial(_die_with, os.getpid())
        process = subprocess.Popen(
            words,
            start_new_session=True,
            preexec_fn=die,  # noqa: PLW1509 -- the supervisor has one thread
            **{"stdin": subprocess.DEVNULL, **how},
        )
        self._started.append(process)
        return process

    def end_all(self, ranks: Collection[int] = ()) -> None:
        """End all processes. Ranks get SIGTERM first, so that they can end their own children."""
        for pid in {*ranks, *(process.pid for process in self._started if process.poll() is None)}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        _end_children((), lambda: self.is_hurried, self._started)
        self._started.clear()

    def status(self, text: str) -> None:
        self.send("status", text)

    def say(self, text: str) -> None:
        self.send("say", text)

    def send(self, kind: str, value: object) -> None:
        with contextlib.suppress(OSError):
            self._connection.send((kind, value))


def supervise(
    work: Callable[[Owner], Result],
    *,
    clean: Callable[[], object],
    status: Callable[[str], object],
    say: Callable[[str], object],
) -> Result:
    """Return the result of ``work`` in a supervisor. ``clean`` runs if the supervisor is killed.

    Raises:
        ComparisonEndError: A signal ended the work before it had a result.
    """
    spared = set(processes.children())
    ours, theirs = Pipe()
    received: list[int] = []
    numbers = [number for number in _NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]
    with _adopting_orphans(), _noting(numbers, received):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            ours.close()
            _run(work, Owner(theirs, parent), numbers)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        kind: str | None = None
        try:
            for kind, value in _messages(ours, pid, received):
                if kind in ("result", "error"):
                    break
                (status if kind == "status" else say)(value)
        finally:
            ours.close()
            _reap(pid, is_wanted=kind in ("result", "error"))
            _end_children(spared, lambda: len(received) > 1)
    if kind == "error":
        raise value
    if kind != "result":
        clean()
        raise PerfhooksError("the supervisor process was killed; perfhooks has ended its programs")
    result: Result = value
    return result


def _messages(connection: Connection, pid: int, received: Sequence[int]) -> Iterator[tuple[str, Any]]:
    passed, deadline = 0, math.inf
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            for number in received[passed:]:
                os.kill(pid, number)
                passed, deadline = passed + 1, time.monotonic() + 4 * GRACE_S
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            if connection.poll(POLL_S):
                yield connection.recv()


def _reap(pid: int, *, is_wanted: bool) -> None:
    if not is_wanted:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 4 * GRACE_S
    while not _is_reaped(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S / 10)


def _run(work: Callable[[Owner], Any], owner: Owner, numbers: Collection[signal.Signals]) -> NoReturn:
    try:
        os.setsid()
        _prctl(_SET_ADOPTS, 1)
        for number in numbers:
            signal.signal(number, owner.note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        kind: str = "error"
        value: Any = None
        try:
            kind, value = "result", work(owner)
        except (PerfhooksError, ComparisonEndError, OSError) as error:
            value = error
        finally:
            owner.end_all()
            is_unexpected = kind == "error" and value is None
            owner.send(kind, RuntimeError(traceback.format_exc()) if is_unexpected else value)
    finally:
        os._exit(0)


def _end_children(
    spared: Collection[int], is_hurried: Callable[[], bool], started: Sequence[subprocess.Popen[bytes]] = ()
) -> None:
    """Wait for all children, including adopted ones, and kill the remaining ones after a time limit.

    A zombie counts as running, because other threads of its process may run on and keep its children.
    """
    deadline = time.monotonic() + GRACE_S
    own = {process.pid for process in started}
    while time.monotonic() < deadline + GRACE_S:
        for process in started:
            process.poll()
        children = [pid for pid in processes.children() if pid not in spared]
        if not children:
            break
        is_late = is_hurried() or time.monotonic() > deadline
        for pid in children:
            if is_late:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if pid not in own:
                _is_reaped(pid)
        time.sleep(POLL_S / 10)


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:  # SIGCHLD is ignored: the kernel has reaped it
        return True


@contextlib.contextmanager
def _noting(numbers: Sequence[signal.Signals], received: list[int]) -> Iterator[None]:
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    before = ctypes.c_int(0)
    _prctl(_GET_ADOPTS, ctypes.byref(before))
    _prctl(_SET_ADOPTS, 1)
    try:
        yield
    finally:
        _prctl(_SET_ADOPTS, before.value)


def _prctl(option: int, value: Any) -> None:
    if sys.platform == "linux":
        _library().prctl(option, value)


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _die_with(parent: int) -> None:
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
