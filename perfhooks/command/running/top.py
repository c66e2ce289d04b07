"""``perfhooks top``: how a job is doing, redrawn while it runs."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from perfhooks.command.targets import last_run
from perfhooks.errors import PerfhooksError

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.watching.asking import Outcome
    from perfhooks.watching.view import Seen, View

EXAMPLES: Final = """Examples:

- `perfhooks top perf/latest`
- `perfhooks top perf/latest | tee top.log`
"""
_EACH_S: Final = 1.0
"""Seconds between two looks."""
_FORGOTTEN_S: Final = 600.0
"""A run of another machine has ended when nothing changes for so long: nobody here can ask for its processes."""
_CAPTURE_S: Final = 600.0
_FAREWELL_S: Final = 5.0


def command(
    target: Annotated[
        Path | None,
        typer.Argument(
            help="The folder of a run, such as perf/latest; the last run below here if not given.", show_default=False
        ),
    ] = None,
) -> None:
    """Watch a run: its pace, its slow steps and ranks, and its windows, redrawn each second; of an ended one the end.

    Reads files only, so it runs on any machine that sees the folder. q or Ctrl-C quits, c records the next 3 steps.
    Without a terminal it prints one line a second, until the run has ended.
    """
    from perfhooks.watching.view import View

    view = View(last_run() if target is None else target)
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _show(view)
    else:
        _print(view)


def _print(view: View) -> None:
    from perfhooks.command.running.written import line

    while True:
        seen = view.look()
        typer.echo(line(seen))
        sys.stdout.flush()
        if seen.is_alive is False or (seen.is_alive is None and seen.silent_s > _FORGOTTEN_S):
            return
        time.sleep(_EACH_S)


def _show(view: View) -> None:
    """Draw until somebody quits; the last look stays on the terminal as one line."""
    from rich.console import Console
    from rich.live import Live

    from perfhooks.command.running.keys import pressed
    from perfhooks.command.running.written import ASCII, BLOCKS, line, screen

    console = Console()
    blocks = ASCII if console.options.ascii_only else BLOCKS
    seen = view.look()
    request = _Request(seen.run)
    try:
        with pressed() as keys, Live(console=console, screen=True, auto_refresh=False) as live:

            def draw(seen: Seen) -> None:
                live.update(screen(seen, request.note, *console.size, blocks), refresh=True)

            draw(seen)
            while not _is_quit(keys, request.begin, lambda: draw(seen)):  # noqa: B023 -- drawn at once
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
        from perfhooks.watching.asking import Asking, Wish

        try:
            outcomes = Asking(self._run, Wish(), self._tell).outcomes(_CAPTURE_S)
            self.note = "; ".join(map(_said, outcomes))
        except PerfhooksError as error:
            self.note = str(error)

    def _tell(self, text: str) -> None:
        if self._is_over:
            raise PerfhooksError("nobody waits for it any more")
        self.note = text


def _said(outcome: Outcome) -> str:
    if outcome.place is None:
        return f"rank {outcome.rank}: nothing recorded: {outcome.problem}"
    return f"rank {outcome.rank}: {outcome.place.folder.name}"
