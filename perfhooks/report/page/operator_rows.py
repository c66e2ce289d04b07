from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from perfhooks.core import json_values
from perfhooks.trace.names import part_names

if TYPE_CHECKING:
    from collections.abc import Collection

    from perfhooks.trace.window import Tables

_GROUPS: Final = {"shapes": "input_shapes", "line": "line", "module": "module"}
_COSTS: Final = ("count", "self_cpu_ms", "self_device_ms")


def behind(tables: Tables, names: Collection[str], *, has_shapes: bool) -> json_values.Columns:
    """Return for each operator up to three shapes, lines and modules with the most self time."""
    selection = pl.DataFrame({"name": list(names)[:32]}, schema={"name": pl.String}).with_row_index("place")
    groups = [_costliest(tables, selection, by) for by in _GROUPS if by != "shapes" or has_shapes]
    rows = pl.concat(groups).sort("place", maintain_order=True).drop("place")
    readable = pl.Series("name", map(part_names.readable, rows["name"]), dtype=pl.String)
    return json_values.columns(rows.with_columns(readable)) if rows.height else {}


def _costliest(tables: Tables, selection: pl.DataFrame, by: str) -> pl.DataFrame:
    what = _GROUPS[by]
    table = tables.operators((by,)).filter(pl.col(what).is_not_null() & (pl.col(what) != "[]"))
    return (
        selection.join(table, on="name", maintain_order="left_right")
        .sort("self_device_ms", "self_cpu_ms", descending=True, nulls_last=True, maintain_order=True)
        .group_by("place", maintain_order=True)
        .head(3)
        .select("place", "name", pl.lit(by).alias("by"), pl.col(what).alias("what"), *_COSTS)
    )
