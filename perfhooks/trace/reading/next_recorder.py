"""Conversion of traces of cuspy, the second recorder of torch (since torch 2.15), to Kineto's form.

Sources: ``torch/profiler/_cuspy/trace.py`` of torch 2.15, and ``ActivityStrings.cpp`` for Kineto's names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from perfhooks.trace.kinds import DEVICE_WORK, Kind
from perfhooks.trace.model import by_number
from perfhooks.trace.names.device_work import WITHIN_HOST
from perfhooks.trace.nesting.slices import inherited, nest
from perfhooks.trace.reading.events import decode_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perfhooks.trace.model import Column, Ints

COPY: Final = "Memcpy"
SET: Final = "Memset"
CALLS: Final = frozenset({"cuda_runtime", "cuda_driver"})
"""Categories of CUDA calls whose events get external ids. cuspy, the second recorder of torch, supports only CUDA."""
KINDS: Final = ("copy_kind", "source_kind", "target_kind", "memory_kind")
"""Arguments with a number for the kind of a copy or memory, where Kineto writes a name."""
_DIRECTIONS: Final = {9: WITHIN_HOST}
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
    """Give copies and memsets the names of Kineto, and remove the arguments `KINDS` that form these names."""
    columns_by_kind = {kind: arguments.pop(kind, _NONE) for kind in KINDS}
    for plain, kinds in ((COPY, KINDS[:3]), (SET, KINDS[3:])):
        if plain not in names:
            continue
        slices = np.flatnonzero(columns["name"] == names[plain])
        values = np.stack([_values_of(slices, *columns_by_kind[kind], len(columns["name"])) for kind in kinds])
        is_complete = (values >= 0).all(axis=0)
        distinct, position = np.unique(values[:, is_complete], axis=1, return_inverse=True)
        numbers = [names[_full_name(plain, [decode_value(texts[text]) for text in row])] for row in distinct.T.tolist()]
        columns["name"][slices[is_complete]] = np.array(numbers, np.int32)[position.ravel()]


def _values_of(slices: Ints, rows: Ints, values: Column, count: int) -> Ints:
    full = np.full(count, -1, np.int64)
    full[rows] = values
    return full[slices]


def _full_name(plain: str, kinds: Sequence[object]) -> str:
    if plain == SET:
        return f"{SET} ({_memory(kinds[0])})"
    direction = _DIRECTIONS.get(kinds[0], kinds[0]) if isinstance(kinds[0], int) else kinds[0]
    return f"{COPY} {direction} ({_memory(kinds[1])} -> {_memory(kinds[2])})"


def _memory(kind: object) -> str:
    name = _MEMORIES.get(kind, kind) if isinstance(kind, int) else kind
    return str(name).replace("_", " ").title()


def to_streams(
    columns: dict[str, Column], arguments: dict[str, tuple[Ints, Column]], threads: Mapping[tuple[Any, ...], int]
) -> None:
    """Move work of CUDA graphs to the stream on which it ran.

    If ``graph_lanes="all"`` is set, cuspy writes all replays on a few lanes, where work of several streams overlaps.
    """
    if "original_stream" not in arguments:
        return
    rows, streams = arguments.pop("original_stream")
    lanes, position = np.unique(np.stack([columns["thread"][rows], streams]), axis=1, return_inverse=True)
    keys, numbers = list(threads), []
    for thread, stream in lanes.T.tolist():
        lane, process, _ = keys[thread]
        numbers.append(threads[lane, process, stream])
    columns["thread"][rows] = np.array(numbers, np.int32)[position.ravel()]


def number_launches(columns: Mapping[str, Column], arguments: dict[str, tuple[Ints, Column]]) -> None:
    """Add external ids: a launch gets the id of the operator around the launch, and device work that of its launch.

    Ids are added only if the trace has no ids, or wrong ids (torch before 2.1). In seven traces, this function
    reproduces the recorded ids of all device work and of 25,597 of 25,598 calls.
    """
    kind = columns["kind"]
    rows, numbers = arguments.get("external", _NONE)
    calls, operators = np.flatnonzero(kind == Kind.RUNTIME), np.flatnonzero(kind == Kind.OP)
    is_numbered = np.isin(kind[rows], (Kind.RUNTIME, *DEVICE_WORK)).any()
    if is_numbered or not (kind[rows] == Kind.OP).any():
        return
    number = np.full(len(kind), -1, np.int64)
    number[rows] = numbers
    slices = np.sort(np.concatenate([calls, operators]))
    parent = nest(columns["thread"][slices], columns["start"][slices], columns["end"][slices]).parent
    operator_number = np.where(kind[slices] == Kind.OP, number[slices], -1)
    outer_number = np.append(inherited(parent, operator_number), -1)[parent]
    is_call = kind[slices] == Kind.RUNTIME
    number[slices[is_call]] = outer_number[is_call]
    correlation = np.full(len(kind), -1, np.int64)
    numbered, values = arguments.get("correlation", _NONE)
    correlation[numbered] = values
    work = np.flatnonzero(np.isin(kind, DEVICE_WORK))
    launch = by_number(correlation, calls).of(correlation[work])
    number[work] = np.where(launch >= 0, number[launch], -1)
    numbered = np.flatnonzero(number >= 0)
    arguments["external"] = (numbered, number[numbered])
