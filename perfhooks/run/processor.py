"""What the thread that steps had of the processors, and waited for them: a line for about each second of a run.

    stage,first,last,wall_ms,thread_ms,process_ms,waited_ms
    train,120,163,1003.112000,870.400000,1512.700000,31.220000

Of the steps 120 to 162: what they took, what of it the thread that steps computed, and all threads of the process
together, and for how long that thread could have run and waited for a processor.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.run.publishing import OwnFolder
from perfhooks.run.reading import open_plain
from perfhooks.run.timeline import in_timeline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perfhooks.statistics import Values

HEADER: Final = "stage,first,last,wall_ms,thread_ms,process_ms,waited_ms\n"
_LARGEST: Final = 16 << 20
"""Bytes that are read: three days of them."""
_LONGEST_MS: Final = 1e12
_LAST: Final = 1 << 61
_PARALLEL: Final = 1.5
"""From so many times what the thread that steps computes on, other threads compute with it: those that read data, or
watch, are below."""


class Stretch(NamedTuple):
    """About a second of a loop, in milliseconds."""

    first: int
    last: int
    """The first step that is no more of it."""
    wall_ms: float
    thread_ms: float
    process_ms: float
    waited_ms: float


def append(path: Path, stage: str, rows: Sequence[Stretch]) -> None:
    """Append to the file of a rank.

    Raises:
        OSError: It cannot be written, or is no file of its own.
    """
    name = in_timeline(stage)
    lines = [f"{name},{row.first},{row.last},{','.join(f'{value:.6f}' for value in row[2:])}\n" for row in rows]
    with OwnFolder(path.parent).append(path.name) as file:
        header = "" if file.seek(0, os.SEEK_END) else HEADER
        file.write((header + "".join(lines)).encode("utf-8", "replace"))


class Waits(NamedTuple):
    """How much of a loop's time was a wait for a processor."""

    stretches: tuple[Stretch, ...]

    @classmethod
    def of_share(cls, share: float) -> Waits:
        """Where only the share of a whole run is known, as a status says it."""
        return cls((Stretch(0, _LAST, 1.0, 1.0, 1.0, share),))

    @property
    def is_parallel(self) -> bool:
        """Whether other threads of the process computed with the one that steps."""
        threads = sum(row.thread_ms for row in self.stretches)
        return sum(row.process_ms for row in self.stretches) >= _PARALLEL * threads

    def shares(self, numbers: np.ndarray) -> Values:
        """For each step what share of it was a wait, as far as the second tells in which it ran; else that of all."""
        ends = np.array([row.last for row in self.stretches])
        place = np.searchsorted(ends, numbers, side="right").clip(max=len(ends) - 1)
        firsts = np.array([row.first for row in self.stretches])
        walls, waits = (np.array([getattr(row, name) for row in self.stretches]) for name in ("wall_ms", "waited_ms"))
        shares = np.minimum(waits / walls, _MOST)
        whole = min(float(waits.sum() / walls.sum()), _MOST)
        found: Values = np.where((firsts[place] <= numbers) & (numbers < ends[place]), shares[place], whole)
        return found


_MOST: Final = 0.999
"""A step takes some time of its own."""


def read(path: Path, stage: str) -> Waits | None:
    """What the file of a rank says of a loop, which anybody may have written: a row that is none, or torn, is left out.

    Returns:
        None where it says nothing.
    """
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            text = file.read(_LARGEST).decode("utf-8", "replace")
    except OSError:
        return None
    rows: dict[int, Stretch] = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError, TypeError):
            name, first, last, *values = line.split(",")
            row = Stretch(int(first), int(last), *(float(value) for value in values[:4]))
            if name == stage and _is_plausible(row):
                rows[row.last] = row  # a loop that was resumed ran some steps twice
    return Waits(tuple(row for _, row in sorted(rows.items()))) if rows else None


def _is_plausible(row: Stretch) -> bool:
    is_time = row.wall_ms > 0 and all(0 <= value < _LONGEST_MS for value in row[2:])
    return is_time and 0 <= row.first < row.last <= _LAST
