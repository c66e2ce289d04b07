"""The one thread of a process that looks at its loops while they run; the training itself never looks.

It sleeps. When it wakes, about once a second, it looks into the run folder for requests, and to it that the timeline
is on the disk. What fails in here ends the watching with one log line; a training knows nothing of it.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
import time
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Final

from perfhooks.core import process
from perfhooks.core.guard import cause_of, logger
from perfhooks.record.watch.inbox import RequestInbox
from perfhooks.record.watch.sampling import leave_profilers
from perfhooks.record.watch.watch import Watch
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from perfhooks.record.watch.loops import WatchedLoop
    from perfhooks.run.folder import Run

NAME: Final = "perfhooks-watcher"
"""What the thread is called."""

_SHORTEST_S: Final = 0.005
"""It never sleeps shorter than this."""
_FAREWELL_S: Final = 1.0
_SHARE: Final = 0.00075
"""Looks take at most this share of a core while no step is slow; the poll once a second takes about as much."""
_LONGEST_REST_S: Final = 0.5
"""What a look is put off at most, however dear it is: a slow step that is longer is always seen."""
_LATELY: Final = 8
"""Looks whose cost counts."""


class SamplingBudget:
    """How long to rest between two looks at quiet steps, by what a look takes on this machine.

    To wake up and look takes 20 us of a processor on one machine and 140 us on another, such as a virtual one. Steps of
    10 ms want a look every 80 ms, which the second machine would pay with 0.2% of a core.

    Args:
        spent: Tells what the calling thread has computed, in seconds.
    """

    def __init__(self, spent: Callable[[], float] = time.thread_time) -> None:
        self._spent = spent
        self._before = spent()
        self._cost = 0.0

    def rest(self, *, is_usual: bool) -> float:
        """Seconds to rest.

        Args:
            is_usual: Whether the thread has only looked since it was here last; what else it did says nothing of looks.
        """
        now = self._spent()
        if is_usual:
            self._cost += (now - self._before - self._cost) / _LATELY
        self._before = now
        return min(self._cost / _SHARE, _LONGEST_REST_S)


class Watcher:
    """Looks at the loops of this process in a thread of its own, as long as there are any."""

    def __init__(self) -> None:
        self._watches: dict[WatchedLoop, Watch] = {}
        self._posts: dict[Path, RequestInbox] = {}
        self._bell = threading.Lock()
        """Held; whoever releases it wakes the thread. To wait for a lock is one call in C, for an event it is many."""
        self._bell.acquire()
        self._thread: threading.Thread | None = None
        self._due = 0.0
        """When to look into the folders again."""
        self._changing = threading.Lock()

    def attach(self, loop: WatchedLoop) -> None:
        """Watch a loop from now on; nothing happens if it is watched already."""
        with self._changing:
            if loop not in self._watches:
                self._watches = {**self._watches, loop: Watch(loop)}
                self._due = 0.0
                self._ring()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._live, name=NAME, daemon=True)
                self._thread.start()

    def detach(self, loop: WatchedLoop) -> None:
        """Watch a loop no more; what it has left to say is said."""
        with self._changing:
            watch = self._watches.get(loop)
            self._watches = {other: kept for other, kept in self._watches.items() if other is not loop}
        self._ring()
        if watch is not None:
            try:
                watch.end()
                self._answer([loop])
            except Exception as error:  # noqa: BLE001 -- nothing that follows depends on it
                logger.debug("the last look at a loop failed: %s", cause_of(error))

    def end(self) -> None:
        """The process ends: let the thread end before the interpreter does."""
        self._watches, thread = {}, self._thread
        self._ring()
        if thread is not None:
            thread.join(_FAREWELL_S)

    def _ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it rings already
            self._bell.release()

    def _live(self) -> None:
        try:
            thrift, late_ns = SamplingBudget(), 0
            while self._is_wanted():
                leave_profilers()
                is_due = time.monotonic() >= self._due
                if is_due:
                    # before the poll, as a loop that comes meanwhile wants another one
                    self._due = time.monotonic() + min((loop.poll for loop in self._watches), default=0.0)
                    self._poll()
                    late_ns = 0
                delay, is_quiet = self._look(late_ns)
                rest = thrift.rest(is_usual=is_quiet and not is_due)
                delay = min(max(delay, rest) if is_quiet else delay, self._due - time.monotonic())
                delay = max(_SHORTEST_S, delay)
                wake_at = clock() + int(delay * 1e9)
                late_ns = 0 if self._bell.acquire(timeout=delay) else clock() - wake_at
        except Exception as error:  # a thread of ours, whose end nobody else would hear of
            logger.warning("steps are not watched any more (%s); training goes on", cause_of(error))
            logger.debug("the watcher failed", exc_info=True)

    def _look(self, late_ns: int) -> tuple[float, bool]:
        """Look at all loops: seconds until one is to be looked at again, and whether none has a slow step.

        Args:
            late_ns: How much later than it wanted to the thread woke up.
        """
        watches = self._watches.values()
        was_sampling = any(watch.is_sampling for watch in watches)  # one of which may have ended, and was explained
        delay = min([watch.look(late_ns) for watch in watches], default=0.0)
        return delay, not was_sampling and not any(watch.is_sampling for watch in watches)

    def _is_wanted(self) -> bool:
        """Whether there is a loop left; where there is none, the next one gets a thread of its own."""
        with self._changing:
            if not self._watches:
                self._thread = None
            return bool(self._watches)

    def _poll(self) -> None:
        """Once in a while: requests, answers, and what each loop has to write."""
        for run, loops in self._by_run():
            folder = run.folder
            if folder not in self._posts:
                self._posts[folder] = RequestInbox(run)
            post = self._posts[folder]
            post.collect(loops, lambda loop: self._watches[loop].where())
        self._answer(list(self._watches))
        for watch in self._watches.values():
            watch.tick()

    def _answer(self, loops: list[WatchedLoop]) -> None:
        for loop in loops:
            if loop.answers and loop.run is not None:
                self._posts.setdefault(loop.run.folder, RequestInbox(loop.run)).answer(loop)

    def _by_run(self) -> Iterator[tuple[Run, list[WatchedLoop]]]:
        by_run: dict[Run, list[WatchedLoop]] = {}
        for loop in self._watches:
            if loop.run is not None:
                by_run.setdefault(loop.run, []).append(loop)
        yield from by_run.items()


_watcher = Watcher()


def attach(loop: WatchedLoop) -> None:
    """See `Watcher.attach`; a thread that cannot be started is one log line."""
    if not isinstance(_thread.start_new_thread, BuiltinFunctionType):
        logger.debug("steps are not watched: gevent's threads share the main thread")
        return
    try:
        _watcher.attach(loop)
    except RuntimeError as error:
        logger.warning("steps are not watched (%s)", cause_of(error))


def detach(loop: WatchedLoop) -> None:
    """See `Watcher.detach`."""
    _watcher.detach(loop)


def _end() -> None:
    with contextlib.suppress(RuntimeError):
        _watcher.end()


def _forget() -> None:
    """This process is a forked child: the thread, and what it held, are its parent's."""
    global _watcher  # noqa: PLW0603 -- one for the process
    _watcher = Watcher()


process.at_end(process.End.WATCHER, _end)
process.in_child(process.Child.WATCHER, _forget)
