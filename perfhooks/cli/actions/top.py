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

from perfhooks.cli.actions import mirror
from perfhooks.cli.actions.asking import CaptureOptions, CaptureRequest
from perfhooks.cli.actions.keys import pressed
from perfhooks.cli.actions.written import ASCII, BLOCKS, line, screen
from perfhooks.cli.turns.supervisor import GRACE_S
from perfhooks.core.errors import PerfhooksError
from perfhooks.report.live import View
from perfhooks.run.publishing import SILENT_S
from perfhooks.run.remote import is_url

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perfhooks.cli.actions.asking import RankOutcome
    from perfhooks.report.live import RunState

_EACH_S: Final = 1.0
_NO_REQUEST: Final = "a window can be requested only in the folder that the job writes, not at a URL of its copy"


def top(target: str | None) -> None:
    view, url = View(mirror.here(target)), target if target is not None and is_url(target) else None
    look = view.refresh if url is None else _elsewhere(view, url)
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _show(look, None if url is None else _NO_REQUEST)
    else:
        _print(look)


def _elsewhere(view: View, url: str) -> Callable[[], RunState]:
    brought = time.monotonic()

    def look() -> RunState:
        nonlocal brought
        if time.monotonic() > brought + 10:
            mirror.mirror(url)
            brought = time.monotonic()
        return view.refresh()

    return look


def _print(look: Callable[[], RunState]) -> None:
    last = ""
    while True:
        state = look()
        text = line(state)
        if text != last:
            typer.echo(text)
            sys.stdout.flush()
            last = text
        if state.is_alive is False or (state.is_alive is None and state.silent_s > SILENT_S):
            return
        time.sleep(_EACH_S)


def _show(look: Callable[[], RunState], unheard: str | None) -> None:
    console = Console()
    blocks = ASCII if console.options.ascii_only else BLOCKS
    state = look()
    request = _Request(state.run, unheard)
    try:
        with pressed() as keys, Live(console=console, screen=True, auto_refresh=False) as live:

            def draw(state: RunState) -> None:
                live.update(screen(state, request.note, *console.size, blocks), refresh=True)

            draw(state)
            while not _is_quit(keys, request.begin, partial(draw, state)):
                state = look()
                draw(state)
    except KeyboardInterrupt:
        pass
    finally:
        request.end()
    typer.echo(line(state))


def _is_quit(keys: Callable[[float], str], capture: Callable[[], None], draw: Callable[[], None]) -> bool:
    until = time.monotonic() + _EACH_S
    while (remaining_s := until - time.monotonic()) > 0:
        for key in keys(remaining_s).lower():
            if key == "q":
                return True
            if key == "c":
                capture()
                draw()
    return False


class _Request:
    def __init__(self, run: Path, unheard: str | None = None) -> None:
        self._run, self._unheard = run, unheard
        self._thread: threading.Thread | None = None
        self._is_over = False
        self.note = ""

    def begin(self) -> None:
        if self._unheard is not None:
            self.note = self._unheard
        elif self._thread is None or not self._thread.is_alive():
            self.note = "asking"
            self._thread = threading.Thread(target=self._ask, daemon=True)
            self._thread.start()

    def end(self) -> None:
        self._is_over = True
        if self._thread is not None:
            self._thread.join(GRACE_S)

    def _ask(self) -> None:
        try:
            outcomes = CaptureRequest(self._run, CaptureOptions(), self._tell).outcomes(600)
            self.note = "; ".join(map(_said, outcomes))
        except PerfhooksError as error:
            self.note = str(error)

    def _tell(self, text: str) -> None:
        if self._is_over:
            raise PerfhooksError("the request was withdrawn")
        self.note = text


def _said(outcome: RankOutcome) -> str:
    if outcome.place is None:
        return f"rank {outcome.rank}: nothing recorded: {outcome.problem}"
    return f"rank {outcome.rank}: {outcome.place.folder.name}"
