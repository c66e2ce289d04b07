from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

from perfhooks.core.clocks import time
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.guard import cause_of, logger
from perfhooks.core.options import MOST_WAITING
from perfhooks.core.words import count, printable
from perfhooks.record.watch.loops import LoopRequest
from perfhooks.run.live import requests
from perfhooks.run.live.requests import Answer, RankPosition
from perfhooks.run.liveness import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.record.watch.loops import WatchedLoop
    from perfhooks.run.folder import Run
    from perfhooks.run.live.requests import Loop


class RequestInbox:
    """Reads requests for windows. Requests from before the first poll are skipped: an earlier process received them."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen = {file for file, _, kind in requests.names(run.folder) if kind == "window"}
        self._has_failed = self._has_refused = False
        self._changed_ns = 0
        self._polls = 0

    def collect(self, loops: Sequence[WatchedLoop], where: Callable[[WatchedLoop], Loop]) -> None:
        if self._is_unchanged():
            return
        files = requests.files(self._run.folder)
        new, self._seen = files - self._seen, files
        # at most this many are refused: an answer takes 0.3 ms
        incoming = list(itertools.islice(requests.requested(new), 2 * MOST_WAITING))
        for _, name, _ in incoming[MOST_WAITING:]:
            self._refuse(name, f"{count(len(new), 'request')} arrived at once; at most {MOST_WAITING} are accepted")
        for file, name, kind in incoming[:MOST_WAITING]:
            if kind == "call":
                position = RankPosition(
                    rank=self._run.rank,
                    process=Process.current(),
                    poll=min(loop.poll for loop in loops),
                    loops=tuple(where(loop) for loop in loops),
                )
                self._write(partial(requests.write_position, self._run.folder, name, position))
            else:
                self._pass_on(file, name, loops)

    def _is_unchanged(self) -> bool:
        before, self._changed_ns = self._changed_ns, requests.changed_ns(self._run.folder)
        self._polls += 1  # every tenth poll reads the folder, because some file systems do not update its time
        return self._changed_ns == before and not _is_recent(before) and self._polls % 10 != 0

    def _pass_on(self, file: str, name: str, loops: Sequence[WatchedLoop]) -> None:
        try:
            window = requests.read_window(self._run.folder, file)
        except PerfhooksError as error:
            if _is_recent(requests.changed_ns(self._run.folder, file)):
                self._seen.discard(file)
            else:
                self._refuse(name, str(error))
            return
        if window is None or not (window.ranks is None or self._run.rank in window.ranks):
            return
        for loop in loops:
            if loop.stage != window.stage:
                continue
            if len(loop.inbox) < MOST_WAITING:
                loop.ask(LoopRequest("request", window.steps, window.first, window.options, name))
            else:
                waiting = count(len(loop.inbox), "request already waits", "requests already wait")
                self._refuse(name, f"{waiting} for the end of the step")

    def _refuse(self, name: str, why: str) -> None:
        (logger.debug if self._has_refused else logger.warning)("a request is refused: %s", printable(why))
        self._has_refused = True
        answer = Answer(rank=self._run.rank, state="refused", why=why[:300])
        self._write(partial(requests.write_answer, self._run.folder, name, answer))

    def answer(self, loop: WatchedLoop) -> None:
        while loop.answers:
            name, reply = loop.answers.popleft()
            self._write(partial(requests.write_answer, self._run.folder, name, reply))

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
            self._has_failed = False
        except Exception as error:  # noqa: BLE001 -- the client times out without an answer
            if not self._has_failed:
                logger.warning("a request cannot be answered: %s", cause_of(error))
            self._has_failed = True


def _is_recent(changed_ns: int) -> bool:
    """Return whether a change is younger than two seconds.

    A file may be incomplete, and a coarse file clock can hide a second change.
    """
    return changed_ns > time.time_ns() - 2e9
