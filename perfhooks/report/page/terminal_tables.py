"""Tables for people, on a terminal: as wide as it is and no wider."""

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
from perfhooks.core import words
from perfhooks.run.reading import is_plain, read_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from perfhooks.run.capture import Capture

_ROWS: Final = 20
_OF_OVERVIEW: Final = 10
_TEXT: Final = 24
"""Texts are cut to no less than this, as long as there is room for one number beside them."""
_SHORTEST: Final = 12
"""Of several texts, each is cut to no less than this before a number is left out: times are what one came for."""
_GAP: Final = 2
_ENDLESS: Final = 10_000
"""The width of text that nobody cuts: it may go into a log or a file."""
_INNER: Final = ("stack", "path", "module")
"""Of these the end tells more than the beginning."""
_COLORS: Final = {"error": "bold red", "warning": "yellow", "info": "cyan"}


NOTHING: Final = {
    "checks": "no doubts about the trace itself",
    "compiled": "torch.compile was not used, or the window does not say",
    "findings": "no rule has anything to say",
    "plan": "no step waits for a number of workers, or nobody saw what a batch costs one; see the table of findings",
    "slow": "no step took far longer than the others",
    "startup": "not recorded: perfhooks run looks at it",
}
"""What an empty table means."""


def draw(
    tables: Mapping[str, pl.DataFrame],
    limit: int | None = None,
    console: Console | None = None,
    *,
    nothing: Mapping[str, str] = NOTHING,
) -> None:
    """Draw some tables, one below the other.

    Args:
        tables: by name.
        limit: how many rows of each; None is what fits a screen, 0 is all.
        console: where to draw; standard output if None.
        nothing: what an empty table means, by name.
    """
    if console is None:
        if hasattr(sys.stdout, "reconfigure"):  # a name may hold what the terminal cannot show
            sys.stdout.reconfigure(errors="replace")
        console = Console(highlight=False)
    usual = _ROWS if len(tables) == 1 else _OF_OVERVIEW
    for place, (name, table) in enumerate(tables.items()):
        if place:
            console.print()
        _draw(console, name, table, usual if limit is None else limit, nothing)


def step_table(files: Sequence[Path]) -> str:
    """The step tables of some windows as one text table, less the columns in which nothing was measured.

    Args:
        files: ``steps.csv`` files; missing ones are passed over.
    """
    tables = [pl.read_csv(read_bytes(file), infer_schema_length=None) for file in files if is_plain(file)]
    if not tables:
        return "no step table was written"
    return f"{text(pl.concat(tables, how='diagonal_relaxed'))}\n(times in ms)"


def label_table(file: Path) -> str:
    """The labels of the user's own, as a text table; empty where there are none, or no such file.

    Args:
        file: ``labels.csv`` of a window.
    """
    table = pl.read_csv(read_bytes(file), infer_schema_length=None) if is_plain(file) else None
    own = None if table is None or "own" not in table.columns else table.filter(pl.col("own")).drop("own")
    return "" if own is None or not own.height else text(own.head(_ROWS))


def cost_line(captures: Sequence[Capture]) -> str:
    """What recording cost, in one line; empty if that is not known.

    Args:
        captures: The facts of some windows.
    """
    stalls = [capture.cost.stop_s + capture.cost.save_s + capture.cost.free_s for capture in captures]
    if not stalls:
        return ""
    line = f"recording kept the loop for {words.ms(max(stalls) * 1e3)} at the end of a window"
    idle, recorded = captures[-1].cost.idle_step_ms, captures[-1].cost.recorded_step_ms
    if idle and recorded:
        line += f"; a step takes {words.ms(idle)} unrecorded, {words.ms(recorded)} recorded (medians)"
    return line


def text(table: pl.DataFrame) -> str:
    """A table as text: a header, a row each, numbers to the right with two digits behind the point."""
    known = [column for column in table.columns if table[column].null_count() < table.height]
    cells = {column: [_cell(value, digits=2) for value in table[column]] for column in known}
    page = io.StringIO()
    console = Console(file=page, width=_ENDLESS, color_system=None, highlight=False)
    _draw_plain(console, cells, {column for column in known if table[column].dtype.is_numeric()})
    return "\n".join(line.rstrip() for line in page.getvalue().rstrip("\n").split("\n"))


