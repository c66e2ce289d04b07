from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from perfhooks.core.clocks import time
from perfhooks.core.guard import cause_of, logger
from perfhooks.core.schedule import FEWEST_STEPS
from perfhooks.core.thread_time import CountedThread
from perfhooks.record.watch.counters import CpuWaits, Queueing
from perfhooks.record.watch.loops import LoopRequest
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

WRITE_S: Final = 8.0
"""Interval of writes of the timeline in s. Including the poll interval, the file is at most ten seconds old."""
_FIRST_WRITE_S: Final = 1.0
"""Time in s until the first write. Then the interval doubles, so that a killed short training has a timeline."""
_MOST_ROWS: Final = 20_000
"""Maximum number of step times that the watcher writes at once. If there are more, perfhooks' worker
process writes them.
"""
STATUS_S: Final = 5.0


class Watch:
    def __init__(self, loop: WatchedLoop) -> None:
        self._loop = loop
        self._pace = Pace()
        self._slow = SlowSteps(loop, self._pace)
        self._began = time.monotonic()
        self._next_write = self._began + _FIRST_WRITE_S
        self._next_waits = self._began + WRITE_S
        self._last_checked = 0
        self._next_step = 0
        self._last_status: Loop | None = None
        self._next_status = 0.0
        self._failed: set[str] = set()
        self._queueing = Queueing()
        self._cpu_waits = CpuWaits()

    def where(self) -> Loop:
        self._update_pace()
        return self._loop.where(self._pace.median_ns)

    @property
    def is_sampling(self) -> bool:
        return self._slow.is_watching or self._slow.is_doubtful

    def check(self, late_ns: int = 0) -> float:
        """Return the seconds until the next check."""
        timeline = self._loop.timeline
        if not self._loop.is_running and not self._slow.is_watching:
            return 1.0
        if not timeline.taking.acquire(blocking=False):
            return SHORTEST_S
        try:
            step, is_kept = timeline.reached, timeline.is_kept
            begin = timeline.begin_of(step)
        finally:
            timeline.taking.release()
        if self._slow.is_watching and step > self._last_checked:
            self._update_pace()
        if is_kept:  # work of perfhooks on the training thread, which is not part of any step
            self._slow.drop_counters()
            return SHORTEST_S
        return self._check_step(step, begin, late_ns)

    def _check_step(self, step: int, begin: int | None, late_ns: int) -> float:
        if begin is None or not self._loop.is_running:
            return 1.0
        self._last_checked = step
        return self._slow.check(step, begin, late_ns)

    def tick(self) -> None:
        self._update_pace()
        if self._loop.is_signalled:
            self._loop.is_signalled = False
            self._loop.ask(LoopRequest("signal", FEWEST_STEPS))
        self._cpu_waits.read(self._loop.native, self._next_step)
        self._slow.learn()
        self._write_slow()
        now = time.monotonic()
        if now >= self._next_status:
            self._next_status = now + STATUS_S
            self._write_status()
        if now >= self._next_write:
            self._next_write = now + min(now - self._began, WRITE_S)
            self._write_steps()
        if now >= self._next_waits:
            self._next_waits = now + WRITE_S
            self._write_waits()

    def end(self) -> None:
        self._next_status = self._next_waits = 0.0
        self.tick()
        self._slow.end()

    def _update_pace(self) -> None:
        timeline = self._loop.timeline
        with timeline.taking:
            first, walls = timeline.walls_since(self._next_step)
            ended = timeline.since(first) if self._slow.has_slow(walls) else None
        if len(walls):
            self._next_step = first + len(walls)
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
        run, rows = self._loop.run, self._cpu_waits.rows
        if run is None or not rows:
            return
        with self._writing("writing the CPU waits of steps"):
            if run.folder.is_dir():
                self._cpu_waits.rows = []
                steps.append_waits(run.folder / layout.processor(run.rank), self._loop.stage, rows)

    def _write_status(self) -> None:
        waited = self._queueing.share(CountedThread(self._loop.native))
        run, position = self._loop.run, self._loop.where(self._pace.median_ns)
        if run is None or position == self._last_status:
            return
        status = Status(process=Process.current(), time=time.time(), loop=position, waited=waited)
        with self._writing("writing the status"):
            if run.folder.is_dir():
                self._last_status = position
                publish_json(run.folder / layout.status(run.rank), status)

    @contextmanager
    def _writing(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if action not in self._failed:
                self._failed.add(action)
                logger.warning("%s failed (%s); the training continues", action, cause_of(error))
