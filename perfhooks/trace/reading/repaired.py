from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from perfhooks.core import labels
from perfhooks.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from perfhooks.trace.model import Column, Ints

_Lane = tuple[int | str, int | str, int | str]

_UNKNOWN: Final = "unknown"


def restore(
    columns: dict[str, Column],
    arguments: dict[str, tuple[Ints, Column]],
    threads: MutableMapping[tuple[Any, ...], int],
    names: MutableMapping[str, int],
    metadata: Mapping[str, Any],
) -> None:
    """Undo `perfhooks.trace.writing.repair`, and name frames that Kineto calls ``unknown``.

    Slices must have file order.
    """
    for argument, column, sign in (("moved_start", "start", -1), ("moved_end", "end", 1)):
        if argument in arguments:
            rows, distance = arguments.pop(argument)
            columns[column][rows] += sign * np.clip(distance, 0, 2**59)
    lanes, frames = metadata.get(labels.LANES), metadata.get(labels.FRAME_NAMES)
    if lanes is not None:
        _restore_threads(columns, threads, _thread_by_lane(lanes))
    if isinstance(frames, dict) and _UNKNOWN in names:
        _name_frames(columns, names, frames.get("names"), frames.get("frames"))


def _thread_by_lane(lanes: object) -> dict[tuple[int | str, int | str], int | str]:
    try:
        return {(pid, lane): tid for pid, lane, tid in msgspec.convert(lanes, list[_Lane])}
    except msgspec.ValidationError:
        return {}


def _restore_threads(
    columns: dict[str, Column], threads: MutableMapping[tuple[Any, ...], int], lanes: Mapping[tuple[Any, Any], Any]
) -> None:
    keys = list(threads)
    restored = np.arange(len(keys), dtype=columns["thread"].dtype)
    for number, (kind, pid, tid) in enumerate(keys):
        if (pid, tid) in lanes:
            restored[number] = threads[kind, pid, lanes[pid, tid]]
    columns["thread"] = restored[columns["thread"]]


def _name_frames(columns: dict[str, Column], names: MutableMapping[str, int], distinct: object, frames: object) -> None:
    rows = np.flatnonzero((columns["kind"] == Kind.PYTHON) & (columns["name"] == names[_UNKNOWN]))
    if not (isinstance(distinct, list) and isinstance(frames, list) and len(frames) == len(rows) > 0):
        return
    are_indices = all(type(index) is int and 0 <= index < len(distinct) for index in frames)
    if are_indices and all(isinstance(name, str) for name in distinct):
        numbers = np.array([names[name] for name in distinct], columns["name"].dtype)
        columns["name"][rows] = numbers[np.array(frames, np.int64)]