def _draw(console: Console, name: str, table: pl.DataFrame, limit: int, nothing: Mapping[str, str]) -> None:
    if not table.height:
        console.print(f"[bold]{name}[/bold]: {nothing.get(name, 'none in this trace')}")
        return
    if name in _SENTENCES:
        _SENTENCES[name](console, table)
        return
    rows = table.head(limit) if limit else table
    known = [column for column in rows.columns if rows[column].null_count() < rows.height]
    cells = {column: [_cell(value) for value in rows[column]] for column in known}
    numeric = {column for column in known if rows[column].dtype.is_numeric()}
    unit = ", times in ms" if any(column.endswith("_ms") for column in known) else ""
    count = f"{rows.height} of {table.height}" if rows.height < table.height else f"{table.height}"
    console.print(f"[bold]{name}[/bold] [dim]{count} {'row' if table.height == 1 else 'rows'}{unit}[/dim]")
    if _is_long(cells, console.width) and not set(known) - numeric - {"stage", "window"}:
        _draw_turned(console, cells)
    else:
        _draw_plain(console, cells, numeric)
    if rows.height < table.height:
        console.print(f"[dim]{table.height - rows.height} more rows: --limit 0 shows all[/dim]")


def _draw_checks(console: Console, table: pl.DataFrame) -> None:
    """Doubts as sentences: nobody can do with half of one."""
    console.print(f"[bold]checks[/bold] [dim]{words.count(table.height, 'doubt')} about the trace itself[/dim]")
    for severity, name, _, text, first in table.select("severity", "name", "count", "text", "first").iter_rows():
        said = words.printable(f" {name}: {text}" + (f" ({first})" if first else ""))
        console.print(Text.assemble((severity, _COLORS[severity]), said))


def _draw_findings(console: Console, table: pl.DataFrame) -> None:
    """What to do as sentences, what gains most first."""
    console.print("[bold]findings[/bold] [dim]what to do, what gains most first[/dim]")
    for number, row in enumerate(table.iter_rows(named=True), 1):
        console.print(Text.assemble((f"{number}. ", "bold"), row["title"], (gain(row), "cyan")))
        console.print(Padding(Text(row["advice"], style="dim"), (0, 0, 0, 3)))


def gain(finding: Mapping[str, Any]) -> str:
    """The gain of a finding in brackets; empty if unknown."""
    amount = gain_text(finding)
    return f" (gain: {amount} of a step)" if amount else ""


_SENTENCES: Final = {"checks": _draw_checks, "findings": _draw_findings}
"""Tables that are drawn as sentences."""


def _draw_turned(console: Console, cells: dict[str, list[str]]) -> None:

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
    """Give every column its width; texts are cut before numbers are left out, the last first."""
    widths = {column: max(len(_title(column)), *map(len, texts)) for column, texts in cells.items()}
    texts = [column for column in widths if column not in numeric]
    left_out: list[str] = []

    least_text = _TEXT

    def least() -> int:
        return sum(min(size, least_text) if column in texts else size for column, size in widths.items())

    def is_too_wide() -> bool:
        return least() + _GAP * len(widths) > width

    while is_too_wide() and least_text > _SHORTEST and len(texts) > 1:
        least_text -= 1
    while is_too_wide() and len(widths) > 1:
        column = [each for each in widths if each in numeric or each != texts[0]][-1]
        del widths[column]
        left_out.insert(0, column)
    room = width - least() - _GAP * len(widths)
    for column in texts:
        if column in widths:
            wanted = widths[column]
            widths[column] = min(wanted, max(min(wanted, least_text) + room, 1))
            room -= widths[column] - min(wanted, least_text)
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


def _cell(value: object, digits: int = 3) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.0f}"  # noqa: PLR2004 - four digits say enough
    if isinstance(value, bool):
        return "yes" if value else "no"
    return words.printable(" ".join(str(value).split()))
