"""The traces of all ranks of a window, put together and told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from perfhooks.errors import PerfhooksError
from perfhooks.finishing.adoption import adopted
from perfhooks.progress import counting
from perfhooks.ranks import merge as merging
from perfhooks.run.layout import MERGED
from perfhooks.words import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def merge(target: Path, out: Path | None, ranks: str | None) -> bool:
    """Write the merged trace; whether all of the traces are in it."""
    wanted = None if ranks is None else merging.rank_set(ranks)
    try:
        with counting("merging rank") as tell:
            merged = _merge(target, out, wanted, tell)
    except OSError as error:
        raise PerfhooksError(f"the merged trace cannot be written: {error}") from error
    for problem in merged.problems:
        typer.echo(printable(f"perfhooks: {problem}"), err=True)
    typer.echo(printable(merged))
    return not merged.problems


def _merge(
    target: Path, out: Path | None, ranks: set[int] | None, tell: Callable[[int, int], object]
) -> merging.Merged:
    """Merge a window of ours; else the last traces of the ranks whose traces lie in a folder."""
    if not target.is_dir() or merging.is_ours(target):
        return merging.merge(target, out, ranks=ranks, tell=tell)
    with adopted(target) as run:
        path = target / MERGED if out is None else out
        merged = merging.merge(run.folder, path, ranks=ranks, tell=tell, follow_links=True)
    return replace(merged, problems=(*run.problems, *merged.problems))
