"""What lies behind a row of the table of operators: the shapes, lines of source and modules that cost most of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from perfhooks.core import json_values
from perfhooks.trace.names import part_names

if TYPE_CHECKING:
    from collections.abc import Collection

    from perfhooks.trace.window import Tables

_NAMES: Final = 32
"""Of so many operators; the others cost little, and every row here is some hundred bytes of the page."""
_EACH: Final = 3
_GROUPS: Final = {"shapes": "input_shapes", "line": "line", "module": "module"}
_COSTS: Final = ("count", "self_cpu_ms", "self_device_ms")


def behind(tables: Tables, names: Collection[str], *, has_shapes: bool) -> json_values.Columns:
    """Say for each of some operators where most of its own time goes.

    Args:
        tables: The tables of the window.
        names: The operators, what costs most first.
        has_shapes: Whether shapes were recorded.

    Returns:
        Columns: ``name``, ``by`` (``shapes``, ``line``, ``module``), ``what`` and what it costs: the three costliest of
        each kind for each name, in the order of the names. Empty where the trace tells none of them.
    """
    wanted = pl.DataFrame({"name": list(names)[:_NAMES]}, schema={"name": pl.String}).with_row_index("place")
    found = [_of(tables, wanted, by) for by in _GROUPS if by != "shapes" or has_shapes]
    rows = pl.concat(found).sort("place", maintain_order=True).drop("place")
    readable = pl.Series("name", map(part_names.readable, rows["name"]), dtype=pl.String)
    return json_values.columns(rows.with_columns(readable)) if rows.height else {}


def _of(tables: Tables, wanted: pl.DataFrame, by: str) -> pl.DataFrame:
    what = _GROUPS[by]
    table = tables.operators((by,)).filter(pl.col(what).is_not_null() & (pl.col(what) != "[]"))
    return (
        wanted.join(table, on="name", maintain_order="left_right")
        .sort("self_device_ms", "self_cpu_ms", descending=True, nulls_last=True, maintain_order=True)
        .group_by("place", maintain_order=True)
        .head(_EACH)
        .select("place", "name", pl.lit(by).alias("by"), pl.col(what).alias("what"), *_COSTS)
    )
