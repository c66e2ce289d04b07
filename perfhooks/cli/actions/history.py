from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
import typer

from perfhooks.analysis.comparison import history
from perfhooks.cli.actions.output import write
from perfhooks.report.page.page import document

if TYPE_CHECKING:
    from pathlib import Path


def tell(folder: Path, form: Literal["text", "json"], out: Path | None) -> None:
    histories, skipped = history.read(folder)
    content = history.data(histories, skipped)
    typer.echo(msgspec.json.encode(content).decode() if form == "json" else history.text(histories, skipped))
    if out is not None:
        write(out, document("perfhooks history", content, {}, ["history.js"]).encode())
        typer.echo(out, err=True)
