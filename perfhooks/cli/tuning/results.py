from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import typer

from perfhooks.cli.tuning.session import Session, describe, lines_of
from perfhooks.cli.turns.revision import git
from perfhooks.cli.turns.supervisor import supervise
from perfhooks.core.errors import OptionError, PerfhooksError
from perfhooks.core.version import __version__
from perfhooks.core.words import ms
from perfhooks.report import page as report
from perfhooks.report.page import tuned_file
from perfhooks.report.page.terminal_tables import draw
from perfhooks.report.page.tuned_file import TunedFile
from perfhooks.run import layout
from perfhooks.run.publishing import publish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.cli.turns.supervisor import Owner


def tuned(
    words: Sequence[str],
    *,
    minutes: float,
    all_changes: bool,
    is_numeric_allowed: bool,
    is_copied: bool,
    is_written: bool,
    out: str | None,
) -> int:
    """Return the signal that interrupted the trials, or 0."""
    if not 0 < minutes < float("inf"):
        raise OptionError(f"minutes must be a number above 0, got {minutes:g}")
    if is_written:
        _check_clean()
    session = Session(
        words=words,
        ends=time.monotonic() + 60 * minutes,
        is_numeric_allowed=is_numeric_allowed,
        all_changes=all_changes,
        is_copied=is_copied,
        out=out,
        say=functools.partial(typer.echo, err=True),
    )
    session.tune()
    if session.run is not None:
        _save(session, session.run)
    _tell(session)
    if is_written and session.patch is not None and session.patch.diff:
        _check_clean()
        session.patch.write(Path.cwd())
        typer.echo(f"The patch was written to {', '.join(str(path) for path in session.patch.after)}.")
    return session.interrupted


def _save(session: Session, run: Path) -> None:
    patch = session.patch
    file = TunedFile(
        perfhooks=__version__,
        run=run.name,
        command=list(session.words),
        new_command=list(session.words if patch is None else patch.words),
        is_interrupted=bool(session.interrupted),
        changes=list(session.rows.values()),
        final=session.final,
        patch=patch.diff if patch is not None and patch.diff else None,
        by_hand=[] if patch is None else patch.by_hand,
    )
    with publish(run / layout.TUNED) as output:
        output.write(tuned_file.to_json(file))
    if file.patch:
        with publish(run / layout.TUNED_PATCH) as output:
            output.write(file.patch.encode())
    report.write(run)


def _tell(session: Session) -> None:
    rows = [*session.rows.values(), *([] if session.final is None else [session.final])]
    if rows:
        draw({"changes": pl.DataFrame(list(lines_of(rows)), infer_schema_length=None)}, limit=0)
    kept = [row.name for row in session.rows.values() if row.status == "kept"]
    final, patch = session.final, session.patch
    if final is None or patch is None or not kept:
        nothing = "No change is certainly faster, so nothing is kept."
        if not rows:
            nothing = "No finding of this run has a change that can be tried; --all tries every change."
        elif any(row.status == "faster" for row in rows):
            nothing = "All faster changes together are not certainly faster, so nothing is kept. Increase --minutes."
        typer.echo(nothing)
        return
    result = f"{describe(final)}, saves {ms(final.gain_ms or 0.0)} a step"
    typer.echo(f"Kept: {', '.join(kept)}. All together, compared with the original: {result}.")
    if patch.new_options:
        typer.echo(f"Change the command: {' '.join(patch.words)}")
    for line in dict.fromkeys(patch.by_hand):
        typer.echo(f"Change by hand: {line}")
    if patch.diff and session.run is not None:
        typer.echo(f"\n{patch.diff}\nApply it: git apply {_relative(session.run / layout.TUNED_PATCH)}")


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _check_clean() -> None:
    changed = supervise(_changed_files, clean=bool, status=bool, say=bool)
    if changed:
        raise PerfhooksError(f"--write needs a clean git tree; commit or stash first:\n{changed}")


def _changed_files(owner: Owner) -> str:
    try:
        return git(owner, "status", "--porcelain", "--untracked-files=no")
    except PerfhooksError as error:
        raise PerfhooksError(f"--write needs a git repository, so that you can revert the patch: {error}") from error
