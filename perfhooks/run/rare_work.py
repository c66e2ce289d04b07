from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core import labels
from perfhooks.core.words import MAX_TEXT, printable
from perfhooks.run.publishing import OwnFolder
from perfhooks.run.reading import read_table
from perfhooks.run.timeline import in_timeline

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from perfhooks.run.timeline import Aside

PARTS: Final = (labels.VALIDATION, labels.CHECKPOINT)


class RareWork(NamedTuple):
    """A row of ``rank0.rare.csv``: one validation or checkpoint."""

    stage: str
    step: int
    part: str
    ms: float
    line: str
    """The calling line: ``evaluate (train.py:20)``."""


def append(path: Path, stage: str, asides: Iterable[Aside]) -> None:
    rows = [[in_timeline(stage), work.step, work.part, f"{work.ns / 1e6:.3f}", work.line] for work in asides]
    if rows:
        folder = OwnFolder(path.parent)
        folder.make()
        folder.append_rows(path.name, RareWork._fields, rows)


def read(path: Path) -> list[RareWork]:
    """Return the rows of the file, without torn rows and unknown parts."""
    rows = (_row(line) for line in read_table(path).splitlines()[1:])
    return [row for row in rows if row is not None]


def _row(line: str) -> RareWork | None:
    try:
        stage, step, part, ms, where = next(csv.reader([line]))
        row = RareWork(stage, int(step), part, float(ms), printable(" ".join(where[:MAX_TEXT].split())))
    except (csv.Error, ValueError, StopIteration):
        return None
    return row if row.part in PARTS and 0 <= row.step < 1 << 62 and 0 <= row.ms < math.inf else None
