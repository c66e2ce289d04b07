"""What tables are sorted by: their own columns, and the words of torch's ``key_averages().table(sort_by=...)``."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from perfhooks.core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import polars as pl

_DEVICES: Final = ("cuda", "xpu", "privateuse1", "hip", "mtia")
"""Torch reads each of these as ``device`` in a key."""

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

_MEANING: Final[dict[str, dict[str, str]]] = {
    "operators": _OPERATORS | {"cpu_time": "cpu_ms / count", "device_time": "device_ms / count"},
    "labels": _CALLS | {"device_time_total": "device_ms", "device_time": "device_ms / calls"},
    "functions": _CALLS,
    "kernels": {"device_time_total": "total_ms", "self_device_time_total": "total_ms", "device_time": "mean_ms"},
}
"""By table, what each of torch's keys is among its columns; a mean is a column by a number of calls."""


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
"""By table, the columns that its file has; the tables themselves take polars, which a handler must not import."""


def check(name: str, key: str, columns: Iterable[str] = ()) -> str:
    """The column that a table is sorted by, or two with `` / `` between them.

    Args:
        name: of the table.
        key: what the user wrote: a column, or one of torch's keys.
        columns: that the table has; `COLUMNS` if none are given.

    Raises:
        OptionError: The table has no such column.
    """
    own = tuple(columns) or COLUMNS[name]
    known = {**_MEANING.get(name, {}), **dict(zip(own, own, strict=True))}
    plain = str(key)
    for device in _DEVICES:
        plain = plain.replace(device, "device")
    if plain not in known:
        close = difflib.get_close_matches(plain, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise OptionError(f"the table {name!r} can be sorted by {', '.join(known)}, got {key!r}{hint}")
    return known[plain]


def ordered(name: str, table: pl.DataFrame, key: str) -> pl.DataFrame:
    """A table in another order: numbers with the largest first, texts by their letters, what is unknown last.

    Args:
        name: of the table.
        table: its rows.
        key: see `check`.

    Raises:
        OptionError: The table has no such column.
    """
    column, _, count = check(name, key, table.columns).partition(" / ")
    values = table[column] / table[count] if count else table[column]
    order = {"descending": values.dtype.is_numeric(), "nulls_last": True, "maintain_order": True}
    return table.with_columns(values.alias("")).sort("", **order).drop("")
