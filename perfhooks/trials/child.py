"""A child process that answers requests.

A recording is untrusted: one operator in fifty crashes its process if the arguments are invalid. After a crash, a new
child answers the next request.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
from contextlib import closing
from typing import TYPE_CHECKING, Any

from perfhooks.core import words

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from multiprocessing.connection import Connection

    Answer = Callable[..., Any]


class DeadError(Exception):
    """The child process ended during a request."""


class ChildProcess:
    """Calls a function in a child process. The context manager ``answering`` yields this function in the child.

    With ``forks`` the process must use no device and only one thread.
    """

    def __init__(self, answering: Callable[[], AbstractContextManager[Answer]], *, forks: bool) -> None:
        self._answering = answering
        self._context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self._process: Any = None

    def ask(self, seconds: float, *question: Any) -> Any:
        """Return the answer of the child. Raise a DeadError if the child dies or needs more than ``seconds``."""
        if self._process is None:
            self._start()
        limit = min(seconds, 1e6)
        try:
            self._pipe.send((limit, question))
            # a timer in the child ends the request earlier
            if self._pipe.poll(limit + 2.0):
                return self._pipe.recv()
            code = -signal.SIGALRM  # the child blocks the signal of the timer, or is importing torch
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode
        self.close()
        if code == -signal.SIGALRM:
            raise DeadError(f"exceeded its time limit of {words.ms(1e3 * seconds)} (--seconds)")
        reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise DeadError(f"crashed the child process: {reason}")

    def _start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        arguments = (self._answering, theirs, self._pipe)
        self._process = self._context.Process(target=_answer, args=arguments, daemon=True)
        # Ctrl-C reaches all processes of a terminal: the child ignores Ctrl-C, and the parent ends the child
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
            self._pipe.close()
            self._process = None


def _answer(answering: Callable[[], AbstractContextManager[Answer]], pipe: Connection, ours: Connection) -> None:
    ours.close()  # with an open copy of the pipe, the child would not detect the end of the parent
    _be_quiet()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with closing(pipe), answering() as answer:
        while True:
            try:
                seconds, question = pipe.recv()
            except EOFError:
                return
            signal.setitimer(signal.ITIMER_REAL, seconds)
            reply = answer(*question)
            signal.setitimer(signal.ITIMER_REAL, 0)
            pipe.send(reply)


def _be_quiet() -> None:
    faulthandler.disable()
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
