"""The single thread per process that observes all loops. An error ends the watcher thread with one log line."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

from perfhooks.core import process
from perfhooks.core.clocks import time
from perfhooks.core.guard import cause_of, logger
from perfhooks.record.watch.inbox import RequestInbox
from perfhooks.record.watch.sampling import leave_profilers
from perfhooks.record.watch.watch import Watch
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from perfhooks.record.watch.loops import WatchedLoop
    from perfhooks.run.folder import Run

NAME: Final = "perfhooks-watcher"

_SHARE: Final = 0.00075
"""Maximum CPU use of checks of usual steps, in cores. The poll for requests, once per second, uses as much."""

_WAIT_S: Final = 1.0
"""Maximum wait of the training for the watcher thread."""


class SamplingBudget:
    """Pause between checks of the running step, in proportion to the measured cost of a check.

    A check takes 20 us of CPU time, or 140 us on a virtual machine. Steps of 10 ms need a check every 80 ms, up to 0.2%
    of a core.
    """

    def __init__(self, spent: Callable[[], float] = time.thread_time) -> None:
        self._spent = spent
        self._before = spent()
        self._cost = 0.0

    def rest(self, *, is_usual: bool) -> float:
        """Return the pause before the next check in seconds. Only checks of usual steps count as cost."""
        now = self._spent()
        if is_usual:
            self._cost += (now - self._before - self._cost) / 8
        self._before = now
        # never longer than half a second, so that a longer slow step is always sampled
        return min(self._cost / _SHARE, 0.5)


class Watcher:
    def __init__(self) -> None:
        self._watches: dict[WatchedLoop, Watch] = {}
        self._inboxes: dict[Path, RequestInbox] = {}
        self._wake_lock = threading.Lock()
        """Lock whose release wakes the watcher. Waiting for a lock is one call in C; waiting for an event takes many
        Python calls.
        """
        self._wake_lock.acquire()
        self._thread: threading.Thread | None = None
        self._next_poll = 0.0
        self._lock = threading.RLock()  # finalizers may end loops
        self._working = threading.Lock()
        """Held while a loop is checked and its files are written."""

    def attach(self, loop: WatchedLoop) -> None:
        with self._lock:
            if loop not in self._watches:
                self._watches = {**self._watches, loop: Watch(loop)}
                self._next_poll = 0.0
                self._wake()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
                self._thread.start()

    def detach(self, loop: WatchedLoop) -> None:
        with self._lock:
            watch = self._watches.get(loop)
            self._watches = {key: value for key, value in self._watches.items() if key is not loop}
        self._wake()
        if watch is None:
            return
        # the thread may be writing the same files; on a slow disk the training does not wait for it
        is_alone = self._working.acquire(timeout=_WAIT_S)
        try:
            watch.end()
            self._answer([loop])
        except Exception as error:  # noqa: BLE001 -- the training must continue
            logger.debug("the last status of a loop could not be written: %s", cause_of(error))
        finally:
            if is_alone:
                self._working.release()

    def end(self) -> None:
        self._watches, thread = {}, self._thread
        self._wake()
        if thread is not None:
            thread.join(_WAIT_S)

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._wake_lock.release()

    def _run(self) -> None:
        try:
            budget, late_ns = SamplingBudget(), 0
            while self._is_wanted():
                leave_profilers()
                is_due = time.monotonic() >= self._next_poll
                with self._working:
                    if is_due:
                        # read this before the poll, so that a loop that is attached meanwhile gets another poll
                        self._next_poll = time.monotonic() + min((loop.poll for loop in self._watches), default=0.0)
                        self._poll()
                        late_ns = 0
                    delay, is_quiet = self._check(late_ns)
                pause_s = budget.rest(is_usual=is_quiet and not is_due)
                delay = min(max(delay, pause_s) if is_quiet else delay, self._next_poll - time.monotonic())
                delay = max(0.005, delay)
                wake_at = clock() + int(delay * 1e9)
                late_ns = 0 if self._wake_lock.acquire(timeout=delay) else clock() - wake_at
        except Exception as error:
            logger.warning(
                "the watcher stopped (%s): slow steps and requests are no longer detected; the training continues",
                cause_of(error),
            )
            logger.debug("the watcher failed", exc_info=True)

    def _check(self, late_ns: int) -> tuple[float, bool]:
        watches = self._watches.values()
        was_sampling = any(watch.is_sampling for watch in watches)
        delay = min([watch.check(late_ns) for watch in watches], default=0.0)
        return delay, not was_sampling and not any(watch.is_sampling for watch in watches)

    def _is_wanted(self) -> bool:
        with self._lock:
            if not self._watches:
                self._thread = None
            return bool(self._watches)

    def _poll(self) -> None:
        watches = self._watches  # the training may replace it meanwhile
        for run, loops in self._by_run(watches):
            folder = run.folder
            if folder not in self._inboxes:
                self._inboxes[folder] = RequestInbox(run)
            inbox = self._inboxes[folder]
            inbox.collect(loops, lambda loop: watches[loop].where())
        self._answer(list(watches))
        for watch in watches.values():
            watch.tick()

    def _answer(self, loops: list[WatchedLoop]) -> None:
        for loop in loops:
            if loop.answers and loop.run is not None:
                self._inboxes.setdefault(loop.run.folder, RequestInbox(loop.run)).answer(loop)

    @staticmethod
    def _by_run(loops: Iterable[WatchedLoop]) -> Iterator[tuple[Run, list[WatchedLoop]]]:
        by_run: dict[Run, list[WatchedLoop]] = {}
        for loop in loops:
            if loop.run is not None:
                by_run.setdefault(loop.run, []).append(loop)
        yield from by_run.items()


_watcher = Watcher()


def attach(loop: WatchedLoop) -> None:
    if not process.has_real_threads():
        logger.debug("steps are not watched: gevent replaced threads by greenlets of the main thread")
        return
    try:
        _watcher.attach(loop)
    except RuntimeError as error:
        logger.warning("steps are not watched (%s)", cause_of(error))


def detach(loop: WatchedLoop) -> None:
    _watcher.detach(loop)


def _end_watcher() -> None:
    with contextlib.suppress(RuntimeError):
        _watcher.end()


def _reset() -> None:
    global _watcher  # noqa: PLW0603 -- one for the process
    _watcher = Watcher()


process.at_end(process.End.WATCHER, _end_watcher)
process.in_child(process.Child.WATCHER, _reset)
