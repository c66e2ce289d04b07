from __future__ import annotations

import os
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from perfhooks.analysis.ranks.missing import name_ranks
from perfhooks.cli.actions import mirror
from perfhooks.cli.actions.output import write
from perfhooks.core.errors import OptionError, PerfhooksError
from perfhooks.core.progress import show_count, show_spinner
from perfhooks.core.words import printable
from perfhooks.report import page as report
from perfhooks.report.finishing.adoption import adopted
from perfhooks.report.finishing.leftovers import finish_all
from perfhooks.report.handlers.permit import Permit
from perfhooks.report.page.page import render
from perfhooks.report.page.run_data import from_trace
from perfhooks.run import remote
from perfhooks.run.layout import MANIFEST, PAGE
from perfhooks.run.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.report.finishing.leftovers import WindowOutcome

_EACH: Final = 8


def of(
    target: str | None,
    out: Path | None,
    *,
    communication: str | None,
    handlers: Sequence[str],
    upload: str | None,
    on: str | None,
) -> tuple[Path | None, bool]:
    """Write the report. Return the path of the report (None for standard output) and whether the report is complete."""
    is_elsewhere = target is not None and remote.is_url(target)
    if is_elsewhere and target is not None and mirror.holds_traces(target):
        return of_folder(target, out or Path(PAGE), communication, on)
    path = mirror.here(target)
    is_run = (path / MANIFEST).exists()
    for is_given, option, rather in (
        (communication, "communication", "the value set in the training is used"),
        (None if is_elsewhere else out, "out", "its report is in the run folder"),
    ):
        if is_run and is_given is not None:
            raise OptionError(f"--{option} is only for traces, and {path} is a run: {rather}")
    if on is not None and (is_run or not path.is_dir()):
        raise OptionError(f"--on needs a folder of traces, got {path}")
    if is_run or not path.exists():
        return of_run(path, handlers, upload, out)
    if path.is_dir():
        return of_folder(path, out or path / PAGE, communication, on)
    folder = Path() if is_elsewhere else path.parent
    try:
        return of_trace(path, out or folder / f"{path.name.split('.json')[0]}.{PAGE}", communication)
    except PerfhooksError:
        if is_elsewhere:
            mirror.drop(path)
        raise


def of_run(run: Path, handlers: Sequence[str], url: str | None, out: Path | None) -> tuple[Path | None, bool]:
    if run.is_dir() and not os.access(run, os.W_OK):
        hint = f"; its report is {run / PAGE}" if (run / PAGE).exists() else ""
        raise PerfhooksError(f"{run} is not writable: copy it to a folder of your own{hint}")
    outcomes = []
    with show_spinner(f"finishing {run}"):
        for _, window in groupby(
            finish_all(run, Permit(kinds=tuple(handlers), remote=url)), lambda outcome: outcome.place.folder
        ):
            ranks = list(window)
            outcomes += ranks
            for line, is_problem in _lines(ranks):
                typer.echo(printable(line), err=is_problem)
    if not outcomes:
        typer.echo(f"{run}: no window was recorded")
        return None, True
    with show_spinner(f"writing the report of {run}"):
        page = report.write(run, remote=url)
    elsewhere = Manifest.read(run).remote
    if elsewhere is not None and url is None:
        place_text = printable(elsewhere)
        typer.echo(f"the run has a copy at {place_text}; `--upload {place_text}` updates it", err=True)
    for line in report.headlines(page):
        typer.echo(printable(line))
    if out is not None:
        write(out, page.read_bytes())
    return out or page, not any(outcome.problem for outcome in outcomes)


def of_folder(folder: Path | str, out: Path, communication: str | None, on: str | None) -> tuple[Path | None, bool]:
    with show_count("reading trace") as tell, adopted(folder, communication=communication, on=on, tell=tell) as run:
        title = folder.resolve().name if isinstance(folder, Path) else folder.rstrip("/").rpartition("/")[2]
        hint = report.write(run.folder, title=title, unread=run.problems)
        lines, content = report.headlines(hint), hint.read_bytes()
    for problem in run.problems:
        typer.echo(f"perfhooks: {printable(problem)}", err=True)
    return _put(content, out, lines), not run.problems


def of_trace(trace: Path, out: Path, communication: str | None) -> tuple[Path | None, bool]:
    with show_spinner(f"reading {trace}"):
        content = render(from_trace(trace, communication=communication))
    return _put(content, out), True


def _put(content: bytes, out: Path, lines: Sequence[str] = ()) -> Path | None:
    if str(out) == "-":
        sys.stdout.buffer.write(content)
        return None
    for line in lines:
        typer.echo(printable(line))
    write(out, content)
    return out


def _lines(window: Sequence[WindowOutcome]) -> Iterator[tuple[str, bool]]:
    few = len(window) <= _EACH
    alike: dict[tuple[str, int | None], list[WindowOutcome]] = {}
    for outcome in window:
        alike.setdefault((_became(outcome), outcome.place.rank if few else None), []).append(outcome)
    for (became, _), outcomes in alike.items():
        ranks = [outcome.place.rank for outcome in outcomes]
        headline = outcomes[0].capture.line if outcomes[0].capture else ""
        of_one = f"rank {ranks[0]}: " if headline and len(ranks) > 1 else ""
        line = (
            f"{window[0].place.folder.name} {name_ranks(ranks)}: {became}{': ' if headline else ''}{of_one}{headline}"
        )
        yield line, bool(outcomes[0].problem)


def _became(outcome: WindowOutcome) -> str:
    if outcome.capture is None:
        return outcome.problem
    partial = f", partial ({outcome.capture.partial})" if outcome.capture.partial else ""
    return f"{'finished now' if outcome.finished_now else 'finished'}{partial}"
