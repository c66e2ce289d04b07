"""A child process that answers questions and may die of one: the death has a name, and the next child goes on.

A recording is data and may come from anybody; one operator in fifty ends a process if its arguments are bad enough.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core import words

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from multiprocessing.connection import Connection

    Answer = Callable[..., Any]

_LONGEST_S: Final = 1e6
"""Maximum of a timer of the system."""
_GRACE_S: Final = 2.0
"""Maximum wait after the timer of the child should have ended it."""


class DeadError(Exception):
    """A question that the child did not survive: says how."""


class ChildProcess:
    """Answers questions one after the other, in a process of its own that begins with the first of them.

    Args:
        answering: Entered once in each child; gives what answers there. Whatever it sets ends with the child.
        forks: Whether the child is a copy of this process, which takes milliseconds, rather than a new one. No copy can
            be made of a process that uses a device, or that has computed with several threads.
    """

    def __init__(self, answering: Callable[[], AbstractContextManager[Answer]], *, forks: bool) -> None:
        self._answering = answering
        self._context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self._process: Any = None

    def ask(self, seconds: float, *question: Any) -> Any:
        """Put a question.

        Args:
            seconds: How long the answer may take; the child is ended after that.
            question: What the answering function is called with.

        Raises:
            DeadError: The child has died of it.
        """
        if self._process is None:
            self._begin()
        limit = min(seconds, _LONGEST_S)
        try:
            self._pipe.send((limit, question))
            if self._pipe.poll(limit + _GRACE_S):
                return self._pipe.recv()
            code = -signal.SIGALRM  # it blocks the signal, or still imports torch
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode
        self.close()
        if code == -signal.SIGALRM:
            raise DeadError(f"it took more than {words.ms(1e3 * seconds)} of the time that was left (--seconds)")
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise DeadError(f"it ended the process that tried it: {how}")

    def _begin(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        arguments = (self._answering, theirs, self._pipe)
        self._process = self._context.Process(target=_answer, args=arguments, daemon=True)
        # Ctrl-C reaches all processes of a terminal: a child never hears of it, and is ended when we have
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def close(self) -> None:
        """End the child, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
            self._pipe.close()
            self._process = None


def _answer(answering: Callable[[], AbstractContextManager[Answer]], pipe: Connection, ours: Connection) -> None:
    """What the child does, until nobody asks any more."""
    ours.close()  # else it would never hear that its parent is gone
    _be_quiet()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends it also inside of an operator
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
    """What dies says much, on the terminal or into the CSV."""
    faulthandler.disable()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
