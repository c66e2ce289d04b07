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
            help="Run folder, for example perf/latest, or its URL. Default: the last run below the current folder.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show a running job: step times, slow steps, ranks and windows. The display is updated every second.

    The command works on any machine with access to the folder. If the run has ended, the last state is shown. q or
    Ctrl-C quits, c records the next 3 steps. Without a terminal, the command prints a line for each change, at most one
    per second, until the run has ended.
    """
    from perfhooks.cli.actions import top

    top.top(target)
