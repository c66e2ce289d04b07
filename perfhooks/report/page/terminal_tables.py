from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any, Final, Literal

import polars as pl
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfhooks.analysis.findings.finding import gain as gain_text
from perfhooks.analysis.ranks.missing import name_ranks
from perfhooks.core import words
from perfhooks.run.reading import is_plain, read_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from perfhooks.run.capture import Capture

_ROWS: Final = 20
_SHORTEST: Final = 12
"""Minimum characters of a text column. If text columns are narrower, a number column is omitted."""
_GAP: Final = 2
_INNER: Final = ("stack", "path", "module")
_COLORS: Final = {"error": "bold red", "warning": "yellow", "info": "cyan"}


NOTHING: Final = {
    "checks": "no doubts about the trace itself",
    "compiled": "torch.compile was not used, or its compilations were not recorded",
    "findings": "no rule found a problem",
    "plan": "no step waits for workers, or the cost of a batch was not measured; see the table of findings",
    "slow": "no slow steps",
    "startup": "not recorded; start the training with perfhooks run",
}


def draw(
    tables: Mapping[str, pl.DataFrame],
    limit: int | None = None,
    console: Console | None = None,
    *,
    nothing: Mapping[str, str] = NOTHING,
) -> None:
    """Draw tables. ``limit`` None shows 10 or 20 rows, 0 all rows."""
    if console is None:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        console = Console(highlight=False)
    usual = _ROWS if len(tables) == 1 else 10
    for place, (name, table) in enumerate(tables.items()):
        if place:
            console.print()
        _draw(console, name, table, usual if limit is None else limit, nothing)


def step_table(files: Sequence[Path]) -> str:
    tables = [pl.read_csv(read_bytes(file), infer_schema_length=None) for file in files if is_plain(file)]
    if not tables:
        return "no step table was written"
    return f"{text(pl.concat(tables, how='diagonal_relaxed'))}\n(times in ms)"


def label_table(file: Path) -> str:
    table = pl.read_csv(read_bytes(file), infer_schema_length=None) if is_plain(file) else None
    own = None if table is None or "own" not in table.columns else table.filter(pl.col("own")).drop("own")
    return "" if own is None or not own.height else text(own.head(_ROWS))


def cost_line(captures: Sequence[Capture]) -> str:
    stalls = [capture.cost.stop_s + capture.cost.save_s + capture.cost.free_s for capture in captures]
    if not stalls:
        return ""
    line = f"recording stopped the loop for {words.ms(max(stalls) * 1e3)} at the end of a window"
    idle, recorded = captures[-1].cost.idle_step_ms, captures[-1].cost.recorded_step_ms
    if idle and recorded:
        line += f"; median step {words.ms(idle)} unprofiled, {words.ms(recorded)} profiled"
    return line


def text(table: pl.DataFrame) -> str:
    columns = [column for column in table.columns if table[column].null_count() < table.height]
    cells = {column: [_cell(value, digits=2) for value in table[column]] for column in columns}
    buffer = io.StringIO()
    console = Console(file=buffer, width=10_000, color_system=None, highlight=False)
    _draw_plain(console, cells, {column for column in columns if table[column].dtype.is_numeric()})
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip("\n").split("\n"))


def _draw(console: Console, name: str, table: pl.DataFrame, limit: int, nothing: Mapping[str, str]) -> None:
    if not table.height:
        console.print(f"[bold]{name}[/bold]: {nothing.get(name, 'none in this trace')}")
        return
    if name in _SENTENCES:
        _SENTENCES[name](console, table)
        return
    rows = table.head(limit) if limit else table
    columns = [column for column in rows.columns if rows[column].null_count() < rows.height]
    cells = {column: [_cell(value) for value in rows[column]] for column in columns}
    numeric = {column for column in columns if rows[column].dtype.is_numeric()}
    unit = ", times in ms" if any(column.endswith("_ms") for column in columns) else ""
    part = f"{rows.height} of " if rows.height < table.height else ""
    console.print(f"[bold]{name}[/bold] [dim]{part}{words.count(table.height, 'row')}{unit}[/dim]")
    if _fits_transposed_only(cells, console.width) and not set(columns) - numeric - {"stage", "window"}:
        _draw_transposed(console, cells)
    else:
        _draw_plain(console, cells, numeric)
    if rows.height < table.height:
        console.print(f"[dim]{words.count(table.height - rows.height, 'more row')}: --limit 0 shows all[/dim]")


