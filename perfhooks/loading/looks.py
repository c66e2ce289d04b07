"""Where the workers of a loader were in a window, of the looks at their stacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from perfhooks.frames import FETCHES_BATCH, LOOKS, WORKER_LOOP
from perfhooks.loading.begin import PERIOD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perfhooks.loading.slots import StackLook

Part = Literal["waits", "disk", "c", "python", "queued", "collate", "hand_over", "idle"]
PARTS: Final[dict[Part, str]] = {
    "waits": "waits for a network, a lock, or sleeps",
    "disk": "waits, and reads from a disk or from a file system of a network",
    "c": "computes in C: calls of more than a millisecond",
    "python": "computes in Python, short calls of C included",
    "queued": "could compute, and no processor is free",
    "collate": "puts samples together to a batch",
    "hand_over": "hands batches over to the training",
    "idle": "has made all that it may make ahead, and waits until more is asked for",
}
"""What a worker does, each nanosecond in one of them."""

_ALONE: Final = ("hand_over", "idle")
"""Parts that are not the dataset's."""
_LATE: Final = 1_000_000
"""Nanoseconds after which a look is late: Python itself comes to look within some tens of microseconds."""
_COLLATES: Final = re.compile(r"/collate\.py\(\d+\): |: \w*collate\w*$")
_LIBRARY: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python3(?:\.\d+)?/|^<|\.zip/")
"""Files that are not the user's own."""
_FRAME: Final = re.compile(r"(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)")
_MOST: Final = 300
"""Stacks of a worker that are kept, those of most time."""
OTHER: Final = "(other)"


class Looked(msgspec.Struct, frozen=True):
    """Where one worker was in a window."""

    worker: int
    looks: int
    stacks: dict[str, dict[Part, int]]
    """Nanoseconds of each part, by stack: ``outer;inner``, frames as ``file.py(12): function``."""

    @classmethod
    def of(cls, worker: int, looks: Iterable[StackLook]) -> Looked:
        """Sum up looks; each nanosecond between two of them is in one part of one stack."""
        stacks: dict[str, dict[Part, int]] = {}
        count = 0
        for look in looks:
            count += 1
            frames = [frame for frame in look.stack.split(";") if not LOOKS.search(frame)]
            parts = stacks.setdefault(";".join(frames) or OTHER, {})
            for part, value in _parts(look, frames):
                parts[part] = parts.get(part, 0) + value
        kept = sorted(stacks, key=lambda stack: -sum(stacks[stack].values()))
        for small in kept[_MOST:]:
            rest = stacks.setdefault(OTHER, {})
            for part, value in stacks.pop(small).items():
                rest[part] = rest.get(part, 0) + value
        return cls(worker, count, {stack: parts for stack, parts in stacks.items() if sum(parts.values())})


class WorkerPlace(msgspec.Struct):
    """A function in which workers spent time."""

    function: str
    file: str
    line: int
    """The one of it that took most."""
    parts: dict[Part, int]
    """Nanoseconds of all workers."""

    @property
    def total(self) -> int:
        """Nanoseconds."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        """For people: ``decode (data.py:41)``."""
        return f"{self.function} ({self.file.rpartition('/')[2]}:{self.line})" if self.line else self.function


def places(looked: Iterable[Looked]) -> list[WorkerPlace]:
    """The user's own functions in which workers spent their time, with all that these called; most time first.

    Where no code of the user's is on a stack, its innermost function stands for itself; what a worker does outside of
    its datasets is one place each. Together they are the workers' time, to the nanosecond.
    """
    lines: dict[tuple[str, str], dict[int, int]] = {}
    found: dict[tuple[str, str], dict[Part, int]] = {}
    for each in looked:
        for stack, parts in each.stacks.items():
            for part, value in parts.items():
                function, file, line = (f"({part})", "", 0) if part in _ALONE else _place(stack)
                of = found.setdefault((function, file), {})
                of[part] = of.get(part, 0) + value
                at = lines.setdefault((function, file), {})
                at[line] = at.get(line, 0) + value
    rows = [WorkerPlace(*key, max(lines[key], key=lines[key].__getitem__), parts) for key, parts in found.items()]
    return sorted(rows, key=lambda row: -row.total)


def _place(stack: str) -> tuple[str, str, int]:
    """The innermost function of the user's on a stack, its file and its line; else the innermost of all."""
    frames = stack.split(";")
    inside = next((place for place, frame in enumerate(frames) if FETCHES_BATCH.search(frame)), -1)
    own = [frame for frame in frames[inside + 1 :] if not _LIBRARY.search(frame)]
    matched = _FRAME.fullmatch((own or frames)[-1])
    return (matched["function"], matched["file"], int(matched["line"])) if matched else (stack, "", 0)


def folded(looked: Iterable[Looked]) -> dict[str, int]:
    """The stacks of all workers, with what they did there as leaf, and nanoseconds; most first."""
    found: dict[str, int] = {}
    for each in looked:
        for stack, parts in each.stacks.items():
            for part, value in parts.items():
                if value:
                    found[f"{stack};({part})"] = found.get(f"{stack};({part})", 0) + value
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _parts(look: StackLook, frames: list[str]) -> list[tuple[Part, int]]:
    """What a look stands for, in nanoseconds."""
    whole = look.ticks * PERIOD
    inside = next((place for place, frame in enumerate(frames) if FETCHES_BATCH.search(frame)), None)
    if inside is None and frames and WORKER_LOOP.search(frames[0]):
        is_put = any(re.search(r": (?:put|_feed|reduce_\w+)$", frame) for frame in frames)
        return [("hand_over" if is_put else "idle", whole)]
    if inside is not None and any(_COLLATES.search(frame) for frame in frames[inside + 1 : inside + 2]):
        return [("collate", whole)]
    computed = min(look.processor, whole)
    queued = min(look.queued, whole - computed)
    waited, is_late = whole - computed - queued, look.late - look.queued > _LATE
    # nothing interrupts a wait for a disk, as it does a sleep: the worker comes to look late, and has not computed
    is_disk = is_late and look.read > 0 and waited > computed
    return [("c" if is_late else "python", computed), ("queued", queued), ("disk" if is_disk else "waits", waited)]


def rows(looked: Iterable[Looked]) -> dict[str, list[Any]]:
    """The table of `places`, as columns: the function, its file and line, milliseconds and percent, then each part."""
    found = places(looked)
    whole = sum(place.total for place in found) or 1
    columns: dict[str, list[Any]] = {
        "function": [place.function for place in found],
        "file": [place.file for place in found],
        "line": [place.line or None for place in found],
        "total_ms": [place.total * 1e-6 for place in found],
        "percent": [100 * place.total / whole for place in found],
    }
    return columns | {f"{part}_ms": [place.parts.get(part, 0) * 1e-6 for place in found] for part in PARTS}
