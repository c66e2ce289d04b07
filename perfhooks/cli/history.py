from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

EXAMPLES: Final = "Examples: `perfhooks history perf`; `perfhooks history perf -o history.html`"


class HistoryForm(str, Enum):
    text = "text"
    json = "json"


def command(
    folder: Annotated[Path, typer.Argument(help="A folder that holds runs.")] = Path("perf"),
    *,
    form: Annotated[
        HistoryForm, typer.Option("--format", "-f", help="Form of the standard output.")
    ] = HistoryForm.text,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write a page that draws it.", show_default=False)
    ] = None,
) -> None:
    """Draw the steps of all runs of each command, in the order of time, with their commits.

    Says where the step became longer or shorter and stayed so, and the runs around that.
    """
    from perfhooks.cli.actions import history

    history.tell(folder, form.value, out)
