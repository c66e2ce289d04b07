"""The watcher's view of one loop: its pace, its timeline on the disk, and its slow steps."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from perfhooks.guard import cause_of, logger
from perfhooks.run import layout
from perfhooks.run.liveness import Process
from perfhooks.run.publishing import publish_json
from perfhooks.watching.loops import Asked
from perfhooks.watching.pace import LATELY, Pace
from perfhooks.watching.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.watching.loops import WatchedLoop
    from perfhooks.watching.requests import Loop

STEPS: Final = 3
"""Of a window that a signal asks for."""
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
        self._seen = 0
        """The first step that the pace does not know."""
        self._said: Loop | None = None
        self._say_at = 0.0
        self._failed: set[str] = set()

    def where(self) -> Loop:
        """Where the loop is now."""
        self._follow()
        return self._loop.where(self._pace.median_ns)

    def look(self) -> float:
        """Look whether the step that goes on takes too long; seconds until it should be looked at again."""
        return 1.0

    def tick(self) -> None:
        """Once in a while: follow the pace, and say where the loop is."""
        self._follow()
        if self._loop.is_signalled:
            self._loop.is_signalled = False
            self._loop.ask(Asked("signal", STEPS))
        now = time.monotonic()
        if now >= self._say_at:
            self._say_at = now + STATUS_S
            self._say()

    def end(self) -> None:
        """The loop has ended."""
        self._say_at = 0.0
        self.tick()

    def _follow(self) -> None:
        timeline = self._loop.timeline
        with timeline.taking:
            ended = timeline.since(max(self._seen, timeline.reached - LATELY))
        if len(ended.numbers):
            self._seen = int(ended.numbers[-1]) + 1
            self._pace.add((ended.ends - ended.begins).tolist())

    def _say(self) -> None:
        run, here = self._loop.run, self._loop.where(self._pace.median_ns)
        if run is None or here == self._said or not run.folder.is_dir():
            return
        self._said = here
        status = Status(process=Process.current(), time=time.time(), loop=here)
        with self._writing("saying where it is"):
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
