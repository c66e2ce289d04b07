"""The command line: one verb for each question a person has."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 -- typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Final

import typer

from perfhooks.errors import PerfhooksError

if TYPE_CHECKING:
    from perfhooks.finish import Outcome

app = typer.Typer(
    add_completion=True, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)


_SHOW_EXAMPLES: Final = """Examples:

- `perfhooks show trace.json.gz`
- `perfhooks show perf/latest --table steps`
- `perfhooks show trace.json.gz -t operators --by shapes --limit 50`
- `perfhooks show trace.json.gz -t kernels --csv > kernels.csv`
- `perfhooks show trace.json.gz --json | jq '.steps[].wall_ms'`
"""


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


@app.command(epilog=_SHOW_EXAMPLES)
def show(
    target: Annotated[
        str,
        typer.Argument(
            help="A Kineto trace (.json, .json.gz, a URL), or the folder of a run, of a window, or of traces.",
            show_default=False,
        ),
    ],
    *,
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            "-t",
            help="steps, operators, kernels, collectives, copies, syncs, modules, memory, stacks or checks; "
            "may be given several times. Without it an overview.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            help="Split operators by shapes, stack, module, step; kernels by operator; take stacks by device or bytes.",
            show_default=False,
        ),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="CSV, as in a pipe.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON: a list of rows, or an object of such lists.")] = False,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", help="So many rows; 0 shows all. All in CSV and JSON.", show_default=False),
    ] = None,
) -> None:
    """Show where the time went in a trace: tables on a terminal, CSV in a pipe.

    Any trace of torch.profiler will do, whoever recorded it. Times are milliseconds.
    """
    from perfhooks import show as shown

    shown.show(target, table or (), by or (), form=shown.form(csv=csv, json=json), limit=limit)


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
