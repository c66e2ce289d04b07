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
            help="A trace, the folder of a window, of a run (its latest window is used) or of traces, or a URL of "
            "these. Default: the last run below the current folder.",
            show_default=False,
        ),
    ] = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Path of the merged trace. Default: next to the traces.", show_default=False),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option("--ranks", help="Ranks to merge, for example 0,4-7; all by default.", show_default=False),
    ] = None,
    _max_unpacked_mb: Annotated[float | None, MAX_UNPACKED] = None,
) -> None:
    """Merge the traces of all ranks of a window into one trace, for Perfetto (https://ui.perfetto.dev).

    Collectives align the clocks of the ranks, because they end on all ranks at the same time.
    """
    from perfhooks.cli.actions import merge

    if not merge.merge(target, out, ranks):
        raise typer.Exit(1)
