"""Tables for people, on a terminal."""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import polars as pl

    from perfhooks.run.capture import Capture


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show on a terminal that something goes on."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


@contextmanager
def waiting() -> Iterator[Callable[[int, float], None]]:
    """Show on a terminal, after a moment, that somebody is being waited for.

    Yields:
        Takes how many windows are waited for, and since how many seconds.
    """
    shown = False

    def show(count: int, seconds: float) -> None:
        nonlocal shown
        if seconds >= _PATIENCE_S and sys.stderr.isatty():
            shown = True
            sys.stderr.write(f"\rperfhooks: finishing {count} window{'s' * (count > 1)}, {seconds:.0f} s \x1b[K")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")


_PATIENCE_S: Final = 0.5


def step_table(files: Sequence[Path]) -> str:
    """The step tables of some windows as one text table, less the columns in which nothing was measured.

    Args:
        files: ``steps.csv`` files; missing ones are passed over.
    """
    import polars as pl

    tables = [pl.read_csv(file, infer_schema_length=None) for file in files if file.exists()]
    if not tables:
        return "no step table was written"
    return f"{text(pl.concat(tables, how='diagonal_relaxed'))}\n(times in ms)"


def cost_line(captures: Sequence[Capture]) -> str:
    """What recording cost, in one line; empty if that is not known.

    Args:
        captures: The facts of some windows.
    """
    stalls = [capture.cost.stop_s + capture.cost.save_s + capture.cost.free_s for capture in captures]
    if not stalls:
        return ""
    line = f"recording kept the loop for {max(stalls) * 1e3:.0f} ms at the end of a window"
    idle, recorded = captures[-1].cost.idle_step_ms, captures[-1].cost.recorded_step_ms
    if idle and recorded:
        line += f"; a step takes {idle:.2f} ms unrecorded, {recorded:.2f} ms recorded (medians)"
    return line


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
