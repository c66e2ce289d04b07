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
    folder: Annotated[Path, typer.Argument(help="Folder that contains runs.")] = Path("perf"),
    *,
    form: Annotated[
        HistoryForm, typer.Option("--format", "-f", help="Format of the standard output.")
    ] = HistoryForm.text,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the chart to this HTML file.", show_default=False)
    ] = None,
) -> None:
    """Draw the step times of all runs of each command, from the oldest to the latest, with their commits.

    Reports lasting changes of the step time, with the runs before and after the change.
    """
    from perfhooks.cli.actions import history

    history.tell(folder, form.value, out)
