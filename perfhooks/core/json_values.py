"""Tables and names as plain JSON: small, and nothing in it that only Python understands."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

Columns = dict[str, list[Any]]
"""A table: for each column its values, all of one length; None is what is not known."""

_DIGITS: Final = 7
_LONGEST: Final = 240


def columns(table: pl.DataFrame, rows: int | None = None) -> Columns:
    """A table as lists, without the columns in which nothing is known.

    Args:
        table: Any table of numbers, texts and truths.
        rows: How many rows to keep, the first ones; None keeps all.

    Returns:
        Its columns; numbers have seven significant digits, texts at most 240 characters.
    """
    head = table if rows is None else table.head(rows)
    known = [name for name in head.columns if head[name].null_count() < head.height]
    return {name: [_plain(value) for value in head[name].to_list()] for name in known}


def text(value: str, longest: int = _LONGEST) -> str:
    """A text that any reader of JSON takes, its middle left out where it is too long."""
    whole = value.encode("utf-8", "replace").decode("utf-8")
    half = longest // 2
    return whole if len(whole) <= longest else f"{whole[:half]} … {whole[-half:]}"


def number(value: Any) -> Any:
    """A number in seven digits; what is not finite, or no number, is not known."""
    if not isinstance(value, float | int) or not math.isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() else short


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return number(value)
    return text(value) if isinstance(value, str) else value


def facts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some facts that are known."""
    return {name: value for name, value in given.items() if value not in (None, "", [], {}, ())}
