"""``perfhooks report``: finish what a run left behind, and bring its page up to date."""

from __future__ import annotations

import os
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from perfhooks.command.limits import MAX_UNPACKED
from perfhooks.command.output import write
from perfhooks.command.show import COMMUNICATION
from perfhooks.command.targets import last_run
from perfhooks.errors import OptionError, PerfhooksError
from perfhooks.run.layout import MANIFEST, PAGE
from perfhooks.words import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.finishing.leftovers import Outcome
    from perfhooks.handlers.permit import Permit

EXAMPLES: Final = "Examples: `perfhooks report perf/latest --open`, `perfhooks report trace.json.gz -o page.html`"
"""What ``--help`` ends with."""


_EACH: Final = 8
"""Maximum number of ranks of a window that have a line each, because nobody reads a thousand."""


def command(
    target: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder, such as perf/latest, any Kineto trace, or a folder of such traces; the last run below "
            "here if not given.",
            show_default=False,
        ),
    ] = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where the page of traces goes; - is standard output."),
    ] = None,
    communication: Annotated[str | None, COMMUNICATION] = None,
    _max_unpacked_mb: Annotated[float | None, MAX_UNPACKED] = None,
    show_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    handler: Annotated[
        list[str] | None,
        typer.Option(
            "--handler",
            help="A handler that the run may use, such as mine.handlers:Table: it is code, so a run folder alone "
            "cannot start it. May be given several times.",
            show_default=False,
        ),
    ] = None,
    upload: Annotated[
        str | None,
        typer.Option("--upload", help="A URL to copy the finished run to; else nothing is sent.", show_default=False),
    ] = None,
) -> None:
    """Finish whatever a dead worker or training left behind in a run, and bring its page up to date.

    What is finished already stays as it is. Of a bare trace it makes a page beside it. Of a folder of traces it makes
    one of all ranks, which are those of distributedInfo in the traces, else of their names.
    """
    from perfhooks.handlers.permit import Permit

    target = last_run() if target is None else target
    permit = Permit(kinds=tuple(handler or ()), remote=upload)
    try:
        is_run = (target / MANIFEST).exists()
        if communication is not None and is_run:
            raise OptionError(f"--communication is for traces; of the run {target} its training says it")
        if out is not None and is_run:
            raise OptionError(f"--out is for traces; the page of the run {target} lies in it")
        if target.is_dir() and not is_run:
            page, whole = _folder_page(target, out, communication)
        else:
            page, whole = _trace_page(target, out, communication) if target.is_file() else _run_page(target, permit)
    except OSError as error:  # a disk that is full, or cannot be written to
        raise PerfhooksError(f"{error.filename or target}: {error.strerror or error}") from error
    if page is not None:
        typer.echo(page)
        if show_it:
            typer.launch(page.absolute().as_uri())
    if not whole:
        raise typer.Exit(1)


def _run_page(run: Path, permit: Permit) -> tuple[Path | None, bool]:
    """Finish a run; its page, and whether all of it is whole."""
    from perfhooks import report
    from perfhooks.finishing.leftovers import finish_all
    from perfhooks.progress import working
    from perfhooks.run.manifest import Manifest

    if run.is_dir() and not os.access(run, os.W_OK):
        made = f"; its page is {run / PAGE}" if (run / PAGE).exists() else ""
        raise PerfhooksError(f"{run} cannot be written to: copy it to a folder of your own{made}")
    outcomes = []
    with working(f"finishing {run}"):
        for _, window in groupby(finish_all(run, permit), lambda outcome: outcome.place.folder):
            ranks = list(window)
            outcomes += ranks
            for line, is_problem in _lines(ranks):
                typer.echo(printable(line), err=is_problem)
    if not outcomes:
        typer.echo(f"{run}: no window was recorded")
        return None, True
    with working(f"making the page of {run}"):
        page = report.write(run, remote=permit.remote)
    elsewhere = Manifest.read(run).remote
    if elsewhere is not None and permit.remote is None:
        kept = printable(elsewhere)
        typer.echo(f"the run says that it is kept at {kept}; `--upload {kept}` copies it there", err=True)
    for line in report.headlines(page):
        typer.echo(printable(line))
    return page, not any(outcome.problem for outcome in outcomes)


def _folder_page(folder: Path, out: Path | None, communication: str | None) -> tuple[Path | None, bool]:
    """The page of all traces in a folder, and whether all of them could be read."""
    from perfhooks import report
    from perfhooks.finishing.adoption import adopted
    from perfhooks.progress import counting

    with counting("reading trace") as tell, adopted(folder, communication=communication, tell=tell) as run:
        made = report.write(run.folder, title=folder.resolve().name)
        lines, content = report.headlines(made), made.read_bytes()
    for problem in run.problems:
        typer.echo(f"perfhooks: {printable(problem)}", err=True)
    if str(out) == "-":
        sys.stdout.buffer.write(content)
        return None, not run.problems
    for line in lines:
        typer.echo(printable(line))
    page = folder / PAGE if out is None else out
    write(page, content)
    return page, not run.problems


def _trace_page(trace: Path, out: Path | None, communication: str | None) -> tuple[Path | None, bool]:
    from perfhooks.progress import working
    from perfhooks.report.page import render
    from perfhooks.report.run_data import from_trace

    with working(f"reading {trace}"):
        content = render(from_trace(trace, communication=communication)).encode()
    if str(out) == "-":
        sys.stdout.buffer.write(content)
        return None, True
    page = trace.with_name(f"{trace.name.split('.json')[0]}.{PAGE}") if out is None else out
    write(page, content)
    return page, True


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
