from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Final

from perfhooks.run.layout import STEPS
from perfhooks.run.reading import is_plain, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.run.capture import Capture, Place

_KEYS: Final = ("rank", "stage", "step")


def scalars(capture: Capture) -> dict[str, float]:
    """Return the mean of each column of a window's step table, with names like ``perf/train/forward_ms``."""
    return {f"perf/{capture.stage}/{name}": value for name, value in capture.summary.items()}


def last_step(capture: Capture) -> int:
    return capture.reached if capture.last is None or capture.partial else capture.last


def step_rows(place: Place) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield step number and measured columns (ms, MiB and counts) of a window; nothing if there is no table."""
    for row in _table(place):
        if row["step"]:
            yield int(row["step"]), {name: float(row[name]) for name in row if name not in _KEYS and row[name]}


def markdown(capture: Capture, place: Place) -> str:
    """Return a window as Markdown: headline, folder and step table."""
    rows = list(_table(place))
    lines = [f"**{capture.line}**", "", f"`{place.folder}`", ""]
    if rows:
        lines += [_row(list(rows[0])), _row(["---"] * len(rows[0])), *(_row(list(row.values())) for row in rows)]
    return "\n".join(lines)


def _table(place: Place) -> Iterator[dict[str, str]]:
    table = place.artifact(STEPS)
    if is_plain(table):
        yield from csv.DictReader(io.StringIO(read_bytes(table).decode("utf-8", "replace"), newline=""))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
