"""Tables drawn on a terminal, as wide as it is and no wider."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl
    from rich.console import Console

_ROWS: Final = 20
_OF_OVERVIEW: Final = 10
_TEXT: Final = 24
"""Texts are cut to no less than this, as long as there is room for one number beside them."""
_GAP: Final = 2
_INNER: Final = ("stack", "path", "module")
"""Of these the end tells more than the beginning."""
_COLORS: Final = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def draw(tables: Mapping[str, pl.DataFrame], limit: int | None = None, console: Console | None = None) -> None:
    """Draw some tables, one below the other.

    Args:
        tables: by name.
        limit: how many rows of each; None is what fits a screen, 0 is all.
        console: where to draw; standard output if None.
    """
    from rich.console import Console

    if console is None:
        if hasattr(sys.stdout, "reconfigure"):  # a name may hold what the terminal cannot show
            sys.stdout.reconfigure(errors="replace")
        console = Console(highlight=False)
    usual = _ROWS if len(tables) == 1 else _OF_OVERVIEW
    for place, (name, table) in enumerate(tables.items()):
        if place:
            console.print()
        _draw(console, name, table, usual if limit is None else limit)


def _draw(console: Console, name: str, table: pl.DataFrame, limit: int) -> None:
    if not table.height:
        console.print(f"[bold]{name}[/bold]: {'no doubts' if name == 'checks' else 'none in this trace'}")
        return
    if name == "checks":
        _draw_checks(console, table)
        return
    rows = table.head(limit) if limit else table
    known = [column for column in rows.columns if rows[column].null_count() < rows.height]
    cells = {column: [_cell(value) for value in rows[column]] for column in known}
    numeric = {column for column in known if rows[column].dtype.is_numeric()}
    unit = ", times in ms" if any(column.endswith("_ms") for column in known) else ""
    console.print(f"[bold]{name}[/bold] [dim]{table.height} {'row' if table.height == 1 else 'rows'}{unit}[/dim]")
    if _is_long(cells, console.width) and not set(known) - numeric - {"stage", "window"}:
        _draw_turned(console, cells)
    else:
        _draw_plain(console, cells, numeric)
    if rows.height < table.height:
        console.print(f"[dim]{table.height - rows.height} more rows: --limit 0 shows all[/dim]")


def _draw_checks(console: Console, table: pl.DataFrame) -> None:
    """Doubts as sentences: nobody can do with half of one."""
    from rich.text import Text

    console.print(f"[bold]checks[/bold] [dim]{table.height} {'doubt' if table.height == 1 else 'doubts'}[/dim]")
    for severity, name, _, text, first in table.select("severity", "name", "count", "text", "first").iter_rows():
        console.print(Text.assemble((severity, _COLORS[severity]), f" {name}: {text}", f" ({first})" if first else ""))


def _draw_turned(console: Console, cells: dict[str, list[str]]) -> None:
    from rich.table import Table

    drawing = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    drawing.add_column(style="bold", no_wrap=True)
    for _ in next(iter(cells.values())):
        drawing.add_column(justify="right", no_wrap=True)
    for column, texts in cells.items():
        drawing.add_row(_title(column), *texts)
    console.print(drawing)


def _draw_plain(console: Console, cells: dict[str, list[str]], numeric: set[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    widths, left_out = _fit(cells, numeric, console.width)
    drawing = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
    for column, width in widths.items():
        side = "right" if column in numeric else "left"
        drawing.add_column(_title(column), justify=side, no_wrap=True, max_width=width, overflow="ellipsis")  # type: ignore[arg-type]
    for row in zip(*(cells[column] for column in widths), strict=True):
        shown = (
            Text(_cut(text, width, inner=column in _INNER))
            for text, (column, width) in zip(row, widths.items(), strict=True)
        )
        drawing.add_row(*shown)
    console.print(drawing)
    if left_out:
        console.print(f"[dim]no room for {', '.join(left_out)}: --csv and --json have them[/dim]")


def _fit(cells: dict[str, list[str]], numeric: set[str], width: int) -> tuple[dict[str, int], list[str]]:
    """Give every column its width; texts are cut before numbers are left out, the last first."""
    widths = {column: max(len(_title(column)), *map(len, texts)) for column, texts in cells.items()}
    texts = [column for column in widths if column not in numeric]
    left_out: list[str] = []

    def least() -> int:
        return sum(min(size, _TEXT) if column in texts else size for column, size in widths.items())

    while least() + _GAP * len(widths) > width and len(widths) > 1:
        column = [each for each in widths if each in numeric or each != texts[0]][-1]
        del widths[column]
        left_out.insert(0, column)
    room = width - least() - _GAP * len(widths)
    for column in texts:
        if column in widths:
            wanted = widths[column]
            widths[column] = min(wanted, max(min(wanted, _TEXT) + room, 1))
            room -= widths[column] - min(wanted, _TEXT)
    return widths, left_out


def _is_long(cells: dict[str, list[str]], width: int) -> bool:
    """Whether a table is too wide, and fits if its columns are drawn as rows."""
    across = sum(max(len(_title(column)), *map(len, texts)) + _GAP for column, texts in cells.items())
    turned = max(map(len, cells)) + sum(max(map(len, row)) + _GAP for row in zip(*cells.values(), strict=True))
    return turned <= width < across


def _title(column: str) -> str:
    return column.removesuffix("_ms").replace("_", " ")


def _cut(text: str, width: int, *, inner: bool) -> str:
    if len(text) <= width:
        return text
    return f"…{text[len(text) - width + 1 :]}" if inner else f"{text[: width - 1]}…"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 1000 else f"{value:.0f}"  # noqa: PLR2004 - four digits say enough
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(str(value).split())