def _draw_checks(console: Console, table: pl.DataFrame) -> None:
    ranks = pl.col("rank") if "rank" in table.columns else pl.lit(None, pl.Int64).alias("rank")
    rows = table.group_by("severity", "name", "text", "first", maintain_order=True).agg(ranks)
    console.print(f"[bold]checks[/bold] [dim]{words.count(rows.height, 'doubt')} about the trace itself[/dim]")
    for severity, name, text, first, of_ranks in rows.iter_rows():
        members = [rank for rank in of_ranks or () if rank is not None]
        whose = f"{name_ranks(members)}: " if members else ""
        sentence = words.printable(f" {name}: {whose}{text}" + (f" ({first})" if first else ""))
        console.print(Text.assemble((severity, _COLORS[severity]), sentence))


def _draw_findings(console: Console, table: pl.DataFrame) -> None:
    console.print("[bold]findings[/bold] [dim]with fixes, largest estimated gain first[/dim]")
    for number, row in enumerate(table.iter_rows(named=True), 1):
        rank, ranks = row.get("rank"), row.get("ranks")
        whose = "" if rank is None or row["title"].startswith(f"Rank {rank} ") else f"Rank {rank}: "
        where = f" {row['where']}" if row.get("where") else ""
        console.print(Text.assemble((f"{number}. ", "bold"), whose, row["title"], where, (gain(row), "cyan")))
        shared = f"Ranks {ranks} have this finding. " if ranks and ranks != str(rank) else ""
        console.print(Padding(Text(shared + row["advice"], style="dim"), (0, 0, 0, 3)))
        if row.get("code"):
            console.print(Padding(Text(words.printable(row["code"])), (0, 0, 0, 6)))


def gain(finding: Mapping[str, Any]) -> str:
    amount = words.of_step(gain_text(finding))
    return f" (gain: {amount})" if amount else ""


_SENTENCES: Final = {"checks": _draw_checks, "findings": _draw_findings}


def _draw_transposed(console: Console, cells: dict[str, list[str]]) -> None:
    drawing = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    drawing.add_column(style="bold", no_wrap=True)
    for _ in next(iter(cells.values())):
        drawing.add_column(justify="right", no_wrap=True)
    for column, texts in cells.items():
        drawing.add_row(_title(column), *map(Text, texts))
    console.print(drawing)


def _draw_plain(console: Console, cells: dict[str, list[str]], numeric: set[str]) -> None:
    widths, left_out = _fit(cells, numeric, console.width)
    drawing = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
    for column, width in widths.items():
        side: Literal["left", "right"] = "right" if column in numeric else "left"
        drawing.add_column(_title(column), justify=side, no_wrap=True, max_width=width, overflow="ellipsis")
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
    widths = {column: max(len(_title(column)), *map(len, texts)) for column, texts in cells.items()}
    texts = [column for column in widths if column not in numeric]
    left_out: list[str] = []

    least_text = 24

    def least() -> int:
        return sum(min(size, least_text) if column in texts else size for column, size in widths.items())

    def is_too_wide() -> bool:
        return least() + _GAP * len(widths) > width

    while is_too_wide() and least_text > _SHORTEST and len(texts) > 1:
        least_text -= 1
    while is_too_wide() and len(widths) > 1:
        column = [name for name in widths if name in numeric or name != texts[0]][-1]
        del widths[column]
        left_out.insert(0, column)
    room = width - least() - _GAP * len(widths)
    for column in texts:
        if column in widths:
            full = widths[column]
            widths[column] = min(full, max(min(full, least_text) + room, 1))
            room -= widths[column] - min(full, least_text)
    return widths, left_out


def _fits_transposed_only(cells: dict[str, list[str]], width: int) -> bool:
    across = sum(max(len(_title(column)), *map(len, texts)) + _GAP for column, texts in cells.items())
    transposed = max(map(len, cells)) + sum(max(map(len, row)) + _GAP for row in zip(*cells.values(), strict=True))
    return transposed <= width < across


def _title(column: str) -> str:
    return column.removesuffix("_ms").replace("_", " ")


def _cut(text: str, width: int, *, inner: bool) -> str:
    if len(text) <= width:
        return text
    return f"…{text[len(text) - width + 1 :]}" if inner else f"{text[: width - 1]}…"


def _cell(value: object, digits: int = 3) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.0f}"  # noqa: PLR2004 - four digits say enough
    if isinstance(value, bool):
        return "yes" if value else "no"
    return words.printable(" ".join(str(value).split()))
