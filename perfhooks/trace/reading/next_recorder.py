"""What torch's next recorder (torch 2.15) writes otherwise than Kineto, written as Kineto does before anybody asks.

Its copies are all called ``Memcpy`` and its launches bear no number of an operator. So it comes that no table knows of
it. Source: ``torch/profiler/_cuspy/trace.py`` of torch 2.15; for Kineto's words, ``ActivityStrings.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from perfhooks.trace.kinds import DEVICE_WORK, Kind
from perfhooks.trace.model import by_number
from perfhooks.trace.names.device_work import BETWEEN_HOSTS
from perfhooks.trace.nesting.slices import inherited, nest
from perfhooks.trace.reading.events import decode_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perfhooks.trace.model import Column, Ints

COPY: Final = "Memcpy"
SET: Final = "Memset"
CALLS: Final = frozenset({"cuda_runtime", "cuda_driver"})
"""The categories of its launches: it is for CUDA alone, where Kineto gives them numbers."""
KINDS: Final = ("copy_kind", "source_kind", "target_kind", "memory_kind")
"""The arguments that say what of both it is; they become the name."""
_DIRECTIONS: Final = {9: BETWEEN_HOSTS}
"""Numbers of CUPTI's that it has no word for."""
_MEMORIES: Final = dict(
    enumerate(("unknown", "pageable", "pinned", "device", "array", "managed", "device_static", "managed_static"))
)


_NONE: Final = np.empty(0, np.int64), np.empty(0, np.int64)


def name_by_arguments(
    columns: Mapping[str, Column],
    arguments: dict[str, tuple[Ints, Column]],
    names: Mapping[str, int],
    texts: Sequence[bytes],
) -> None:
    """Give copies and memsets the names that Kineto gives them: ``Memcpy HtoD (Pageable -> Device)``.

    Args:
        columns: of all slices; their names change.
        arguments: of slices, by name: rows and values; those that make the names are taken out.
        names: numbers by name, which grow as they are asked for.
        texts: what the arguments' values are numbers of.
    """
    given = {each: arguments.pop(each, _NONE) for each in KINDS}
    for plain, parts in ((COPY, KINDS[:3]), (SET, KINDS[3:])):
        if plain not in names:
            continue
        mine = np.flatnonzero(columns["name"] == names[plain])
        said = np.stack([_of(mine, *given[each], len(columns["name"])) for each in parts])
        told = (said >= 0).all(axis=0)
        each, place = np.unique(said[:, told], axis=1, return_inverse=True)
        called = [names[_called(plain, [decode_value(texts[text]) for text in kinds])] for kinds in each.T.tolist()]
        columns["name"][mine[told]] = np.array(called, np.int32)[place.ravel()]


def _of(rows: Ints, known: Ints, values: Column, count: int) -> Ints:
    full = np.full(count, -1, np.int64)
    full[known] = values
    return full[rows]


def _called(plain: str, kinds: Sequence[object]) -> str:
    if plain == SET:
        return f"{SET} ({_memory(kinds[0])})"
    direction = _DIRECTIONS.get(kinds[0], kinds[0]) if isinstance(kinds[0], int) else kinds[0]
    return f"{COPY} {direction} ({_memory(kinds[1])} -> {_memory(kinds[2])})"


def _memory(kind: object) -> str:
    known = _MEMORIES.get(kind, kind) if isinstance(kind, int) else kind
    return str(known).replace("_", " ").title()


def to_streams(
    columns: dict[str, Column], arguments: dict[str, tuple[Ints, Column]], threads: Mapping[tuple[Any, ...], int]
) -> None:
    """Put work of CUDA graphs back on the stream on which it ran, from the lane on which an export draws it.

    ``graph_lanes="all"`` draws all replays on a few lanes. There work of several streams overlaps, and of one stream
    everything overlaps nothing.

    Args:
        columns: of all slices; their threads change.
        arguments: of slices, by name: rows and values; those streams are taken out.
        threads: numbers by place, process and thread, which grow as they are asked for.
    """
    if "original_stream" not in arguments:
        return
    rows, streams = arguments.pop("original_stream")
    lanes, place = np.unique(np.stack([columns["thread"][rows], streams]), axis=1, return_inverse=True)
    known, moved = list(threads), []
    for lane, stream in lanes.T.tolist():
        where, process, _ = known[lane]
        moved.append(threads[where, process, stream])
    columns["thread"][rows] = np.array(moved, np.int32)[place.ravel()]


def number_launches(columns: Mapping[str, Column], given: dict[str, tuple[Ints, Column]]) -> None:
    """Give launches the number of the operator around them, and work that of its launch, where none bears any.

    Kineto does so while it records: in seven recorded traces that have numbers, 25,597 of the 25,598 calls inside of
    operators bear that of the innermost one on the same thread, and all work of devices bears that of its launch. Torch
    before 2.1 had numbers that were none: its launches are given them as well.

    Args:
        columns: of all slices, sorted as in a `Trace`.
        given: their arguments, by name: rows and values; the numbers are added.
    """
    kind = columns["kind"]
    rows, numbers = given.get("external", _NONE)
    calls, operators = np.flatnonzero(kind == Kind.RUNTIME), np.flatnonzero(kind == Kind.OP)
    is_numbered = np.isin(kind[rows], (Kind.RUNTIME, *DEVICE_WORK)).any()
    if is_numbered or not (kind[rows] == Kind.OP).any():
        return
    number = np.full(len(kind), -1, np.int64)
    number[rows] = numbers
    mine = np.sort(np.concatenate([calls, operators]))
    parent = nest(columns["thread"][mine], columns["start"][mine], columns["end"][mine]).parent
    own = np.where(kind[mine] == Kind.OP, number[mine], -1)
    around = np.append(inherited(parent, own), -1)[parent]
    is_call = kind[mine] == Kind.RUNTIME
    number[mine[is_call]] = around[is_call]
    correlation = np.full(len(kind), -1, np.int64)
    bearing, values = given.get("correlation", _NONE)
    correlation[bearing] = values
    work = np.flatnonzero(np.isin(kind, DEVICE_WORK))
    launch = by_number(correlation, calls).of(correlation[work])
    number[work] = np.where(launch >= 0, number[launch], -1)
    bearing = np.flatnonzero(number >= 0)
    given["external"] = (bearing, number[bearing])
