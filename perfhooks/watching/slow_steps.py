"""The table of slow steps: a row each, and a line in the log for the first of a kind."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.guard import logger
from perfhooks.run.reading import open_plain, read_bytes
from perfhooks.run.timeline import in_timeline
from perfhooks.watching.causes import UNKNOWN
from perfhooks.watching.sampling import shown

if TYPE_CHECKING:
    from pathlib import Path

    from perfhooks.watching.causes import Explanation, Seen

_LARGEST: Final = 16 << 20
"""Bytes of a table that is read: 10^5 slow steps."""
_HEADER: Final = 1024
"""Bytes of the longest first line."""


class SlowStep(NamedTuple):
    """A row of the table; what nobody could tell is None."""

    stage: str
    step: int
    wall_ms: float
    times_median: float
    cause: str
    explained_ms: float | None
    line: str
    data_ms: float | None
    gc_ms: float
    cpu_share: float | None
    switches: int | None
    faults: int | None
    alloc_retries: int | None

    @classmethod
    def of(cls, stage: str, step: int, seen: Seen, why: Explanation) -> SlowStep:
        """The row of a step."""
        cpu, sampled = seen.counters.cpu_ns, seen.sampled_ns
        return cls(
            stage=in_timeline(stage),
            step=step,
            wall_ms=round(seen.wall_ns / 1e6, 3),
            times_median=round(seen.wall_ns / seen.median_ns, 1),
            cause=why.cause,
            explained_ms=None if why.explained_ns is None else round(why.explained_ns / 1e6, 3),
            line="" if why.frame is None else f"{why.frame.name} ({shown(why.frame.file)}:{why.frame.line})",
            data_ms=None if seen.wait_ns < 0 else round(seen.wait_ns / 1e6, 3),
            gc_ms=round(seen.garbage_ns / 1e6, 3),
            cpu_share=None if cpu is None or not sampled else round(cpu / sampled, 3),
            switches=seen.counters.switches,
            faults=seen.counters.faults,
            alloc_retries=seen.counters.retries,
        )

    def __str__(self) -> str:
        explained = "" if self.explained_ms is None else f", which explains {self.explained_ms:.0f} ms"
        line = f", in {self.line}" if self.line else ""
        cause = "for a reason that nobody saw" if self.cause == UNKNOWN and not line else self.cause
        took = f"step {self.step} took {self.wall_ms:.0f} ms, {self.times_median:g} times the median"
        return f"{took}: {cause}{explained}{line}"


def append(path: Path, rows: list[SlowStep]) -> None:
    """Append to the table of a rank.

    Raises:
        OSError: It cannot be written, or is no file of its own.
    """
    with os.fdopen(open_plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not file.tell():
            writer.writerow(SlowStep._fields)
        writer.writerows(["" if value is None else value for value in row] for row in rows)
        file.write(text.getvalue().encode("utf-8", "replace"))


def read(path: Path) -> list[SlowStep]:
    """The slow steps of a rank; none where there is no such file, and torn rows are left out."""
    try:
        return _rows(read_bytes(path, _LARGEST))
    except OSError:
        return []


def last(path: Path, most: int) -> list[SlowStep]:
    """Those in the last bytes of the table; none where there is no such file.

    Args:
        path: The table of a rank.
        most: How many bytes are read at most, besides the header.
    """
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            header = file.readline(_HEADER)
            begin = max(len(header), os.fstat(file.fileno()).st_size - most)
            file.seek(begin)
            text = file.read(most)
    except OSError:
        return []
    return _rows(header + (text if begin == len(header) else text.partition(b"\n")[2]))


def _rows(text: bytes) -> list[SlowStep]:
    """The rows of a table; torn ones, and what is none, are left out."""
    found = []
    # a NUL, or a quote that stays open, ends what the module csv can read
    with contextlib.suppress(csv.Error):
        for row in csv.DictReader(io.StringIO(text.decode("utf-8", "replace"))):
            with contextlib.suppress(KeyError, TypeError, ValueError):
                found.append(SlowStep(
                    row["stage"], int(row["step"]), float(row["wall_ms"]), float(row["times_median"]), row["cause"],
                    _number(row["explained_ms"]), row["line"], _number(row["data_ms"]), float(row["gc_ms"]),
                    _number(row["cpu_share"]), *(_count(row[name]) for name in ("switches", "faults", "alloc_retries")),
                ))  # fmt: skip
    return found


def _number(text: str) -> float | None:
    return float(text) if text else None


def _count(text: str) -> int | None:
    return int(text) if text else None


class Log:
    """Says the first slow step of a kind, and then how many there were at each power of ten."""

    def __init__(self) -> None:
        self._count: Counter[tuple[str, str]] = Counter()

    def say(self, row: SlowStep) -> None:
        """A step was slow."""
        kind = (row.cause, row.line)
        self._count[kind] += 1
        count = self._count[kind]
        if count == 1:
            logger.info("%s", row)
        elif str(count).strip("0") == "1":
            where = f" in {row.line}" if row.line else ""
            logger.info("%d steps were slow by now: %s%s; the last was step %d", count, row.cause, where, row.step)
