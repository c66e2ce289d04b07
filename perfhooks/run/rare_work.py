from __future__ import annotations

import csv
import io
import math
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core import labels
from perfhooks.core.words import MAX_TEXT, printable
from perfhooks.run.publishing import OwnFolder
from perfhooks.run.reading import LARGEST_TABLE, open_plain
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
    if not rows:
        return
    folder = OwnFolder(path.parent)
    folder.make()
    with folder.append(path.name) as file:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not file.seek(0, os.SEEK_END):
            writer.writerow(RareWork._fields)
        writer.writerows(rows)
        file.write(text.getvalue().encode("utf-8", "replace"))


def read(path: Path) -> list[RareWork]:
    """Return no rows that are torn or unknown."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            text = file.read(LARGEST_TABLE).decode("utf-8", "replace")
    except OSError:
        return []
    rows = (_row(line) for line in text.splitlines()[1:])
    return [row for row in rows if row is not None]


def _row(line: str) -> RareWork | None:
    try:
        stage, step, part, ms, where = next(csv.reader([line]))
        row = RareWork(stage, int(step), part, float(ms), printable(" ".join(where[:MAX_TEXT].split())))
    except (csv.Error, ValueError, StopIteration):
        return None
    return row if row.part in PARTS and 0 <= row.step < 1 << 62 and 0 <= row.ms < math.inf else None
