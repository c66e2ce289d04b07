"""``perfhooks merge``: the traces of all ranks of a window, side by side in one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from perfhooks.command.limits import MAX_UNPACKED
from perfhooks.command.targets import last_run
from perfhooks.errors import PerfhooksError
from perfhooks.progress import counting
from perfhooks.run.layout import MERGED
from perfhooks.words import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.ranks import merge as merging

EXAMPLES: Final = (
    "Examples: `perfhooks merge perf/latest`; `perfhooks merge perf/latest/train-000012-000014 --ranks 0,4-7`"
)
"""What ``--help`` ends with."""


def command(
    target: Annotated[
        Path | None,
        typer.Argument(
            help="The folder of a window, of a run (its latest window), or of traces; the last run below here if not "
            "given.",
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
    from perfhooks.ranks import merge as merging

    target = last_run() if target is None else target
    wanted = None if ranks is None else merging.rank_set(ranks)
    try:
        with counting("merging rank") as tell:
            merged = _merge(target, out, wanted, tell)
    except OSError as error:
        raise PerfhooksError(f"the merged trace cannot be written: {error}") from error
    for problem in merged.problems:
        typer.echo(printable(f"perfhooks: {problem}"), err=True)
    typer.echo(printable(merged))
    if merged.problems:
        raise typer.Exit(1)


def _merge(
    target: Path, out: Path | None, ranks: set[int] | None, tell: Callable[[int, int], object]
) -> merging.Merged:
    """Merge a window of ours; else the last traces of the ranks whose traces lie in a folder."""
    from perfhooks.ranks import merge as merging

    if not target.is_dir() or merging.is_ours(target):
        return merging.merge(target, out, ranks=ranks, tell=tell)
    from perfhooks.finishing.adoption import adopted

    with adopted(target) as run:
        path = target / MERGED if out is None else out
        merged = merging.merge(run.folder, path, ranks=ranks, tell=tell, follow_links=True)
    return replace(merged, problems=(*run.problems, *merged.problems))
