"""The watcher's view of one loop: its pace, its timeline on the disk, and its slow steps."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from perfhooks.core.guard import cause_of, logger
from perfhooks.core.thread_time import CountedThread
from perfhooks.record.watch.counters import Processors, Queueing
from perfhooks.record.watch.loops import Asked
from perfhooks.record.watch.pace import Pace
from perfhooks.record.watch.slow import SHORTEST_S, SlowSteps
from perfhooks.run import layout, rare_work, steps
from perfhooks.run.live.slow_steps import append
from perfhooks.run.live.status import Status
from perfhooks.run.liveness import Process
from perfhooks.run.publishing import publish, publish_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.record.watch.loops import WatchedLoop
    from perfhooks.run.live.requests import Loop

STEPS: Final = 3
"""Of a window that a signal asks for."""
WRITE_S: Final = 8.0
"""Seconds after which the timeline is written: with the poll, it is at most ten seconds behind."""
_MOST_ROWS: Final = 20_000
"""Steps that the watcher writes itself; a loop with more of them has its worker write them."""
_LONG_S: Final = 1.0
STATUS_S: Final = 5.0
"""Seconds after which a rank says again where it is, if it has gone on."""


class Watch:
    """Looks at one loop, in the watcher's thread.

    Args:
        loop: The loop.
    """

    def __init__(self, loop: WatchedLoop) -> None:
        self._loop = loop
        self._pace = Pace()
        self._slow = SlowSteps(loop, self._pace)
        self._write_at = time.monotonic() + WRITE_S
        self._write_waits_at = self._write_at
        self._watched = 0
        """The step that was looked at last."""
        self._seen = 0
        """The first step that the pace does not know."""
        self._said: Loop | None = None
        self._say_at = 0.0
        self._failed: set[str] = set()
        self._queueing = Queueing()
        self._processor = Processors()

    def where(self) -> Loop:
        """Where the loop is now."""
        self._follow()
        return self._loop.where(self._pace.median_ns)

    @property
    def is_sampling(self) -> bool:
        """Whether a step goes on that is or may become slow, which is looked at without a rest."""
        return self._slow.is_watching or self._slow.is_doubtful

    def look(self, late_ns: int = 0) -> float:
        """Look whether the step that goes on takes too long; seconds until it should be looked at again.

        Args:
            late_ns: How much later than it was meant to the look comes.
        """
        timeline = self._loop.timeline
        if not self._loop.is_running and not self._slow.is_watching:
            return _LONG_S
        if not timeline.taking.acquire(blocking=False):
            return SHORTEST_S  # it is being written
        try:
            step, is_kept = timeline.reached, timeline.is_kept
            begin = timeline.begin_of(step)
        finally:
            timeline.taking.release()
        if self._slow.is_watching and step > self._watched:
            self._follow()
        if is_kept:  # what the thread does now is our work, and belongs to no step
            self._slow.forget_before()
            return SHORTEST_S
        return self._look_at(step, begin, late_ns)

    def _look_at(self, step: int, begin: int | None, late_ns: int) -> float:
        """See `look`."""
        if begin is None or not self._loop.is_running:
            return _LONG_S
        self._watched = step
        return self._slow.look(step, begin, late_ns)

    def tick(self) -> None:
        """Once in a while: follow the pace, and say where the loop is."""
        self._follow()
        if self._loop.is_signalled:
            self._loop.is_signalled = False
            self._loop.ask(Asked("signal", STEPS))
        self._processor.look(self._loop.thread, self._loop.native, self._seen)
        self._slow.learn()
        self._write_slow()
        now = time.monotonic()
        if now >= self._say_at:
            self._say_at = now + STATUS_S
            self._say()
        if now >= self._write_at:
            self._write_at = now + WRITE_S
            self._write_steps()
        if now >= self._write_waits_at:
            self._write_waits_at = now + WRITE_S
            self._write_waits()

    def end(self) -> None:
        """The loop has ended."""
        self._say_at = self._write_waits_at = 0.0
        self.tick()
        self._slow.end()

    def _follow(self) -> None:
        timeline = self._loop.timeline
        with timeline.taking:
            first, walls = timeline.walls_since(self._seen)
            ended = timeline.since(first) if self._slow.concerns(walls) else None
        if len(walls):
            self._seen = first + len(walls)
            median_ns, limit_ns = self._pace.median_ns, self._pace.limit_ns
            self._pace.add(walls.tolist())
            if self._pace.limit_ns is not None:
                self._loop.limit_ns = self._pace.limit_ns
            if ended is not None:
                self._slow.ended(ended, median_ns, limit_ns)

    def _write_slow(self) -> None:
        run, slow = self._loop.run, self._slow
        if run is None or not slow.rows:
            return
        rows, slow.rows = slow.rows, []
        with self._writing("writing the table of slow steps"):
            append(run.folder / layout.slow_steps(run.rank), rows)
            if slow.folded.is_new:
                with publish(run.folder / layout.slow_stacks(run.rank)) as file:
                    file.write(slow.folded.text().encode("utf-8", "replace"))

    def _write_steps(self) -> None:
        """Have the timeline on the disk; steps that are in a file of their own, for the worker, come first."""
        run, timeline = self._loop.run, self._loop.timeline
        if run is None or not 0 < timeline.waiting <= _MOST_ROWS:
            return
        with self._writing("writing the timeline"):
            if any(rank == run.rank for _, rank in run.left_steps()):
                return
            with timeline.taking:
                rare_work.append(run.folder / layout.rare(run.rank), self._loop.stage, timeline.take_rare())
                timeline.rows().append_to(run.timeline(run.rank))
                self._loop.wrote_steps = True

    def _write_waits(self) -> None:
        run, rows = self._loop.run, self._processor.rows
        if run is None or not rows:
            return
        with self._writing("writing what steps waited for processors"):
            if run.folder.is_dir():  # the timeline makes it, and says it where that fails
                self._processor.rows = []
                steps.append_waits(run.folder / layout.processor(run.rank), self._loop.stage, rows)

    def _say(self) -> None:
        waited = self._queueing.share(CountedThread(self._loop.thread, self._loop.native))
        run, here = self._loop.run, self._loop.where(self._pace.median_ns)
        if run is None or here == self._said:
            return
        status = Status(process=Process.current(), time=time.time(), loop=here, waited=waited)
        with self._writing("saying where it is"):
            if run.folder.is_dir():
                self._said = here
                publish_json(run.folder / layout.status(run.rank), status)

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """What cannot be written is said once: the next attempt may go well, and a training hears nothing of it."""
        try:
            yield
        except OSError as error:
            if what not in self._failed:
                self._failed.add(what)
                logger.warning("%s failed (%s); training goes on", what, cause_of(error))
