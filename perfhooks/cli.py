"""The command line: one verb for each question a person has."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path  # noqa: TC003 -- typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Final

import typer

from perfhooks.errors import PerfhooksError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


@app.command(
    epilog="Examples: `perfhooks merge perf/latest`; `perfhooks merge perf/latest/train-000012-000014 --ranks 0,4-7`"
)
def merge(
    target: Annotated[
        Path, typer.Argument(help="A window's folder, or a run's: then its latest window.", show_default=False)
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write; beside the traces if not given.", show_default=False),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option("--ranks", help="Only these, such as 0,4-7; all if not given.", show_default=False)
    ] = None,
) -> None:
    """Put the traces of all ranks of a window side by side into one, for Perfetto (https://ui.perfetto.dev).

    Clocks are brought together where ranks met in a collective.
    """
    from perfhooks import merge as merging

    wanted = None if ranks is None else merging.rank_set(ranks)
    try:
        with progress("merging rank") as tell:
            merged = merging.merge(target, out, ranks=wanted, tell=tell)
    except OSError as error:
        raise PerfhooksError(f"the merged trace cannot be written: {error}") from error
    for problem in merged.problems:
        typer.echo(f"perfhooks: {problem}", err=True)
    typer.echo(merged)
    if merged.problems:
        raise typer.Exit(1)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Say on a terminal how far a long piece of work has come."""
    shown = sys.stderr.isatty()

    def tell(done: int, total: int) -> None:
        if shown:
            typer.echo(f"\r{what} {done + 1} of {total}\x1b[K", err=True, nl=False)

    try:
        yield tell
    finally:
        if shown:
            typer.echo("\r\x1b[K", err=True, nl=False)


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
