"""Counts and stack samples of the workers of a loader."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from perfhooks.core.frames import FETCHES_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterable

Part = Literal["waits", "disk", "computes", "queued", "collate", "transfer", "idle"]
PARTS: Final[dict[Part, str]] = {
    "waits": "waits for a network, a lock, or sleeps",
    "disk": "waits for a disk or a network file system",
    "computes": "computes",
    "queued": "waits for a free CPU",
    "collate": "collates samples into a batch",
    "transfer": "passes batches to the training",
    "idle": "is idle: its prefetch queue is full",
}
"""Parts of a worker's time, each with its description. Each nanosecond belongs to one part."""

_ALONE: Final = ("transfer", "idle")
_LIBRARY: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python3(?:\.\d+)?/|^<|\.zip/")
"""Paths of library files, which are not the user's code."""
_FRAME: Final = re.compile(r"(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)")


class LoaderWorker(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and stack samples of one worker in one interval."""

    worker: int
    pid: int
    batches: int
    wall_s: float
    busy_s: float
    """Time in s to read, decode and collate batches."""
    cpu_s: float
    squares: float
    """Sum of the squared seconds per batch, for the variance."""
    longest_s: float
    idle_s: float
    """Time in s in which the prefetch queue of the worker was full."""
    transfer_s: float
    memory_bytes: int | None
    """Memory in bytes that the worker does not share with the training."""
    queued_s: float | None = None
    """Run-queue wait in s while the worker made batches."""
    samples: int = 0
    stacks: dict[str, dict[Part, int]] = {}
    """Nanoseconds of each part of a worker's time, for each stack (``outer;inner`` of ``file.py(12): function``)."""


class WorkerPlace(msgspec.Struct):
    function: str
    file: str
    line: int
    """Line of the function in which the workers spent most time."""
    parts: dict[Part, int]
    """Time of all workers in ns, for each part."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        return f"{self.function} ({self.file.rpartition('/')[2]}:{self.line})" if self.line else self.function


def places(workers: Iterable[LoaderWorker]) -> list[WorkerPlace]:
    """Return the user's functions, sorted by the time of workers in a function and its callees, longest first.

    A stack without user code is attributed to its innermost function. Time outside of datasets, such as collation, is
    one row per part.
    """
    lines: dict[tuple[str, str], dict[int, int]] = {}
    by_place: dict[tuple[str, str], dict[Part, int]] = {}
    for worker in workers:
        for stack, parts in worker.stacks.items():
            for part, value in parts.items():
                function, file, line = (f"({part})", "", 0) if part in _ALONE else _place(stack)
                of = by_place.setdefault((function, file), {})
                of[part] = of.get(part, 0) + value
                at = lines.setdefault((function, file), {})
                at[line] = at.get(line, 0) + value
    rows = [WorkerPlace(*key, max(lines[key], key=lines[key].__getitem__), parts) for key, parts in by_place.items()]
    return sorted(rows, key=lambda row: -row.total)


def _place(stack: str) -> tuple[str, str, int]:
    frames = stack.split(";")
    inside = next((place for place, frame in enumerate(frames) if FETCHES_BATCH.search(frame)), -1)
    own = [frame for frame in frames[inside + 1 :] if not _LIBRARY.search(frame)]
    matched = _FRAME.fullmatch((own or frames)[-1])
    return (matched["function"], matched["file"], int(matched["line"])) if matched else (stack, "", 0)


def folded(workers: Iterable[LoaderWorker]) -> dict[str, int]:
    """Return flame graph stacks in ns, with the worker's part as leaf."""
    stacks: dict[str, int] = {}
    for worker in workers:
        for stack, parts in worker.stacks.items():
            for part, value in parts.items():
                if value:
                    stacks[f"{stack};({part})"] = stacks.get(f"{stack};({part})", 0) + value
    return dict(sorted(stacks.items(), key=lambda item: -item[1]))


def rows(workers: Iterable[LoaderWorker]) -> dict[str, list[Any]]:
    ranked = places(workers)
    total = sum(place.total for place in ranked) or 1
    columns: dict[str, list[Any]] = {
        "function": [place.function for place in ranked],
        "file": [place.file for place in ranked],
        "line": [place.line or None for place in ranked],
        "total_ms": [place.total * 1e-6 for place in ranked],
        "percent": [100 * place.total / total for place in ranked],
    }
    return columns | {f"{part}_ms": [place.parts.get(part, 0) * 1e-6 for place in ranked] for part in PARTS}
