"""Compare the ranks of a run: stragglers, waits and bandwidth of collectives.

Only small files of each rank are read, and no traces. A comparison takes seconds for any number of ranks.
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
"""Format of the result of `gather`, with one version so far."""

_MAX_CELLS: Final = 8192
"""Maximum cells (ranks x steps) of a heat map. A larger heat map is omitted, to limit the size of the report."""


def gather(
    run: Path, windows: Sequence[Path] | None = None, cache: SummaryCache | None = None, listing: Listing | None = None
) -> dict[str, Any]:
    """Compare the ranks of a run. Unfinished windows count as missing.

    Returns:
        Plain data. Tables are dictionaries of columns:

        * ``world_size`` (None if unknown) and ``ranks``, all ranks with files;
        * ``windows``, sorted by loop and step: ``name stage first last``, and

          * ``ranks`` (see `steps.of_ranks`) with ``offset_ms`` of each clock, and ``steps`` (see `steps.of_steps`);
          * ``own``: work time of each rank in each step, without waits for other ranks; empty above `_MAX_CELLS`;
          * ``collectives``, one row per kind; ``worst``, the collectives with the longest waits; ``matched`` and
            ``unmatched``, numbers of rows;
          * ``large_bytes``: size of the smallest large collective, see `collectives.large`;
          * ``unprofiled_ms``: unprofiled step time of each rank in ``ranks``, None if unknown;
          * ``host_ahead``: whether the devices need more time than the hosts;
          * ``clocks``: ``error_ms``, ``error_95_ms`` and ``ranks``, the number of aligned ranks;

        * ``frontier``: stragglers over all steps, see `frontier.of_run`;
        * ``missing``: ``window what ranks text`` for each missing rank or window.
    """
    folder = Run.existing(run)
    cache, listing = cache or SummaryCache(), listing or Listing.of(run)
    folders = folder.window_folders() if windows is None else windows
    summaries = [cache.of(window, _summarize) for window in folders if window.is_dir()]
    by_name = {summary.compared["name"]: summary for summary in summaries if summary.ranks}
    died: dict[str, set[int]] = {}
    for place in folder.died_recording(listing):
        died.setdefault(place.folder.name, set()).add(place.rank)
    manifest = folder.manifest()
    nodes, together = (_last_values(by_name.values(), column) for column in ("node", "role"))
    return {
        "format": FORMAT,
        "world_size": manifest.world_size,
        "ranks": sorted(set().union(*(summary.ranks for summary in by_name.values()))),
        "windows": sorted(
            (summary.compared for summary in by_name.values()), key=lambda summary: (summary["stage"], summary["first"])
        ),
        "frontier": frontier.of_run(folder, listing, nodes, together, host_ahead=_is_host_ahead(by_name.values())),
        "missing": missing.of_run(
            {name: set(summary.ranks) for name, summary in by_name.items()},
            {name: (summary.compared["stage"], summary.compared["first"]) for name, summary in by_name.items()},
            files.ranks_asked(listing),
            died,
            trimmed=any(summary.is_trimmed for summary in by_name.values()),
            world_size=manifest.world_size,
            asked=manifest.ranks,
        )
        + [entry for summary in by_name.values() for entry in summary.missing],
    }


def compare(
    name: str, step_tables: Mapping[int, pl.DataFrame], collective_tables: Mapping[int, pl.DataFrame]
) -> dict[str, Any]:
    """Return the input of `findings` from the tables of each rank of one window."""
    return {"windows": [_compare_window(files.of_tables(name, step_tables, collective_tables))]}


def _last_values(summaries: Iterable[WindowSummary], column: str) -> dict[int, Any]:
    tables = [table for summary in summaries if column in (table := summary.compared["ranks"])]
    pairs = (pair for summary in tables for pair in zip(summary["rank"], summary[column], strict=True))
    return {rank: value for rank, value in pairs if value is not None}


def _is_host_ahead(summaries: Iterable[WindowSummary]) -> bool:
    ahead = [bool(summary.compared.get("host_ahead")) for summary in summaries]
    return 2 * sum(ahead) > len(ahead)


def _summarize(folder: Path) -> WindowSummary:
    ranks = {place.rank for place in places_of(folder)}
    if not ranks:
        return WindowSummary(ranks=(), is_trimmed=False, compared={}, missing=())
    window = files.read(folder, ranks)
    return WindowSummary(
        ranks=tuple(sorted(ranks)),
        is_trimmed=any(facts.keep_windows is not None for facts in window.facts.values()),
        compared=_compare_window(window),
        missing=tuple(missing.of_window(window)),
    )


def clocks_of(window: Path) -> Clocks:
    ranks = {place.rank for place in places_of(window)} if window.is_dir() else set()
    if not ranks:
        raise PerfhooksError(f"{window} is not a window of a run: it contains no files of a rank")
    read = files.read(window, ranks)
    return collectives.match(read.collectives, read.clocks).clocks


def _compare_window(window: RankedWindow) -> dict[str, Any]:
    matched = collectives.match(window.collectives, window.clocks)
    split = steps.parts(lost_kernels.without(window), collectives.of_steps(matched))
    valid_steps = steps.complete_steps(split, matched.unsure)
    large = collectives.large(matched)
    rank_table = steps.of_ranks(
        valid_steps,
        large,
        roles.of_ranks(window.facts, window.collectives),
        knows_waits=matched.rows.height > 0,
    )
    by_collective = collectives.by_collective(matched)
    offsets = matched.clocks.offset_ms
    facts = next(iter(window.facts.values()), files.Facts(stage=window.name))
    first = facts.first
    last = max((fact.reached if fact.last is None else fact.last for fact in window.facts.values()), default=first)
    return {
        "name": window.name,
        "stage": facts.stage,
        "first": first,
        "last": last,
        "ranks": _to_columns(_with_nodes(_with_offsets(rank_table, offsets), window)),
        "steps": _to_columns(steps.of_steps(split).head(500)),
        "own": _tabulate_own_work(split),
        "collectives": _to_columns(collectives.kinds(by_collective).head(60)),
        "worst": _to_columns(by_collective.sort("wait_ms", descending=True, nulls_last=True).head(40)),
        "large_bytes": large["bytes"].min(),
        "unprofiled_ms": [window.facts[rank].cost.idle_step_ms for rank in rank_table["rank"]],
        "host_ahead": steps.is_host_ahead(window.steps),
        "matched": matched.rows.height,
        "unmatched": matched.unmatched,
        "clocks": {
            "ranks": len(offsets),
            "error_ms": _round(matched.clocks.error_ms),
            "error_95_ms": _round(matched.clocks.error_95_ms),
        },
    }


def _with_offsets(table: pl.DataFrame, offsets: Any) -> pl.DataFrame:
    offset_table = pl.DataFrame(
        {"rank": list(offsets), "offset_ms": list(offsets.values())}, schema={"rank": pl.Int64, "offset_ms": pl.Float64}
    )
    return table.join(offset_table, on="rank", how="left", maintain_order="left")


def _with_nodes(table: pl.DataFrame, window: RankedWindow) -> pl.DataFrame:
    nodes = [window.facts[rank].node or None for rank in table["rank"]]
    return table if len({*nodes}) <= 1 else table.with_columns(pl.Series("node", nodes, dtype=pl.String))


def _tabulate_own_work(split: pl.DataFrame) -> dict[str, Any]:
    wide = split.sort("step").pivot("step", index="rank", values="own_ms", aggregate_function="first").sort("rank")
    numbers = [None if name == "null" else int(name) for name in wide.columns[1:]]
    if not numbers or wide.height * len(numbers) > _MAX_CELLS:
        return {}
    rows = [[_round(value) for value in row] for row in wide.drop("rank").iter_rows()]
    return {"ranks": wide["rank"].to_list(), "steps": numbers, "own_ms": rows}


def _to_columns(table: pl.DataFrame) -> dict[str, list[Any]]:
    names = [name for name in table.columns if table[name].null_count() < table.height]
    short = table.select(names).with_columns(pl.col(pl.Float64).round_sig_figs(6))
    return {name: short[name].to_list() for name in names}


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
