"""What the worker was told and has not done yet: nothing of it is lost when a worker dies, and nobody waits for it."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfhooks.core.guard import guard, logger
from perfhooks.core.progress import waiting
from perfhooks.record.loop.ending import lifetime
from perfhooks.record.loop.worker import Worker, reap
from perfhooks.report.finishing.messages import FinishWindow, WakeUp
from perfhooks.run.publishing import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.core.errors import OnError
    from perfhooks.report.finishing.messages import Task, TaskResult
    from perfhooks.run.capture import Place

QUEUE: Final = 8
"""Windows that may wait to be finished before further ones are skipped."""
_POLL_S: Final = 0.2
_EXIT_S: Final = 0.5
_MOST_DEATHS: Final = 3
"""Workers in a row that die before they did anything; it is not the fault of a window then."""
_LATER: Final = "`perfhooks report` finishes what is left"


class Tasks:
    """Gives work to a child process, hears what became of it, and starts another one if it dies.

    Args:
        finished: Called with the place of each window that has its files, on the training thread.
        on_error: What a failure does.
    """

    def __init__(self, finished: Callable[[Place], object], on_error: OnError) -> None:
        self._finished = finished
        self._on_error = on_error
        self.pending: dict[str, Task] = {}
        """What the worker has not done yet, by its name in the answer."""
        self.worker: Worker | None = None
        self._log: Path | None = None
        """What a worker prints goes there; None where nobody wants one."""
        self._is_late = False
        """Whether the worker starts with the first window."""
        self._former: list[Worker] = []
        """Workers that do what they were told before a pause, and end."""
        self._deaths = 0
        """How many workers died one after the other, with nothing done between."""

    def open(self, log: Path | None, *, starts_worker: bool = True) -> None:
        """Be ready for work.

        Args:
            log: The file that gets what the worker prints; None starts no worker.
            starts_worker: Whether the worker starts now, and not when it is needed.
        """
        self._log = log
        if self.worker is not None and self.worker.is_closing:
            self._former.append(self.worker)
            self.worker = None
        self._is_late = not starts_worker
        if starts_worker and log is not None and self.worker is None:
            self._start()

    def warm_up(self) -> None:
        """Let the worker import its modules."""
        if self._is_late:
            self._is_late = False
            self._start()
        if self.worker is not None:
            self.worker.send(WakeUp())

    def move(self, log: Path | None) -> None:
        """Let a worker that has no work yet go, and start another one."""
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.leave()
        self.open(log)

    def tell(self, message: Task) -> None:
        """Have the worker do something."""
        if self.worker is None and self._deaths < _MOST_DEATHS:
            self._start()
        if self.worker is None:
            return  # it waits for `perfhooks report`
        self.pending[message.task] = message
        self.worker.send(message)

    def poll(self, timeout: float = 0.0) -> None:
        """Hear what the worker has finished since the last call; start another one if it died.

        Args:
            timeout: How long to wait for news, in seconds.
        """
        for worker in [*self._former, self.worker]:
            if worker is not None:
                with guard("hearing the worker", self._on_error):
                    answers = worker.answers(timeout)
                    with lifetime.busy():
                        for answer in answers:
                            self._hear(answer)
                        if worker.is_gone:
                            self._lose(worker)

    def _hear(self, answer: TaskResult) -> None:
        message = self.pending.pop(answer.task, None)
        self._deaths = 0
        if not isinstance(message, FinishWindow):
            return
        place = message.place
        with guard(f"reading what became of {place.folder.name}", self._on_error):
            if answer.problem is not None:
                logger.warning("%s is not finished (%s); %s", shown(place.folder), answer.problem, _LATER)
            else:
                self._finished(place)

    def _lose(self, worker: Worker) -> None:
        """A worker ended. Where it had work to do, another one does it; what kills two of them is left alone."""
        worker.leave()
        if worker is not self.worker:
            self._former.remove(worker)
        else:
            self.worker = None
        if not self.pending or self._former:
            return
        if self.worker is not None:
            if worker.exit_code:  # what it left undone is for the one that is there; twice does no harm
                self._tell_again()
            return
        self._deaths += 1
        if self._deaths == _MOST_DEATHS:
            level = logging.WARNING if self.windows_left else logging.DEBUG
            logger.log(level, "no worker is started any more, with %d windows to finish: %s", self.windows_left, _LATER)
        elif self._deaths > 1:
            task = next(iter(self.pending))
            level = logging.WARNING if isinstance(self.pending[task], FinishWindow) else logging.DEBUG
            logger.log(level, "the worker died again at %s: %s", shown(Path(task)), _LATER)
            del self.pending[task]
        if self.pending and self._deaths < _MOST_DEATHS:
            code = "" if worker.exit_code is None else f" with code {worker.exit_code}"  # it may be on its way out
            logger.info("the worker ended%s and was started again; nothing is lost", code)
            self._start()
            self._tell_again()
        if self.worker is None:
            self.pending.clear()

    def _tell_again(self) -> None:
        if self.worker is not None:
            for message in self.pending.values():
                self.worker.send(message)

    @property
    def windows_left(self) -> int:
        """How many windows the worker has not finished yet."""
        return sum(isinstance(message, FinishWindow) for message in self.pending.values())

    @property
    def has_steps_left(self) -> bool:
        """Whether steps wait to be written: later ones must not be written before them."""
        return self.windows_left < len(self.pending)

    def _start(self) -> None:
        if self._log is None:
            return
        with guard("starting the worker", self._on_error):
            self.worker = Worker(self._log)

    def wait(self, timeout: float | None = None, *, is_loud: bool = True) -> bool:
        """Wait until every window is finished, or nobody is left to do it.

        Args:
            timeout: How long at most, in seconds; None waits for ever.
            is_loud: Whether to say so.

        Returns:
            Whether all are finished.
        """
        began = time.monotonic()
        with waiting() as show:
            while self.pending and (self.worker is not None or self._former):
                passed = time.monotonic() - began
                if timeout is not None and passed >= timeout:
                    break
                if is_loud:
                    show(passed)
                self.poll(_POLL_S if timeout is None else min(_POLL_S, timeout - passed))
        reap()
        return not self.pending

    def rest(self) -> None:
        """No windows for now: the worker ends when its work is done."""
        if self.worker is not None and not self.pending:
            self.worker.leave(_EXIT_S)
            self.worker = None
        elif self.worker is not None:
            self.worker.close()

    def leave(self, timeout: float, *, is_loud: bool = True) -> bool:
        """The process ends: wait for the worker for a while, then let it go on alone.

        Args:
            timeout: Maximum wait, in seconds.
            is_loud: Whether to say that the process waits.

        Returns:
            Whether the worker is done.
        """
        if self.worker is not None:
            self.worker.close()
        is_done = self.wait(timeout, is_loud=is_loud)
        for worker in [*self._former, self.worker]:
            if worker is not None:
                worker.leave(_EXIT_S if not self.pending else 0.0)
        self._former.clear()
        self.worker = None
        return is_done

    def abandon(self) -> None:
        """This process is a forked child: the worker and its work are its parent's."""
        for worker in [*self._former, self.worker]:
            if worker is not None:
                worker.abandon()
        self._former.clear()
        self.pending.clear()
        self.worker = self._log = None
