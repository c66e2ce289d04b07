"""The table of slow steps: a row each, and a line in the log for the first of a kind."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from perfhooks.core.guard import logger
from perfhooks.core.words import ms, printable
from perfhooks.run.capture import Step
from perfhooks.run.live.slow_causes import PROCESSOR, UNKNOWN
from perfhooks.run.publishing import OwnFolder
from perfhooks.run.reading import open_plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_LARGEST: Final = 16 << 20
"""Bytes of a table that is read: 10^5 slow steps."""
_LONGEST: Final = 1000
"""Letters of a text of a table: a function and its file."""
_Number = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
_Count = Step
"""What a table can hold."""
_TEXTS: Final = ("stage", "cause", "line")
"""Columns in which an empty cell is a text."""


class SlowStep(NamedTuple):
    """A row of the table; what nobody could tell is None."""

    stage: str
    step: Step
    wall_ms: _Number
    times_median: _Number
    cause: str
    explained_ms: _Number | None
    line: str
    data_ms: _Number | None
    gc_ms: _Number
    cpu_share: _Number | None
    switches: _Count | None
    faults: _Count | None
    alloc_retries: _Count | None

    def __str__(self) -> str:
        explained = "" if self.explained_ms is None else f", which explains {ms(self.explained_ms)}"
        line = f", in {self.line}" if self.line else ""
        took = f"step {self.step} took {ms(self.wall_ms)}, {self.times_median:g} times the median"
        return f"{took}: {self.cause}{explained}{line}"


def append(path: Path, rows: list[SlowStep]) -> None:
    """Append to the table of a rank.

    Raises:
        OSError: It cannot be written, or is no file of its own.
    """
    with OwnFolder(path.parent).append(path.name) as file:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not file.seek(0, os.SEEK_END):
            writer.writerow(SlowStep._fields)
        writer.writerows(["" if value is None else value for value in row] for row in rows)
        file.write(text.getvalue().encode("utf-8", "replace"))


def read(path: Path, most: int = _LARGEST) -> list[SlowStep]:
    """The slow steps of a rank; none where there is no such file, and what is torn or no row is left out.

    Args:
        path: The table; somebody else may have written it.
        most: How many bytes are read: the last ones, of the latest steps.
    """
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            text = file.read(most).decode("utf-8", "replace")
    except OSError:
        return []
    # the first line is the header, or has lost its beginning
    return [row for cells in _cells(text.partition("\n")[2]) if (row := _row(cells)) is not None]


def _cells(text: str) -> Iterator[list[str]]:
    """The rows of a table as texts; what is no CSV is left out."""
    rows = csv.reader(io.StringIO(text, newline=""))
    while True:
        try:
            yield next(rows)
        except csv.Error:  # a cell without an end
            continue
        except StopIteration:
            return


def _row(cells: list[str]) -> SlowStep | None:
    """A slow step as it stands in the table; None where it is none. A later perfhooks may have more columns."""
    given = [cell if cell or name in _TEXTS else None for name, cell in zip(SlowStep._fields, cells, strict=False)]
    try:
        row = msgspec.convert(given, SlowStep, strict=False)
    except msgspec.ValidationError:
        return None
    return row._replace(stage=_text(row.stage), cause=_text(row.cause), line=_text(row.line))


def _text(text: str) -> str:
    """A text that is one line, and that a terminal may have."""
    return printable(" ".join(text[:_LONGEST].split()))


class Log:
    """Says the first slow step of a kind, and then how many there were: at 3, 10, 30, 100 and so on.

    A step with an unknown cause is a row of the table, and no line. So is one that waited for a CPU.
    """

    def __init__(self) -> None:
        self._walls: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
        """By cause and function, how many there were, and their milliseconds."""

    def say(self, row: SlowStep) -> None:
        """A step was slow."""
        if row.cause in (UNKNOWN, PROCESSOR):
            return
        kind = self._walls[row.cause, row.line.rpartition(":")[0]]
        kind[:] = count, wall_ms = kind[0] + 1, kind[1] + row.wall_ms
        if count == 1:
            logger.info("%s", row)
        elif str(count).strip("0") in ("1", "3"):
            where = f", {row.line}" if row.line else ""
            logger.info("%d steps so far, %s each: %s%s", count, ms(wall_ms / count), row.cause, where)
