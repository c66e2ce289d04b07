from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfhooks.core import words
from perfhooks.core.clocks import time
from perfhooks.core.guard import MAX_FAILURES, guard, logger
from perfhooks.core.process import EXIT_S, POLL_S
from perfhooks.core.progress import show_wait
from perfhooks.record.loop.ending import lifetime
from perfhooks.record.loop.worker import Priority, Worker, reap
from perfhooks.report.finishing.messages import FinishWindow
from perfhooks.run.publishing import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.core.errors import OnError
    from perfhooks.report.finishing.messages import Task, TaskResult
    from perfhooks.run.capture import Place

QUEUE: Final = 8
"""Maximum windows that wait for the worker. Further windows are skipped."""
_FEW: Final = 2
"""Number of unfinished windows up to which the worker has a low priority: `perfhooks run` records two windows."""
_POLL_SHARE: Final = 0.01
"""Maximum time of polls on the training thread, as a fraction of the training's time."""
_LATER: Final = "`perfhooks report` finishes the remaining windows"


class Tasks:
    """Sends tasks to a worker process, reads its answers, and starts another worker if it dies."""

    def __init__(self, finished: Callable[[Place], object], on_error: OnError) -> None:
        self._finished = finished
        self._on_error = on_error
        self.pending: dict[str, Task] = {}
        self.worker: Worker | None = None
        self._log: Path | None = None
        self._former: list[Worker] = []
        """Workers from before a pause of the profiler, which end after their tasks."""
        self._deaths = 0
        self._next_poll = 0.0
        self._is_awaited = False
        self._requested: set[str] = set()

    def open(self, log: Path | None, *, starts_worker: bool = True) -> None:
        self._log = log
        if self.worker is not None and self.worker.is_closing:
            self._former.append(self.worker)
            self.worker = None
        if starts_worker and log is not None and self.worker is None:
            self._start()

    def move(self, log: Path | None) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.leave()
        self.open(log)

    def send(self, message: Task, *, is_requested: bool = False) -> None:
        """Send a task. While a requested window is pending, the worker has the usual priority."""
        if self.worker is None and self._deaths < MAX_FAILURES:
            self._start()
        if self.worker is None:
            return
        self.pending[message.task] = message
        if is_requested:
            self._requested.add(message.task)
        self.worker.send(message)
        self._set_priority()

    def poll_seldom(self) -> None:
        """Poll the worker, if earlier polls took less than `_POLL_SHARE` of the time, or if the queue is full.

        If other Python threads are busy, a poll can wait for the GIL for 0.3 s.
        """
        began = time.monotonic()
        if began >= self._next_poll or self.windows_left >= QUEUE:
            self.poll()
            now = time.monotonic()
            self._next_poll = now + (now - began) / _POLL_SHARE

    def _set_priority(self) -> None:
        self._requested &= self.pending.keys()
        priority = Priority.LOW if self.windows_left <= _FEW else Priority.MEDIUM
        if self._is_awaited or self._requested:
            priority = Priority.NORMAL
        for worker in [*self._former, self.worker]:
            if worker is not None:
                worker.set_priority(priority)

    def poll(self, timeout: float = 0.0) -> None:
        self._set_priority()
        for worker in [*self._former, self.worker]:
            if worker is not None:
                with guard("reading the worker's answers", self._on_error):
                    answers = worker.answers(timeout)
                    with lifetime.busy():
                        for answer in answers:
                            self._handle_answer(answer)
                        if worker.is_gone:
                            self._handle_exit(worker)

    def _handle_answer(self, answer: TaskResult) -> None:
        message = self.pending.pop(answer.task, None)
        self._deaths = 0
        if not isinstance(message, FinishWindow):
            return
        place = message.place
        with guard(f"reading the result of {place.folder.name}", self._on_error):
            if answer.problem is not None:
                logger.warning("%s is not finished (%s); %s", shown(place.folder), answer.problem, _LATER)
            else:
                self._finished(place)

    def _handle_exit(self, worker: Worker) -> None:
        worker.leave()
        if worker is not self.worker:
            self._former.remove(worker)
        else:
            self.worker = None
        if not self.pending or self._former:
            return
        if self.worker is not None:
            if worker.exit_code:
                self._resend()
            return
        self._deaths += 1
        if self._deaths == MAX_FAILURES:
            level = logging.WARNING if self.windows_left else logging.DEBUG
            logger.log(
                level,
                "perfhooks starts no further worker, and %s not finished: %s",
                words.count(self.windows_left, "window is", "windows are"),
                _LATER,
            )
        elif self._deaths > 1:
            task = next(iter(self.pending))
            level = logging.WARNING if isinstance(self.pending[task], FinishWindow) else logging.DEBUG
            logger.log(level, "the worker died twice in the same task, %s: %s", shown(Path(task)), _LATER)
            del self.pending[task]
        if self.pending and self._deaths < MAX_FAILURES:
            code = "" if worker.exit_code is None else f" with code {worker.exit_code}"
            logger.info("the worker ended%s and was started again; nothing is lost", code)
            self._start()
            self._resend()
        if self.worker is None:
            self.pending.clear()

    def _resend(self) -> None:
        if self.worker is not None:
            for message in self.pending.values():
                self.worker.send(message)

    @property
    def windows_left(self) -> int:
        return sum(isinstance(message, FinishWindow) for message in self.pending.values())

    @property
    def has_steps_left(self) -> bool:
        """Whether the worker has not written all earlier step times, which must precede later step times."""
        return self.windows_left < len(self.pending)

    def _start(self) -> None:
        if self._log is None:
            return
        with guard("starting the worker", self._on_error):
            self.worker = Worker(self._log)

    def wait(self, timeout: float | None = None, *, is_loud: bool = True) -> bool:
        self._is_awaited = True
        try:
            self._await(timeout, is_loud=is_loud)
        finally:  # Ctrl-C may end the wait
            self._is_awaited = False
        reap()
        return not self.pending

    def _await(self, timeout: float | None, *, is_loud: bool) -> None:
        began = time.monotonic()
        with show_wait() as show:
            while self.pending and (self.worker is not None or self._former):
                passed = time.monotonic() - began
                if timeout is not None and passed >= timeout:
                    break
                if is_loud:
                    show(passed)
                self.poll(POLL_S if timeout is None else min(POLL_S, timeout - passed))

    def close_when_done(self) -> None:
        if self.worker is not None and not self.pending:
            self.worker.leave(EXIT_S)
            self.worker = None
        elif self.worker is not None:
            self.worker.close()

    def leave(self, timeout: float, *, is_loud: bool = True) -> bool:
        """Wait for the worker, and return whether all tasks are done.

        An unfinished worker continues without this process.
        """
        if self.worker is not None:
            self.worker.close()
        is_done = self.wait(timeout, is_loud=is_loud)
        for worker in [*self._former, self.worker]:
            if worker is not None:
                if self.pending:
                    worker.set_priority(Priority.NORMAL)
                worker.leave(EXIT_S if not self.pending else 0.0)
        self._former.clear()
        self.worker = None
        return is_done

    def abandon(self) -> None:
        for worker in [*self._former, self.worker]:
            if worker is not None:
                worker.abandon()
        self._former.clear()
        self.pending.clear()
        self.worker = self._log = None
