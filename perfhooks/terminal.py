"""Tables for people, on a terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl


def step_table(files: Sequence[Path]) -> str:
    """The step tables of some windows as one text table, less the columns in which nothing was measured.

    Args:
        files: ``steps.csv`` files; missing ones are passed over.
    """
    import polars as pl

    tables = [pl.read_csv(file, infer_schema_length=None) for file in files if file.exists()]
    return text(pl.concat(tables, how="diagonal_relaxed")) if tables else "no step table was written"


def text(table: pl.DataFrame, *, width: int = 160) -> str:
    """A table as text: a header, a row each, numbers to the right."""
    from rich.console import Console
    from rich.table import Table

    shown = [column for column in table.columns if table[column].null_count() < table.height]
    drawing = Table(box=None, header_style="bold", pad_edge=False)
    for column in shown:
        drawing.add_column(column.removesuffix("_ms"), justify="right" if table[column].dtype.is_numeric() else "left")
    for row in table.select(shown).iter_rows():
        drawing.add_row(*map(_cell, row))
    page = io.StringIO()
    Console(file=page, width=width, color_system=None).print(drawing)
    return page.getvalue().rstrip("\n")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)
