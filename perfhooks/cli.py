"""The command line: one verb for each question a person has."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 -- typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from perfhooks.errors import PerfhooksError

if TYPE_CHECKING:
    from perfhooks.finish import Outcome

app = typer.Typer(
    add_completion=True, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)


@app.callback()
def perfhooks() -> None:
    """Profiles of PyTorch training: look at them, and finish what a killed process left behind."""


@app.command(epilog="Example: perfhooks report perf/latest")
def report(
    run: Annotated[Path, typer.Argument(help="A run folder, such as perf/latest.", show_default=False)],
) -> None:
    """Finish whatever a dead worker or training left behind in a run folder, and say what there is.

    What is finished already stays as it is.
    """
    from perfhooks.finish import finish_all

    outcomes = []
    for outcome in finish_all(run):
        outcomes.append(outcome)
        typer.echo(_line(outcome), err=bool(outcome.problem))
    if not outcomes:
        typer.echo(f"{run}: no window was recorded")
    if any(outcome.problem for outcome in outcomes):
        raise typer.Exit(1)


def _line(outcome: Outcome) -> str:
    place, capture = outcome.place, outcome.capture
    name = f"{place.folder.name} rank {place.rank}"
    if capture is None:
        return f"{name}: {outcome.problem}"
    state = "finished now" if outcome.finished_now else "finished"
    partial = f", partial ({capture.partial})" if capture.partial else ""
    return f"{name}: {state}{partial}{': ' if capture.headline else ''}{capture.headline}"


def main() -> None:
    """Run the command line; errors of ours are one line and exit code 2."""
    try:
        app()
    except PerfhooksError as error:
        typer.echo(f"perfhooks: {error}", err=True)
        sys.exit(2)
