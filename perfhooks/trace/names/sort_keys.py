"""Sort keys of tables: names of columns, and the keys of torch's ``key_averages().table(sort_by=...)``."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from perfhooks.core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import polars as pl

_DEVICES: Final = ("cuda", "xpu", "privateuse1", "hip", "mtia")

_OPERATORS: Final = {
    "cpu_time_total": "cpu_ms",
    "self_cpu_time_total": "self_cpu_ms",
    "device_time_total": "device_ms",
    "self_device_time_total": "self_device_ms",
    "cpu_memory_usage": "cpu_bytes",
    "self_cpu_memory_usage": "self_cpu_bytes",
    "device_memory_usage": "device_bytes",
    "self_device_memory_usage": "self_device_bytes",
}
_CALLS: Final = {
    "cpu_time_total": "total_ms",
    "self_cpu_time_total": "self_ms",
    "cpu_time": "mean_ms",
    "count": "calls",
}

_TORCH_KEYS: Final[dict[str, dict[str, str]]] = {
    "operators": _OPERATORS | {"cpu_time": "cpu_ms / count", "device_time": "device_ms / count"},
    "labels": _CALLS | {"device_time_total": "device_ms", "device_time": "device_ms / calls"},
    "functions": _CALLS,
    "kernels": {"device_time_total": "total_ms", "self_device_time_total": "total_ms", "device_time": "mean_ms"},
}
"""Columns for the sort keys of torch, for each table. A mean is a column divided by the number of calls."""


_RATES: Final = ("tflops_per_s", "gb_per_s", "flops_per_byte", "limit_percent", "limit")

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "operators": (
        *("name", "kind", "count", "self_cpu_ms", "cpu_ms", "exclusive_cpu_ms", "self_device_ms", "device_ms"),
        *("self_cpu_bytes", "cpu_bytes", "self_device_bytes", "device_bytes", "flops"),
        *_RATES,
    ),
    "labels": ("name", "own", "calls", "total_ms", "mean_ms", "self_ms", "percent", "device_ms"),
    "functions": ("function", "calls", "self_ms", "total_ms", "mean_ms", "file", "line"),
    "kernels": (
        *("device", "name", "class", "count", "total_ms", "mean_ms", "min_ms", "max_ms", "occupancy_percent"),
        *("gap_before_ms", "gap_after_ms", "operators"),
        *_RATES,
    ),
}
"""Columns of each table, repeated here because a handler must not import polars."""


def check(name: str, key: str, columns: Iterable[str] = ()) -> str:
    """Return the column of a sort key, or a quotient such as ``cpu_ms / count``; raises OptionError."""
    own_columns = tuple(columns) or COLUMNS[name]
    by_key = {**_TORCH_KEYS.get(name, {}), **dict(zip(own_columns, own_columns, strict=True))}
    torch_key = str(key)
    for device in _DEVICES:
        torch_key = torch_key.replace(device, "device")
    if torch_key not in by_key:
        matches = difflib.get_close_matches(torch_key, by_key, n=1)
        hint = f"; did you mean {matches[0]!r}?" if matches else ""
        raise OptionError(f"the table {name!r} can be sorted by {', '.join(by_key)}, got {key!r}{hint}")
    return by_key[torch_key]


def ordered(name: str, table: pl.DataFrame, key: str) -> pl.DataFrame:
    column, _, count = check(name, key, table.columns).partition(" / ")
    values = table[column] / table[count] if count else table[column]
    order = {"descending": values.dtype.is_numeric(), "nulls_last": True, "maintain_order": True}
    return table.with_columns(values.alias("")).sort("", **order).drop("")
