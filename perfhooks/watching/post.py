"""What is asked of this process by way of one run folder, and what it answers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from perfhooks.guard import cause_of, logger
from perfhooks.run.liveness import Process
from perfhooks.watching import requests
from perfhooks.watching.loops import Asked
from perfhooks.watching.requests import Here

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.run.folder import Run
    from perfhooks.watching.loops import WatchedLoop
    from perfhooks.watching.requests import Loop


class Post:
    """The requests of one run folder, as this process sees them.

    Windows that lie there when it looks for the first time were asked of a process before it, and are left alone.

    Args:
        run: The folder, and the rank of this process.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen = {file for file, _, kind in requests.names(run.folder) if kind == "window"}
        self._is_mute = False

    def collect(self, loops: Sequence[WatchedLoop], where: Callable[[WatchedLoop], Loop]) -> None:
        """Look into the folder: answer calls, and hand windows to the loops that are meant.

        Args:
            loops: Those of this process that belong to the run.
            where: Tells where one is.
        """
        files = requests.names(self._run.folder)
        self._seen.intersection_update(file for file, _, _ in files)
        for file, name, kind in files:
            if file in self._seen:
                continue
            if kind == "call":
                self._seen.add(file)
                here = Here(
                    rank=self._run.rank,
                    process=Process.current(),
                    poll=min(loop.poll for loop in loops),
                    loops=tuple(where(loop) for loop in loops),
                )
                self._write(partial(requests.say_here, self._run.folder, name, here))
            elif self._hand_out(file, name, loops):
                self._seen.add(file)

    def _hand_out(self, file: str, name: str, loops: Sequence[WatchedLoop]) -> bool:
        """Whether a request was whole, and so has reached whom it may concern."""
        window = requests.read_window(self._run.folder, file)
        if window is None:
            return False
        if window.ranks is None or self._run.rank in window.ranks:
            for loop in loops:
                if loop.stage == window.stage:
                    loop.ask(Asked("request", window.steps, window.first, window.options, name))
        return True

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
