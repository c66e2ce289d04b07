"""The slow steps of a run: those of all ranks in one table, and what the page says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from perfhooks.core import json_values
from perfhooks.run import layout
from perfhooks.run.layout import Listing
from perfhooks.run.live import slow_steps
from perfhooks.run.live.slow_causes import LUCKY, RANKS, UNKNOWN
from perfhooks.run.live.slow_steps import SlowStep
from perfhooks.run.reading import is_plain

if TYPE_CHECKING:
    from pathlib import Path

_BUDGET: Final = 16 << 20
"""Bytes that are read of all ranks: 10^5 rows, a second."""
_LEAST: Final = 16 << 10
"""Bytes that are read of each rank at least: its last 100 slow steps."""
_ROWS: Final = 200
"""Rows on a page, the longest steps: nobody reads more, and they have 30 kB."""
_CAUSES: Final = 16
"""Causes that are named: there are fifteen, and a file may say anything."""
_LINE_NUMBER: Final = r":\d+\)$"
_SCHEMA: Final = {
    "rank": pl.Int64,
    **dict.fromkeys(("stage", "cause", "line"), pl.String),
    **dict.fromkeys(("step", "switches", "faults", "alloc_retries"), pl.Int64),
    **dict.fromkeys(("wall_ms", "times_median", "explained_ms", "data_ms", "gc_ms", "cpu_share"), pl.Float64),
}


def table(run: Path | None) -> pl.DataFrame:
    """The slow steps of all ranks, the longest first: ``rank``, and the columns of ``rank0.slow.csv``.

    Args:
        run: A run folder; one in which no step was slow, or none at all, has no rows.
    """
    return _table(run)[0]


def gather(run: Path, steps: int | None, seen: Listing | None = None) -> dict[str, Any] | None:
    """What the page says of them; None where no step was slow.

    Args:
        run: A run folder.
        steps: How many steps it has in all; None where that is not known.
        seen: What is in its folder, if somebody has looked.

    Returns:
        Plain data in the form of `perfhooks.report.page.data.SlowStepsPart`. A step that was slow on several ranks
        counts once: for as long as it took where it took longest, and for the cause of a rank that did not only wait
        for others.
    """
    found, is_cut = _table(run, seen)
    if not found.height:
        return None
    waits = pl.col("cause").is_in([RANKS, UNKNOWN])
    by_step = found.sort(waits, maintain_order=True).group_by("stage", "step")
    slow = by_step.agg(pl.col("cause").first(), pl.col("wall_ms").max())
    causes = slow["cause"].value_counts(sort=True).sort("count", "cause", descending=[True, False]).head(_CAUSES)
    several = found["rank"].n_unique()
    return {
        "rows": json_values.columns(found if several > 1 else found.drop("rank"), _ROWS),
        "rows_count": found.height,
        "count": slow.height,
        "wall_ms": json_values.number(slow["wall_ms"].sum()),
        "causes": {json_values.text(name): count for name, count in causes.iter_rows()},
        "ranks": several,
        **({"steps": steps} if steps is not None and steps >= slow.height else {}),
        **({"is_cut": True} if is_cut else {}),
    }


def _table(run: Path | None, seen: Listing | None = None) -> tuple[pl.DataFrame, bool]:
    """The table, and whether early rows of it were not read."""
    files = {} if run is None else _files(run, seen or Listing.of(run))
    most = max(_BUDGET // max(len(files), 1), _LEAST)
    columns: dict[str, list[Any]] = {name: [] for name in ("rank", *SlowStep._fields)}
    is_cut = False
    for rank, path in files.items():
        is_cut |= path.lstat().st_size > most
        for row in slow_steps.read(path, most):
            for name, value in zip(columns, (rank, *row), strict=True):
                columns[name].append(value)
    made = _with_one_name(pl.DataFrame(columns, schema={name: _SCHEMA[name] for name in columns}))
    return made.sort("wall_ms", "rank", "step", descending=[True, False, False]), is_cut


def _with_one_name(table: pl.DataFrame) -> pl.DataFrame:
    """Give all slow steps of one function the cause that most of their time has, other than one by chance.

    The first of them were named when little of the function had been seen.
    """
    is_by_chance = pl.col("cause").is_in([*LUCKY, RANKS])
    is_script = pl.col("line").str.starts_with("<module>")
    function = pl.when(is_script).then("line").otherwise(pl.col("line").str.replace(_LINE_NUMBER, ")"))
    rows = table.with_columns(function=function)
    named = rows.filter(~is_by_chance & (pl.col("cause") != UNKNOWN) & (pl.col("line") != ""))
    spent = named.group_by("function", pl.col("cause").alias("common")).agg(pl.col("wall_ms").sum().alias("spent"))
    most = spent.sort("spent", "common", descending=[True, False]).unique("function", keep="first")
    joined = rows.join(most, on="function", how="left", maintain_order="left")
    cause = pl.when(is_by_chance | pl.col("common").is_null()).then("cause").otherwise("common").alias("cause")
    return joined.with_columns(cause).select(table.columns)


def _files(run: Path, seen: Listing) -> dict[int, Path]:
    """The file of each rank that has slow steps."""
    paths = {rank: run / name for rank, name in layout.slow_steps.ranks(seen.files).items()}
    return {rank: path for rank, path in paths.items() if is_plain(path)}
