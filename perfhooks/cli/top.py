from __future__ import annotations

from typing import Annotated, Final

import typer

EXAMPLES: Final = """Examples:

- `perfhooks top perf/latest`
- `perfhooks top perf/latest | tee top.log`
"""


def command(
    target: Annotated[
        str | None,
        typer.Argument(
            help="The folder of a run, such as perf/latest, or its URL; the last run below this folder by default.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Watch a run: its pace, its slow steps and ranks, and its windows, redrawn each second; of an ended one the end.

    Reads files only, so it runs on any machine that sees the folder. q or Ctrl-C quits, c records the next 3 steps.
    Without a terminal it prints a line for each change, at most one a second, until the run has ended.
    """
    from perfhooks.cli.actions import top

    top.top(target)
