from __future__ import annotations

import csv
import io
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from perfhooks.core import words
from perfhooks.core.guard import logger
from perfhooks.core.words import MAX_TEXT, ms, printable
from perfhooks.run.capture import Step
from perfhooks.run.live.slow_causes import CONTENTION, UNKNOWN
from perfhooks.run.publishing import OwnFolder
from perfhooks.run.reading import LARGEST_TABLE, read_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_Number = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
_Count = Step
LINE_NUMBER: Final = r":\d+\)$"
"""Pattern of the line number in the column ``line``: ``main (train.py:20)``."""
_TEXTS: Final = ("stage", "cause", "line")
"""Columns with texts, in which an empty cell is an empty text instead of an unknown number."""


class SlowStep(NamedTuple):
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
        stage = "" if self.stage == "train" else f"{self.stage} "
        duration = f"step {self.step} took {ms(self.wall_ms)}, {self.times_median:g} times the median"
        return f"{stage}{duration}: {self.cause}{explained}{line}"


def append(path: Path, rows: list[SlowStep]) -> None:
    OwnFolder(path.parent).append_rows(path.name, SlowStep._fields, rows)


def read(path: Path, most: int = LARGEST_TABLE) -> list[SlowStep]:
    """Return the slow steps of a file. Invalid rows are dropped, because the file is not trusted."""
    text = read_table(path, most, from_end=True)
    # the first line is the header, or incomplete because only the end of the file was read
    return [row for cells in _cells(text.partition("\n")[2]) if (row := _row(cells)) is not None]


def _cells(text: str) -> Iterator[list[str]]:
    rows = csv.reader(io.StringIO(text, newline=""))
    while True:
        try:
            yield next(rows)
        except csv.Error:
            continue
        except StopIteration:
            return


def _row(cells: list[str]) -> SlowStep | None:
    values = [cell if cell or name in _TEXTS else None for name, cell in zip(SlowStep._fields, cells, strict=False)]
    try:
        row = msgspec.convert(values, SlowStep, strict=False)
    except msgspec.ValidationError:
        return None
    return row._replace(stage=_text(row.stage), cause=_text(row.cause), line=_text(row.line))


def _text(text: str) -> str:
    return printable(" ".join(text[:MAX_TEXT].split()))


class Log:
    """Logs the first slow step of each cause and function, then the count at milestones."""

    def __init__(self) -> None:
        self._walls: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
        """Number and total time in ms of slow steps, for each cause and function."""

    def say(self, row: SlowStep) -> None:
        if row.cause in (UNKNOWN, CONTENTION):
            return
        kind = self._walls[row.cause, row.line.rpartition(":")[0]]
        kind[:] = count, wall_ms = kind[0] + 1, kind[1] + row.wall_ms
        if count == 1:
            logger.info("%s", row)
        elif words.is_milestone(count):
            where = f", {row.line}" if row.line else ""
            logger.info(
                "%s so far, %s on average: %s%s", words.count(count, "slow step"), ms(wall_ms / count), row.cause, where
            )
