"""What the ranks of a run say together: who is slow and in what, who waits for whom, how fast they communicate.

It is read from the small files that each rank's worker left, never from a trace: so it takes seconds for any number of
ranks. Nothing of this runs in a training, and no rank ever waits for another because of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from perfhooks.analysis.ranks import collectives, files, frontier, lost_kernels, missing, roles, steps
from perfhooks.analysis.ranks.findings import findings
from perfhooks.analysis.ranks.known import SummaryCache, WindowSummary
from perfhooks.core.errors import PerfhooksError
from perfhooks.run.folder import Run, places_of
from perfhooks.run.layout import Listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from perfhooks.analysis.ranks.clocks import Clocks
    from perfhooks.analysis.ranks.files import RankedWindow

__all__ = ["FORMAT", "clocks_of", "compare", "findings", "gather"]

FORMAT: Final = 1
"""Of what `gather` gives. 1: the first."""

_STEPS: Final = 500
_KINDS: Final = 60
_WORST: Final = 40
_CELLS: Final = 8192
"""Maximum number of cells in the table of own work by rank and step."""
_DIGITS: Final = 6


def gather(
    run: Path, windows: Sequence[Path] | None = None, known: SummaryCache | None = None, seen: Listing | None = None
) -> dict[str, Any]:
    """Compare the ranks of a run.

    Args:
        run: A run folder. What waits to be finished counts as missing.
        windows: The folders of the windows to compare; None takes all.
        known: What was said of windows before, which is then taken from there.
        seen: What is in its folder, if somebody has looked.

    Returns:
        Plain data, of which tables are columns:

        * ``world_size`` (None where it is not known) and ``ranks``, those that recorded anything;
        * ``windows`` by stage and step: ``name stage first last``, and

          * ``ranks``: one row for each rank, see `steps.of_ranks`, and ``offset_ms`` of its clock;
          * ``steps``: one row for each step, see `steps.of_steps`;
          * ``own``: ``ranks``, ``steps`` and ``own_ms``, a row for each rank with the own work of each step, as long
            as there are not too many;
          * ``collectives``: one row for each kind, see `collectives.kinds`; ``worst``: those that were waited for
            longest, see `collectives.by_collective`; ``matched`` and ``unmatched``: how many rows of the ranks have
            partners;
          * ``clocks``: ``error_ms``, ``error_95_ms`` and ``ranks``, the number of those that could be compared;

        * ``frontier``: who made the others wait at all steps, see `frontier.of_run`;
        * ``missing``: ``window what ranks text``, for each thing that is not there.

    Raises:
        PerfhooksError: It is no run folder.
    """
    folder = Run.existing(run)
    known, seen = known or SummaryCache(), seen or Listing.of(run)
    folders = folder.window_folders() if windows is None else windows
    found = [known.of(each, _told) for each in folders if each.is_dir()]  # an old one may just have been deleted
    told = {each.compared["name"]: each for each in found if each.ranks}
    died: dict[str, set[int]] = {}
    for place in folder.died_recording(seen):
        died.setdefault(place.folder.name, set()).add(place.rank)
    manifest = folder.manifest()
    nodes, together = (_said_of_ranks(told.values(), column) for column in ("node", "role"))
    return {
        "format": FORMAT,
        "world_size": manifest.world_size,
        "ranks": sorted(set().union(*(each.ranks for each in told.values()))),
        "windows": sorted((each.compared for each in told.values()), key=lambda each: (each["stage"], each["first"])),
        "frontier": frontier.of_run(folder, seen, nodes, together),
        "missing": missing.of_run(
            {name: set(each.ranks) for name, each in told.items()},
            {name: (each.compared["stage"], each.compared["first"]) for name, each in told.items()},
            files.began(seen),
            died,
            trimmed=any(each.is_trimmed for each in told.values()),
            world_size=manifest.world_size,
            asked=manifest.ranks,
        )
        + [entry for each in told.values() for entry in each.missing],
    }


def compare(
    name: str, step_tables: Mapping[int, pl.DataFrame], collective_tables: Mapping[int, pl.DataFrame]
) -> dict[str, Any]:
    """Compare the ranks of one window by their tables, without a run folder.

    Args:
        name: Name of the window.
        step_tables: The step table of each rank.
        collective_tables: The table of `perfhooks.report.handlers.collectives.rows` of each rank.

    Returns:
        Data for `findings`.
    """
    return {"windows": [_compared(files.of_tables(name, step_tables, collective_tables))]}


def _said_of_ranks(told: Iterable[WindowSummary], column: str) -> dict[int, Any]:
    """What the windows say of each rank, the last one that does."""
    tables = [table for each in told if column in (table := each.compared["ranks"])]
    pairs = (pair for each in tables for pair in zip(each["rank"], each[column], strict=True))
    return {rank: value for rank, value in pairs if value is not None}


def _told(folder: Path) -> WindowSummary:
    """What the ranks say of one window; nothing of a folder that is none."""
    ranks = {place.rank for place in places_of(folder)}
    if not ranks:
        return WindowSummary(ranks=(), is_trimmed=False, compared={}, missing=())
    window = files.read(folder, ranks)
    return WindowSummary(
        ranks=tuple(sorted(ranks)),
        is_trimmed=any(facts.keep_windows is not None for facts in window.facts.values()),
        compared=_compared(window),
        missing=tuple(missing.of_window(window)),
    )


def clocks_of(window: Path) -> Clocks:
    """How the clocks of the ranks of one window differ, as far as they had collectives to be compared by.

    Args:
        window: A window's folder.

    Raises:
        PerfhooksError: It is no window.
    """
    ranks = {place.rank for place in places_of(window)} if window.is_dir() else set()
    if not ranks:
        raise PerfhooksError(f"{window} is no window of a run: no rank left anything in it")
    read = files.read(window, ranks)
    return collectives.match(read.collectives, read.clocks).clocks


def _compared(window: RankedWindow) -> dict[str, Any]:
    matched = collectives.match(window.collectives, window.clocks)
    split = steps.parts(lost_kernels.without(window), collectives.of_steps(matched))
    judged = steps.whole(split, matched.unsure)
    compared = steps.of_ranks(judged, roles.of_ranks(window.facts, window.collectives))
    met = collectives.by_collective(matched)
    offsets = matched.clocks.offset_ms
    facts = next(iter(window.facts.values()), files.Facts(stage=window.name))
    first = facts.first
    last = max((fact.reached if fact.last is None else fact.last for fact in window.facts.values()), default=first)
    return {
        "name": window.name,
        "stage": facts.stage,
        "first": first,
        "last": last,
        "ranks": _columns(_with_nodes(_with_offsets(compared, offsets), window)),
        "steps": _columns(steps.of_steps(split).head(_STEPS)),
        "own": _own(split),
        "collectives": _columns(collectives.kinds(met).head(_KINDS)),
        "worst": _columns(met.sort("wait_ms", descending=True, nulls_last=True).head(_WORST)),
        "matched": matched.rows.height,
        "unmatched": matched.unmatched,
        "clocks": {
            "ranks": len(offsets),
            "error_ms": _short(matched.clocks.error_ms),
            "error_95_ms": _short(matched.clocks.error_95_ms),
        },
    }


def _with_offsets(table: pl.DataFrame, offsets: Any) -> pl.DataFrame:
    known = pl.DataFrame(
        {"rank": list(offsets), "offset_ms": list(offsets.values())}, schema={"rank": pl.Int64, "offset_ms": pl.Float64}
    )
    return table.join(known, on="rank", how="left", maintain_order="left")


def _with_nodes(table: pl.DataFrame, window: RankedWindow) -> pl.DataFrame:
    """The machine of each rank, where there are several."""
    nodes = [window.facts[rank].node or None for rank in table["rank"]]
    return table if len({*nodes}) <= 1 else table.with_columns(pl.Series("node", nodes, dtype=pl.String))


def _own(split: pl.DataFrame) -> dict[str, Any]:
    """The own work of each rank in each step, as a table of both; None where a rank has no such step."""
    wide = split.sort("step").pivot("step", index="rank", values="own_ms", aggregate_function="first").sort("rank")
    numbers = [None if name == "null" else int(name) for name in wide.columns[1:]]
    if not numbers or wide.height * len(numbers) > _CELLS:
        return {}
    rows = [[_short(value) for value in row] for row in wide.drop("rank").iter_rows()]
    return {"ranks": wide["rank"].to_list(), "steps": numbers, "own_ms": rows}


def _columns(table: pl.DataFrame) -> dict[str, list[Any]]:
    """A table as lists, without columns in which nothing is known."""
    known = [name for name in table.columns if table[name].null_count() < table.height]
    short = table.select(known).with_columns(pl.col(pl.Float64).round_sig_figs(_DIGITS))
    return {name: short[name].to_list() for name in known}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")
