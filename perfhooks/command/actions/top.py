"""How a job is doing, redrawn while it runs."""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console
from rich.live import Live

from perfhooks.command.actions.keys import pressed
from perfhooks.command.actions.written import ASCII, BLOCKS, line, screen
from perfhooks.errors import PerfhooksError
from perfhooks.watching.asking import Asking, Wish
from perfhooks.watching.view import View

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perfhooks.watching.asking import RankOutcome
    from perfhooks.watching.view import Seen

_EACH_S: Final = 1.0
"""Seconds between two looks."""
_FORGOTTEN_S: Final = 600.0
"""A run of another machine has ended when nothing changes for so long: nobody here can ask for its processes."""
_CAPTURE_S: Final = 600.0
_FAREWELL_S: Final = 5.0


def top(run: Path) -> None:
    """Show a run until somebody quits; in a pipe until it has ended."""
    view = View(run)
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _show(view)
    else:
        _print(view)


def _print(view: View) -> None:
    while True:
        seen = view.look()
        typer.echo(line(seen))
        sys.stdout.flush()
        if seen.is_alive is False or (seen.is_alive is None and seen.silent_s > _FORGOTTEN_S):
            return
        time.sleep(_EACH_S)


def _show(view: View) -> None:
    """Draw until somebody quits; the last look stays on the terminal as one line."""
    console = Console()
    blocks = ASCII if console.options.ascii_only else BLOCKS
    seen = view.look()
    request = _Request(seen.run)
    try:
        with pressed() as keys, Live(console=console, screen=True, auto_refresh=False) as live:

            def draw(seen: Seen) -> None:
                live.update(screen(seen, request.note, *console.size, blocks), refresh=True)

            draw(seen)
            while not _is_quit(keys, request.begin, partial(draw, seen)):
                seen = view.look()
                draw(seen)
    except KeyboardInterrupt:
        pass
    finally:
        request.end()
    typer.echo(line(seen))


def _is_quit(keys: Callable[[float], str], capture: Callable[[], None], draw: Callable[[], None]) -> bool:
    """Do what is asked for until it is time to look again; whether that is to quit."""
    until = time.monotonic() + _EACH_S
    while (left := until - time.monotonic()) > 0:
        for key in keys(left).lower():
            if key == "q":
                return True
            if key == "c":
                capture()
                draw()
    return False


class _Request:
    """Asks for a window, one at a time, while the view goes on.

    Args:
        run: The run folder.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._thread: threading.Thread | None = None
        self._is_over = False
        self.note = ""
        """How far it has come."""

    def begin(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self.note = "asking"
            self._thread = threading.Thread(target=self._ask, daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Take back what is not done, so that no file stays for nobody."""
        self._is_over = True
        if self._thread is not None:
            self._thread.join(_FAREWELL_S)

    def _ask(self) -> None:
        try:
            outcomes = Asking(self._run, Wish(), self._tell).outcomes(_CAPTURE_S)
            self.note = "; ".join(map(_said, outcomes))
        except PerfhooksError as error:
            self.note = str(error)

    def _tell(self, text: str) -> None:
        if self._is_over:
            raise PerfhooksError("nobody waits for it any more")
        self.note = text


def _said(outcome: RankOutcome) -> str:
    if outcome.place is None:
        return f"rank {outcome.rank}: nothing recorded: {outcome.problem}"
    return f"rank {outcome.rank}: {outcome.place.folder.name}"
