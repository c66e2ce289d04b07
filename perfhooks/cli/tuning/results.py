from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl
import typer

from perfhooks.cli.tuning.session import describe, lines_of
from perfhooks.cli.turns.revision import git
from perfhooks.cli.turns.supervisor import supervise
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.version import __version__
from perfhooks.core.words import ms
from perfhooks.report import page as report
from perfhooks.report.page import findings_file
from perfhooks.report.page.terminal_tables import draw
from perfhooks.report.page.tuned_file import TunedFile
from perfhooks.run import layout
from perfhooks.run.publishing import publish

if TYPE_CHECKING:
    from perfhooks.cli.tuning.session import Session
    from perfhooks.cli.turns.supervisor import Owner

_PROPOSAL: Final = (
    "Proposed, not measured: keep values on the device, and read them once every many steps, for example with "
    "total.item() or torch.stack(values).tolist():"
)


def tune(session: Session, *, is_written: bool) -> None:
    if is_written:
        _check_clean()
    session.tune()
    if session.run is not None:
        _save(session, session.run)
    _tell(session)
    for line in session.by_hand:
        typer.echo(f"Change by hand: {line}")
    if session.proposal.diff:
        typer.echo(f"{_PROPOSAL}\n\n{session.proposal.diff}")
    if is_written and session.patch.diff:
        _check_clean()
        session.patch.write(Path.cwd())
        typer.echo(f"The patch was written to {', '.join(str(path) for path in session.patch.after)}.")


def _save(session: Session, run: Path) -> None:
    file = TunedFile(
        perfhooks=__version__,
        run=run.name,
        command=list(session.words),
        new_command=session.patch.words,
        is_interrupted=bool(session.interrupted),
        changes=list(session.rows.values()),
        final=session.final,
        patch=session.patch.diff or None,
        proposal=session.proposal.diff or None,
        by_hand=session.by_hand,
    )
    with publish(run / layout.TUNED) as output:
        output.write(findings_file.to_json(file))
    if file.patch:
        with publish(run / layout.TUNED_PATCH) as output:
            output.write(file.patch.encode())
    report.write(run)


def _tell(session: Session) -> None:
    rows = [*session.rows.values(), *([] if session.final is None else [session.final])]
    if rows:
        draw({"changes": pl.DataFrame(list(lines_of(rows)), infer_schema_length=None)}, limit=0)
    kept = [row.name for row in session.rows.values() if row.status == "kept"]
    if session.final is None or not kept:
        nothing = "No change is certainly faster, so nothing is kept."
        if not rows:
            nothing = "No finding of this run has a change that can be tried; --all tries every change."
        elif any(row.status == "faster" for row in rows):
            nothing = "All faster changes together are not certainly faster, so nothing is kept. Increase --minutes."
        elif faster := [row for row in rows if row.outcome == "faster"]:
            nothing = "\n".join(f"{row.name} is faster, but {row.reason}." for row in faster)
        elif any(row.status == "not measured" for row in rows):
            nothing = "The time limit ended the trials before all results, so nothing is kept. Increase --minutes."
        typer.echo(nothing)
        return
    result = f"{describe(session.final)}, saves {ms(session.final.gain_ms or 0.0)} a step"
    typer.echo(f"Kept: {', '.join(kept)}. All together, compared with the original: {result}.")
    if session.patch.new_options:
        typer.echo(f"Change the command: {' '.join(session.patch.words)}")
    if session.patch.diff and session.run is not None:
        typer.echo(f"\n{session.patch.diff}\nApply it: git apply {os.path.relpath(session.run / layout.TUNED_PATCH)}")


def _check_clean() -> None:
    changed = supervise(_changed_files, clean=bool, status=bool, say=bool)
    if changed:
        raise PerfhooksError(f"--write needs a clean git tree; commit or stash first:\n{changed}")


def _changed_files(owner: Owner) -> str:
    try:
        return git(owner, "status", "--porcelain", "--untracked-files=no")
    except PerfhooksError as error:
        raise PerfhooksError(f"--write needs a git repository, so that you can revert the patch: {error}") from error
