from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfhooks.analysis.ranks import merge as merging
from perfhooks.cli.actions import mirror
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.progress import show_count
from perfhooks.core.words import printable
from perfhooks.report.finishing.adoption import adopted
from perfhooks.run import remote
from perfhooks.run.finished import FinishedRun
from perfhooks.run.layout import MANIFEST, MERGED

if TYPE_CHECKING:
    from collections.abc import Callable


def merge(said: str | None, out: Path | None, ranks: str | None) -> bool:
    if said is not None and remote.is_url(said):
        target, out = _brought(said), out or Path(MERGED)
    else:
        target = mirror.here(said)
    rank_numbers = None if ranks is None else merging.rank_set(ranks)
    with show_count("merging rank") as tell:
        merged = _merge(target, out, rank_numbers, tell)
    for problem in merged.problems:
        typer.echo(printable(f"perfhooks: {problem}"), err=True)
    typer.echo(printable(merged))
    return not merged.problems


def _brought(url: str) -> Path:
    if mirror.holds_traces(url):
        return mirror.here(url, traces=True)
    target = mirror.here(url)
    last = FinishedRun(target).last() if (target / MANIFEST).exists() else None
    window = target if last is None else last.folder
    mirror.bring(window)
    return window


def _merge(
    target: Path, out: Path | None, ranks: set[int] | None, tell: Callable[[int, int], object]
) -> merging.Merged:
    if not target.exists() or (target.is_dir() and merging.is_ours(target)):
        return merging.merge(target, out, ranks=ranks, tell=tell)
    with adopted(target) as run:
        path = (target if target.is_dir() else target.parent) / MERGED if out is None else out
        ranked = [window for window, traces in run.windows if traces[0].rank is not None]
        if not ranked and len(run.windows) > 1:
            raise PerfhooksError(f"the traces in {target} have no ranks: name them rank0.json, rank1.json and so on")
        unknown = [traces[0].name for _, traces in run.windows if ranked and traces[0].rank is None]
        merged = merging.merge((ranked or [run.folder])[-1], path, ranks=ranks, tell=tell, follow_links=True)
    left_out = [f"{name} has no rank, so it is not in the merged trace" for name in unknown]
    return replace(merged, problems=(*run.problems, *left_out, *merged.problems))
