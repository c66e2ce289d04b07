"""The command line: one verb for each question a person has."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from perfhooks.errors import PerfhooksError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from perfhooks.finishing.finish import Outcome

app = typer.Typer(
    add_completion=True, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)


_EACH: Final = 8
"""So many ranks of a window have a line each."""

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


@app.command(epilog="Examples: `perfhooks report perf/latest --open`, `perfhooks report trace.json.gz -o page.html`")
def report(
    target: Annotated[Path, typer.Argument(help="A run folder, such as perf/latest, or any Kineto trace.")],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the page of a trace goes; - is standard output.")
    ] = None,
    show_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Finish whatever a dead worker or training left behind in a run, and bring its page up to date.

    What is finished already stays as it is. Of a bare trace it makes a page beside it.
    """
    page, whole = _trace_page(target, out) if target.is_file() else _run_page(target)
    if page is not None:
        typer.echo(page)
        if show_it:
            typer.launch(page.absolute().as_uri())
    if not whole:
        raise typer.Exit(1)


def _run_page(run: Path) -> tuple[Path | None, bool]:
    """Finish a run; its page, and whether all of it is whole."""
    from perfhooks import report
    from perfhooks.command.output import working
    from perfhooks.finishing.finish import finish_all

    outcomes = []
    with working(f"finishing {run}"):
        for _, window in groupby(finish_all(run), lambda outcome: outcome.place.folder):
            ranks = list(window)
            outcomes += ranks
            for line, is_problem in _lines(ranks):
                typer.echo(line, err=is_problem)
    if not outcomes:
        typer.echo(f"{run}: no window was recorded")
        return None, True
    with working(f"making the page of {run}"):
        page = report.write(run)
    for line in report.headlines(page):
        typer.echo(line)
    return page, not any(outcome.problem for outcome in outcomes)


def _trace_page(trace: Path, out: Path | None) -> tuple[Path | None, bool]:
    from perfhooks.command.output import working
    from perfhooks.report.data import from_trace
    from perfhooks.report.page import render

    with working(f"reading {trace}"):
        content = render(from_trace(trace)).encode()
    if str(out) == "-":
        sys.stdout.buffer.write(content)
        return None, True
    page = trace.with_name(f"{trace.name.split('.json')[0]}.report.html") if out is None else out
    _write(page, content)
    return page, True


def _write(path: Path, content: bytes) -> None:
    from perfhooks.run.publishing import publish

    if path.is_dir():
        raise PerfhooksError(f"{path} cannot be written: it is a folder")
    try:
        with publish(path) as file:
            file.write(content)
    except OSError as error:
        raise PerfhooksError(f"{path} cannot be written: {error.strerror}") from error


class Measure(str, Enum):
    """What the widths of a flame graph are."""

    host = "host"
    device = "device"
    bytes = "bytes"


class Form(str, Enum):
    """What a flame graph is written as."""

    svg = "svg"
    folded = "folded"
    speedscope = "speedscope"


@app.command(epilog="Examples: `perfhooks flame trace.json.gz`, `perfhooks flame trace.json -f folded -o - | sort`")
def flame(
    trace: Annotated[Path, typer.Argument(help="A Kineto trace.", show_default=False)],
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file; - is standard output.")] = None,
    by: Annotated[Measure, typer.Option("--by", help="Host time, device time, or bytes allocated.")] = Measure.host,
    form: Annotated[Form, typer.Option("--format", "-f", help="A picture, folded stacks, or speedscope.")] = Form.svg,
) -> None:
    """Draw the flame graph of a trace, or write what other tools draw it from."""
    from perfhooks.command.flame import drawn
    from perfhooks.command.output import working

    with working(f"reading {trace}"):
        content = drawn(trace, by=by.value, form=form.value)
    if str(out) == "-":
        sys.stdout.buffer.write(content)
        return
    ending = {"svg": "flame.svg", "folded": "stacks.folded", "speedscope": "speedscope.json"}[form.value]
    path = trace.with_name(f"{trace.name.split('.json')[0]}.{ending}") if out is None else out
    _write(path, content)
    typer.echo(path)


@app.command(epilog='Example: `perfhooks schedule "wait=10 warmup=2 active=3 repeat=2"`')
def schedule(
    words: Annotated[list[str], typer.Argument(help='As in "wait=1 warmup=1 active=3".', show_default=False)],
) -> None:
    """Draw a schedule: which steps wait, warm up and are recorded."""
    from perfhooks.schedule import Schedule

    typer.echo(Schedule.parse(" ".join(words)))


@app.command(epilog="Example: perfhooks doctor --out /shared/perf")
def doctor(out: Annotated[Path, typer.Option("--out", help="The folder that is to hold runs.")] = Path("perf")) -> None:
    """Try whether this installation can record what you want, here."""
    from perfhooks.command.doctor import examine

    healthy = True
    for diagnosis in examine(out):
        healthy = healthy and diagnosis.state != "problem"
        typer.echo(f"{diagnosis.state:8} {diagnosis.subject:12} {diagnosis.text}")
    if not healthy:
        raise typer.Exit(1)


@app.command(epilog="Example: perfhooks demo --open")
def demo(
    *,
    out: Annotated[Path, typer.Option("--out", help="The folder that holds runs.")] = Path("perf"),
    show_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Profile a small training on this machine, and show what comes of it."""
    from perfhooks.command.demo import run

    table, page = run(out)
    typer.echo(table)
    typer.echo(page)
    if show_it:
        typer.launch(page.absolute().as_uri())


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
    from perfhooks.command import show as shown

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
    from perfhooks.ranks import merge as merging

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


def _lines(window: Sequence[Outcome]) -> Iterator[tuple[str, bool]]:
    """What became of the ranks of a window, those of many that fared alike in one line; and whether it is a problem."""
    from perfhooks.ranks.missing import named

    few = len(window) <= _EACH
    alike: dict[tuple[str, int | None], list[Outcome]] = {}
    for outcome in window:
        alike.setdefault((_became(outcome), outcome.place.rank if few else None), []).append(outcome)
    for (became, _), outcomes in alike.items():
        ranks = [outcome.place.rank for outcome in outcomes]
        headline = outcomes[0].capture.headline if outcomes[0].capture else ""
        of_one = f"rank {ranks[0]}: " if headline and len(ranks) > 1 else ""
        line = f"{window[0].place.folder.name} {named(ranks)}: {became}{': ' if headline else ''}{of_one}{headline}"
        yield line, bool(outcomes[0].problem)


def _became(outcome: Outcome) -> str:
    if outcome.capture is None:
        return outcome.problem
    partial = f", partial ({outcome.capture.partial})" if outcome.capture.partial else ""
    return f"{'finished now' if outcome.finished_now else 'finished'}{partial}"


def main() -> None:
    """Run the command line; errors of ours are one line and exit code 2."""
    try:
        app()
    except PerfhooksError as error:
        typer.echo(f"perfhooks: {error}", err=True)
        sys.exit(2)
