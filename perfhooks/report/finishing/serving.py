"""The main loop of the worker process."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import polars  # noqa: F401, ICN001 -- imported first: without memory for it, the worker ends here

from perfhooks.core.guard import cause_of, guard
from perfhooks.report import page
from perfhooks.report.finishing.finish import finish, measure_again, update_report, write_page
from perfhooks.report.finishing.leftovers import write_steps
from perfhooks.report.finishing.messages import (
    FinishWindow,
    Task,
    TaskResult,
    UpdateReport,
    WriteSteps,
    decode_message,
    encode,
)
from perfhooks.report.page.run_summary import has_current_report
from perfhooks.run.finished import FinishedRun
from perfhooks.run.folder import Run
from perfhooks.run.layout import PAGE

if TYPE_CHECKING:
    from perfhooks.report.handlers.permit import Permit

ORPHAN_TIMEOUT_S: Final = 900
"""Maximum time in s that the worker runs after the end of the training."""

_logger: Final = logging.getLogger("perfhooks")


def serve(unread: bytes, training: int) -> None:
    """Run the tasks from standard input, and write their results to standard output.

    Reports are written when no task waits, so that one report includes several windows. ``unread`` is input that was
    read before the imports. ``training`` is the id of the parent process, which may have ended.
    """
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    threading.Thread(target=_exit_when_orphaned, args=(training,), daemon=True).start()
    inbox, reports, results = Inbox(unread), Reports(), list[TaskResult]()

    def catch_up() -> None:
        reports.write()
        for result in results:
            _answer(answers, result)
        results.clear()

    _logger.info("imports: %.3f s of CPU", time.process_time())
    while line := inbox.read():
        message = decode_message(line)
        results.append(TaskResult(message.task, _problem(message, reports)))
        if inbox.is_empty:
            catch_up()
    catch_up()
    reports.write_old()
    reports.upload_rest()
    _logger.info("all: %.3f s of CPU", time.process_time())


class Inbox:
    """Messages to the worker: first those in ``unread``, then standard input."""

    def __init__(self, unread: bytes) -> None:
        self._unread = unread

    @property
    def is_empty(self) -> bool:
        return b"\n" not in self._unread and not select.select([0], [], [], 0)[0]

    def read(self) -> bytes:
        while b"\n" not in self._unread:
            try:
                chunk = os.read(0, 1 << 16)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                return b""
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line


class Reports:
    def __init__(self) -> None:
        self._due: dict[Run, Permit] = {}
        self._remote: dict[Run, str] = {}
        self._tasks: dict[Run, FinishWindow | UpdateReport] = {}

    def add(self, task: FinishWindow | UpdateReport) -> None:
        run = Run.of(task.place)
        self._tasks[run] = task
        if page.is_due(task.place):
            self._due[run] = task.permit
        if task.permit.remote is not None:
            self._remote[run] = task.permit.remote

    def write(self) -> None:
        for run, permit in self._due.items():
            began = time.process_time()
            write_page(run, permit)
            _logger.info("%s: %.3f s of CPU", run.folder / PAGE, time.process_time() - began)
        self._due.clear()

    def write_old(self) -> None:
        """Add the last steps to the reports of a training that was killed."""
        for run, task in self._tasks.items():
            with guard("updating the report"):
                if (run.folder / PAGE).exists() and not has_current_report(FinishedRun(run.folder, brief=True)):
                    update_report(task.place, task.permit)

    def upload_rest(self) -> None:
        """Upload the files of the runs again, with the last steps."""
        for run, url in self._remote.items():
            try:
                run.upload_own(url)
            except Exception:
                _logger.exception("%s could not be updated, so it lacks the last steps", url)


def _problem(message: Task, reports: Reports) -> str | None:
    began = time.process_time()
    try:
        if isinstance(message, WriteSteps):
            write_steps(Path(message.steps), Path(message.timeline))
        else:
            if isinstance(message, FinishWindow):
                finish(message.place, message.permit, write_report=False)
            else:
                measure_again(message.place)
            reports.add(message)
    except Exception as error:
        _logger.exception("%s", message.task)
        return cause_of(error)
    _logger.info("%s: %.3f s of CPU", message.task, time.process_time() - began)
    return None


def _exit_when_orphaned(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    _raise_priority()
    time.sleep(ORPHAN_TIMEOUT_S)
    os._exit(1)


def _raise_priority() -> None:
    """Raise the priority of the session, which `perfhooks.record.loop.worker.Priority` lowers, to the usual one."""
    for _ in range(10):
        try:
            Path("/proc/self/autogroup").write_text("0", encoding="ascii")
        except BlockingIOError:  # Linux permits one change per 0.1 s
            time.sleep(0.1)
        except OSError:  # this system has no autogroups
            return
        else:
            return


def _answer(answers: IO[bytes], answer: TaskResult) -> None:
    with contextlib.suppress(OSError):
        answers.write(encode(answer))
