from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from perfhooks.core import json_values
from perfhooks.run import layout
from perfhooks.run.layout import Listing
from perfhooks.run.live import slow_steps
from perfhooks.run.live.slow_causes import CHANCE_CAUSES, RANKS, UNKNOWN
from perfhooks.run.live.slow_steps import LINE_NUMBER, SlowStep
from perfhooks.run.reading import LARGEST_TABLE, is_plain

if TYPE_CHECKING:
    from pathlib import Path

_LEAST: Final = 16 << 10
"""Minimum bytes to read of each rank: about its last 100 slow steps."""
_SCHEMA: Final = {
    "rank": pl.Int64,
    **dict.fromkeys(("stage", "cause", "line"), pl.String),
    **dict.fromkeys(("step", "switches", "faults", "alloc_retries"), pl.Int64),
    **dict.fromkeys(("wall_ms", "times_median", "explained_ms", "data_ms", "gc_ms", "cpu_share"), pl.Float64),
}


def table(run: Path | None) -> pl.DataFrame:
    """Return the slow steps of all ranks, the longest first."""
    return _read_table(run)[0]


def gather(run: Path, steps: int | None, listing: Listing | None = None) -> dict[str, Any] | None:
    """Return the slow steps for the report. ``steps`` is the number of all steps.

    A step that is slow on several ranks counts once. Known causes have priority over a wait for other ranks.
    """
    rows, is_cut = _read_table(run, listing)
    if not rows.height:
        return None
    waits = pl.col("cause").is_in([RANKS, UNKNOWN])
    by_step = rows.sort(waits, maintain_order=True).group_by("stage", "step")
    slow = by_step.agg(pl.col("cause").first(), pl.col("wall_ms").max())
    causes = slow["cause"].value_counts(sort=True).sort("count", "cause", descending=[True, False]).head(16)
    ranks = rows["rank"].n_unique()
    return {
        "rows": json_values.columns(rows if ranks > 1 else rows.drop("rank"), 200),
        "rows_count": rows.height,
        "count": slow.height,
        "wall_ms": json_values.number(slow["wall_ms"].sum()),
        "causes": {json_values.text(name): count for name, count in causes.iter_rows()},
        "ranks": ranks,
        **({"steps": steps} if steps is not None and steps >= slow.height else {}),
        **({"is_cut": True} if is_cut else {}),
    }


def _read_table(run: Path | None, listing: Listing | None = None) -> tuple[pl.DataFrame, bool]:
    files = {} if run is None else _files(run, listing or Listing.of(run))
    max_bytes = max(LARGEST_TABLE // max(len(files), 1), _LEAST)
    columns: dict[str, list[Any]] = {name: [] for name in ("rank", *SlowStep._fields)}
    is_cut = False
    for rank, path in files.items():
        is_cut |= path.lstat().st_size > max_bytes
        for row in slow_steps.read(path, max_bytes):
            for name, value in zip(columns, (rank, *row), strict=True):
                columns[name].append(value)
    rows = _unify_causes(pl.DataFrame(columns, schema={name: _SCHEMA[name] for name in columns}))
    return rows.sort("wall_ms", "rank", "step", descending=[True, False, False]), is_cut


def _unify_causes(table: pl.DataFrame) -> pl.DataFrame:
    is_by_chance = pl.col("cause").is_in([*CHANCE_CAUSES, RANKS])
    is_script = pl.col("line").str.starts_with("<module>")
    function = pl.when(is_script).then("line").otherwise(pl.col("line").str.replace(LINE_NUMBER, ")"))
    rows = table.with_columns(function=function)
    named = rows.filter(~is_by_chance & (pl.col("cause") != UNKNOWN) & (pl.col("line") != ""))
    times = named.group_by("function", pl.col("cause").alias("common")).agg(pl.col("wall_ms").sum().alias("time"))
    largest = times.sort("time", "common", descending=[True, False]).unique("function", keep="first")
    joined = rows.join(largest, on="function", how="left", maintain_order="left")
    cause = pl.when(is_by_chance | pl.col("common").is_null()).then("cause").otherwise("common").alias("cause")
    return joined.with_columns(cause).select(table.columns)


def _files(run: Path, listing: Listing) -> dict[int, Path]:
    paths = {rank: run / name for rank, name in layout.slow_steps.ranks(listing.files).items()}
    return {rank: path for rank, path in paths.items() if is_plain(path)}
