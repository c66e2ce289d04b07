from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from perfhooks.cli.trace_options import MAX_UNPACKED

EXAMPLES: Final = (
    "Examples: `perfhooks merge perf/latest`; `perfhooks merge perf/latest/train-000012-000014 --ranks 0,4-7`"
)


def command(
    target: Annotated[
        str | None,
        typer.Argument(
            help="A trace, or the folder of a window, of a run (its latest window), or of traces, or its URL; the last "
            "run below this folder by default.",
            show_default=False,
        ),
    ] = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write; beside the traces if not given.", show_default=False),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option("--ranks", help="Only these, such as 0,4-7; all if not given.", show_default=False)
    ] = None,
    _max_unpacked_mb: Annotated[float | None, MAX_UNPACKED] = None,
) -> None:
    """Put the traces of all ranks of a window side by side into one, for Perfetto (https://ui.perfetto.dev).

    Clocks are brought together where ranks met in a collective.
    """
    from perfhooks.cli.actions import merge

    if not merge.merge(target, out, ranks):
        raise typer.Exit(1)
