from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import typer

from perfhooks.analysis.comparison import baseline, sentences
from perfhooks.analysis.comparison.comparison import compare
from perfhooks.analysis.comparison.difference import TOLERANCE
from perfhooks.analysis.comparison.sources import read
from perfhooks.analysis.comparison.verdict import smallest_detectable
from perfhooks.cli.actions import mirror
from perfhooks.cli.actions.output import write
from perfhooks.cli.targets import run_in
from perfhooks.core.errors import OptionError
from perfhooks.core.progress import show_spinner
from perfhooks.core.words import count, line, printable
from perfhooks.report.comparison import written
from perfhooks.report.comparison.opening import data
from perfhooks.report.comparison.page import render
from perfhooks.report.finishing.adoption import adopted
from perfhooks.run import loose, remote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.analysis.comparison.comparison import Comparison
    from perfhooks.analysis.comparison.side import Side


def share(text: str | None, name: str) -> float:
    if text is None:
        return TOLERANCE
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise OptionError(f"{name} must be a ratio from 0 to 1, for example 2% or 0.02; got {text!r}")
    return value


def compared(sides: Sequence[Sequence[str]], stage: str | None, tolerance: float, *, shares: bool) -> Comparison:
    with show_spinner("comparing"), contextlib.ExitStack() as adoptions:
        a, b = read([[_run(run, adoptions) for run in side] for side in sides], stage)
        return compare(a, b, tolerance=tolerance, shares=shares)


def _run(target: str, adoptions: contextlib.ExitStack) -> Path:
    if remote.is_url(target) and mirror.holds_traces(target):
        return adoptions.enter_context(adopted(target)).folder
    path = mirror.here(target)
    if not path.is_dir() or run_in(path) is not None or not loose.candidates(path):
        return path
    run = adoptions.enter_context(adopted(path))
    for problem in run.problems:
        typer.echo(f"perfhooks: {printable(problem)}", err=True)
    return run.folder


def save(runs: Sequence[str], stage: str | None, path: Path) -> None:
    with show_spinner("reading"), contextlib.ExitStack() as adoptions:
        (side,) = read([[_run(run, adoptions) for run in runs]], stage)
    _warn(side)
    if 0 < len(side.levels) < baseline.FEWEST_RUNS:
        least = sentences.percent(smallest_detectable(side.levels))
        sentence = (
            f"{count(len(side.levels), 'run')} cannot detect changes below {least}: keep {baseline.FEWEST_RUNS} or more"
        )
        typer.echo(f"perfhooks: {sentence}", err=True)
    write(path, baseline.encode(side))
    typer.echo(path)


def _warn(side: Side) -> None:
    for note in side.notes:
        typer.echo(line(f"perfhooks: {note}"), err=True)


def tell(comparison: Comparison, form: Literal["text", "markdown", "json"]) -> None:
    if form == "json":
        sys.stdout.flush()
        sys.stdout.buffer.write(msgspec.json.encode(data(comparison)) + b"\n")
        sys.stdout.flush()
        return
    typer.echo(written.markdown(comparison) if form == "markdown" else written.text(comparison))


def page(comparison: Comparison, out: Path | None, *, show_it: bool) -> None:
    if out is None and not show_it:
        return
    path = out or Path("comparison.html")
    write(path, render(comparison).encode())
    typer.echo(path, err=True)
    if show_it:
        typer.launch(path.absolute().as_uri())
