from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

Columns = dict[str, list[Any]]
"""Table: a mapping of column names to lists of equal length. Unknown values are None."""


def columns(table: pl.DataFrame, rows: int | None = None) -> Columns:
    """Return the first rows of a table, without empty columns. Numbers have seven significant digits."""
    head = table if rows is None else table.head(rows)
    names = [name for name in head.columns if head[name].null_count() < head.height]
    return {name: [_plain(value) for value in head[name].to_list()] for name in names}


def text(value: str, longest: int = 240) -> str:
    """Return valid UTF-8 text. An ellipsis replaces the middle of a long text."""
    valid_text = value.encode("utf-8", "backslashreplace").decode("utf-8")
    half = longest // 2
    return valid_text if len(valid_text) <= longest else f"{valid_text[:half]} … {valid_text[-half:]}"


def number(value: Any) -> Any:
    if not isinstance(value, float | int) or not math.isfinite(value):
        return None
    short = float(f"{value:.7g}")
    return int(short) if short.is_integer() else short


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return number(value)
    return text(value) if isinstance(value, str) else value


def facts(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", [], {}, ())}
