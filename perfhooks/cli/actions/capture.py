from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from perfhooks.cli.actions.asking import CaptureOptions, CaptureRequest, RankOutcome
from perfhooks.core.progress import status_line
from perfhooks.core.words import printable
from perfhooks.report.page.terminal_tables import step_table
from perfhooks.run.layout import STEPS

if TYPE_CHECKING:
    from pathlib import Path


def asked(run: Path, timeout: float, **wish: Any) -> bool:
    with status_line() as tell:
        outcomes = CaptureRequest(run, CaptureOptions(**wish), tell).outcomes(timeout)
    return _show(outcomes)


def _show(outcomes: list[RankOutcome]) -> bool:
    for outcome in outcomes:
        if outcome.capture is None:
            typer.echo(printable(f"rank {outcome.rank}: nothing recorded: {outcome.problem}"), err=True)
        elif outcome.note or outcome.capture.partial:
            typer.echo(printable(f"rank {outcome.rank}: {outcome.note or outcome.capture.partial}"), err=True)
    places = [outcome.place for outcome in outcomes if outcome.place is not None]
    if places:
        typer.echo(printable(step_table([place.artifact(STEPS) for place in places])))
    return bool(places)
