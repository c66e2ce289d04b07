"""What is asked of this process by way of one run folder, and what it answers."""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from perfhooks.core.errors import PerfhooksError
from perfhooks.core.guard import cause_of, logger
from perfhooks.core.options import MOST_WAITING
from perfhooks.core.words import printable
from perfhooks.record.watch.loops import Asked
from perfhooks.run.live import requests
from perfhooks.run.live.requests import Answer, Here
from perfhooks.run.liveness import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.record.watch.loops import WatchedLoop
    from perfhooks.run.folder import Run
    from perfhooks.run.live.requests import Loop

_FRESH_NS: Final = 2e9
"""After a change: a file may not be whole yet, and the folder is looked through at each look, as a disk that counts
time in hundredths of a second says the same of a change that comes behind the look."""
_SELDOM: Final = 10
"""Of so many looks one goes through the folder in any case: some disks do not say when it has changed."""
_LONGEST: Final = 300
"""Letters of a reason."""


class RequestInbox:
    """The requests of one run folder, as this process sees them.

    Windows that lie there when it looks for the first time were asked of a process before it, and are left alone.

    Args:
        run: The folder, and the rank of this process.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen = {file for file, _, kind in requests.names(run.folder) if kind == "window"}
        self._is_mute = self._has_refused = False
        self._changed_ns = 0
        self._looks = 0

    def collect(self, loops: Sequence[WatchedLoop], where: Callable[[WatchedLoop], Loop]) -> None:
        """Look into the folder: answer calls, and hand windows to the loops that are meant.

        Args:
            loops: Those of this process that belong to the run.
            where: Tells where one is.
        """
        if self._is_settled():
            return
        files = requests.files(self._run.folder)
        fresh, self._seen = files - self._seen, files
        # the others hear nothing: an answer costs 0.3 ms
        asked = list(itertools.islice(requests.requested(fresh), 2 * MOST_WAITING))
        for _, name, _ in asked[MOST_WAITING:]:
            self._refuse(name, f"{len(fresh)} requests came at once, and {MOST_WAITING} are heard")
        for file, name, kind in asked[:MOST_WAITING]:
            if kind == "call":
                here = Here(
                    rank=self._run.rank,
                    process=Process.current(),
                    poll=min(loop.poll for loop in loops),
                    loops=tuple(where(loop) for loop in loops),
                )
                self._write(partial(requests.say_here, self._run.folder, name, here))
            else:
                self._hand_out(file, name, loops)

    def _is_settled(self) -> bool:
        """Whether the folder is as it was when it was looked through."""
        before, self._changed_ns = self._changed_ns, requests.changed_ns(self._run.folder)
        self._looks += 1
        return self._changed_ns == before and not _is_fresh(before) and self._looks % _SELDOM != 0

    def _hand_out(self, file: str, name: str, loops: Sequence[WatchedLoop]) -> None:
        """Have a request reach whom it may concern."""
        try:
            window = requests.read_window(self._run.folder, file)
        except PerfhooksError as error:
            if _is_fresh(requests.changed_ns(self._run.folder, file)):
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
                loop.ask(Asked("request", window.steps, window.first, window.options, name))
            else:
                self._refuse(name, f"{len(loop.inbox)} requests wait until the step ends")

    def _refuse(self, name: str, why: str) -> None:
        """Answer what no loop hears of; the log says it of the first, as there may be many."""
        (logger.debug if self._has_refused else logger.warning)("a request is refused: %s", printable(why))
        self._has_refused = True
        answer = Answer(rank=self._run.rank, state="refused", why=why[:_LONGEST])
        self._write(partial(requests.say, self._run.folder, name, answer))

    def answer(self, loop: WatchedLoop) -> None:
        """Write what a loop has to say."""
        while loop.answers:
            name, said = loop.answers.popleft()
            self._write(partial(requests.say, self._run.folder, name, said))

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
            self._is_mute = False
        except Exception as error:  # noqa: BLE001 -- whoever asked hears nothing, which says it all
            if not self._is_mute:
                logger.warning("a request cannot be answered: %s", cause_of(error))
            self._is_mute = True


def _is_fresh(changed_ns: int) -> bool:
    return time.time_ns() - changed_ns < _FRESH_NS
