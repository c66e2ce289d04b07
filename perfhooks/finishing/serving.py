"""The worker's main loop: it finishes what the training tells it to, one thing after the other."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import IO, Final

import polars  # noqa: F401, ICN001 -- where there is no room for it, the worker ends here, and goes on with no half of it

from perfhooks.finishing.finish import finish, turn_page
from perfhooks.finishing.leftovers import write_steps
from perfhooks.finishing.messages import FinishWindow, Task, TaskResult, TurnPage, WakeUp, message_of, told
from perfhooks.guard import cause_of
from perfhooks.run.folder import Run

ORPHAN_TIMEOUT_S: Final = 900
"""How long a worker whose training process is gone may go on, in seconds."""

_logger: Final = logging.getLogger("perfhooks")


def serve(first: str, training: int) -> None:
    """Do what each line of standard input says, answer each on standard output, and end with the input.

    Args:
        first: The first line, which has been read already.
        training: The process that began this one; it may have ended since.
    """
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a handler prints belongs in the log
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    threading.Thread(target=_mind, args=(training,), daemon=True).start()
    line = first
    elsewhere: dict[Run, str] = {}
    while line:
        message = message_of(line)
        if not isinstance(message, WakeUp):
            _answer(answers, TaskResult(message.task, _problem(message)))
        if isinstance(message, FinishWindow) and message.permit.remote is not None:
            elsewhere[Run.of(message.place)] = message.permit.remote
        try:
            line = sys.stdin.readline()
        except ConnectionResetError:  # the training has ended, and did not read what it was told last
            break
    for run, url in elsewhere.items():  # by now they have the steps after the last window
        try:
            run.upload_own(url)
        except Exception:
            _logger.exception("%s is not up to date", url)


def _problem(message: Task) -> str | None:
    """Do what a message says; why it could not be done."""
    began = time.perf_counter()
    try:
        if isinstance(message, FinishWindow):
            finish(message.place, message.permit)
        elif isinstance(message, TurnPage):
            turn_page(message.place, message.permit)
        else:
            write_steps(Path(message.steps), Path(message.timeline))
    except Exception as error:  # the next one must be served all the same
        _logger.exception("%s", message.task)
        return cause_of(error)
    _logger.info("%s: %.2f s", message.task, time.perf_counter() - began)
    return None


def _mind(parent: int) -> None:
    """A handler that hangs must not leave a process behind for ever."""
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(ORPHAN_TIMEOUT_S)
    os._exit(1)


def _answer(answers: IO[bytes], answer: TaskResult) -> None:
    with contextlib.suppress(OSError):  # the training may be gone; its windows are finished all the same
        answers.write(told(answer))
