"""Kinds of the slices of torch_npu: kernels, copies, collectives, calls, waits of streams, or no work."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from perfhooks.trace.kinds import Kind, Lane, lane
from perfhooks.trace.model import Doubt
from perfhooks.trace.names.ranges import GARBAGE
from perfhooks.trace.reading.ascend.processes import Role
from perfhooks.trace.reading.events import decode_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perfhooks.trace.model import Column, Ints
    from perfhooks.trace.reading.ascend.processes import Processes

_COPY: Final = re.compile(r"MEMCPY")
_STREAM_WAIT: Final = re.compile(r"EVENT_WAIT")
_NO_WORK: Final = re.compile(
    r"EVENT_|NOTIFY|WRITE[ _]VALUE|PLACE_HOLDER|PROFILING_|SDMA|ROCCE|RDMA|PCIE|CDQM|CONTEXT|^MODEL_|TIMEOUT"
)
"""Names and task types of marks, of waits, and of the parts of collectives."""
_KERNEL: Final = re.compile(r"AI_?(?:CORE|CPU|VEC)|^AI[CV](?:_SQE)?$|MIX|DSA|^KERNEL_|C_CORE|HOST_CPU|VPC|JPEG|TOF|VQ6")
_UNTYPED: Final = re.compile(r"(?:OTHER|UNKNOWN|N/?A)?$")
"""Task types of January 2024. Only names tell these kernels from other tasks."""
_COLLECTIVE: Final = re.compile(r"hc(?:om|cl)_?([A-Za-z]+)(?:__(\d+)_\d)?")
"""``hcom_allReduce__586_0_1``: the operation, and the last digits of the number of the process group."""
_WAIT_KIND: Final = "Stream Wait Event"
"""Name of a stream's wait for an event in CUDA's tracer."""
_NONE: Final = np.empty(0, np.int64), np.empty(0, np.int64)


class Numbers(NamedTuple):
    """Numbers of names, texts and threads. Each mapping adds the keys that it lacks."""

    names: Mapping[str, int]
    texts: Mapping[bytes, int]
    """From 1; indexes into `Trace.texts` are from 0."""
    threads: Mapping[tuple[Lane, int | str, int | str], int]

    def text(self, value: object) -> int:
        """Return the index of a value among the texts."""
        return self.texts[msgspec.json.encode(value)] - 1


def classify(
    processes: Processes, numbers: Numbers, columns: Mapping[str, Column], arguments: dict[str, tuple[Ints, Column]]
) -> Iterator[Doubt]:
    """Give all slices the kinds and the threads of the model.

    Args:
        processes: Of the file.
        numbers: Of names, texts and threads.
        columns: Of all slices, in the order of the file. Kinds, names and threads change.
        arguments: Of slices, by name: rows and values. They change.

    Yields:
        Tasks of an unknown type, which do not count as work.
    """
    threads = list(numbers.threads)
    role = np.array([processes.role(pid).value for _, pid, _ in threads], np.int64)[columns["thread"]]
    kind, name = columns["kind"], columns["name"]
    kind[role == Role.CANN.value] = Kind.RUNTIME
    kind[role == Role.GARBAGE.value] = Kind.PYTHON
    name[role == Role.GARBAGE.value] = numbers.names[GARBAGE]
    unknown = _tasks(numbers, columns, arguments, np.flatnonzero(role == Role.DEVICE.value))
    groups = [processes.group(pid, tid) for _, pid, tid in threads]
    is_group = np.array([group is not None for group in groups], np.bool_)
    _collectives(numbers, columns, arguments, np.flatnonzero(is_group[columns["thread"]]), groups)
    # other slices are not on threads of the model
    has_lane = np.array([lane(value) is not Lane.OTHER for value in Kind], np.bool_)[kind]
    places = [processes.place(pid, tid) for _, pid, tid in threads]
    moved = [number if place is None else numbers.threads[place] for number, place in enumerate(places)]
    columns["thread"][has_lane] = np.array(moved, np.int32)[columns["thread"][has_lane]]
    if unknown:
        yield Doubt("unknown-tasks", unknown, f"{unknown} tasks of an unknown type do not count as work of the device")


def _tasks(
    numbers: Numbers, columns: Mapping[str, Column], arguments: dict[str, tuple[Ints, Column]], rows: Ints
) -> int:
    """Classify the tasks of the device; return how many are of an unknown type."""
    types = _of(arguments.pop("task_type", _NONE), rows, len(columns["kind"]))
    name = columns["name"][rows].astype(np.int64)
    pairs, place = np.unique(np.stack([types, name]), axis=1, return_inverse=True)
    names, texts = list(numbers.names), list(numbers.texts)
    decided = [
        _kind(names[number], str(decode_value(texts[text + 1])) if text >= 0 else "")
        for text, number in pairs.T.tolist()
    ]
    kind = np.array([Kind.OTHER if each is None else each for each in decided], np.int8)[place.ravel()]
    columns["kind"][rows] = kind
    waits = rows[kind == Kind.SYNC]
    arguments["sync_kind"] = waits, np.full(len(waits), numbers.text(_WAIT_KIND))
    return int(np.array([each is None for each in decided], np.bool_)[place.ravel()].sum())


def _kind(name: str, task_type: str) -> Kind | None:
    """Return what a task is; None if nothing tells."""
    called, of_type = name.upper(), task_type.upper()
    if _COPY.match(called):
        return Kind.COPY
    if _STREAM_WAIT.match(called):
        return Kind.SYNC
    if _NO_WORK.match(called) or _NO_WORK.search(of_type):
        return Kind.OTHER
    return Kind.KERNEL if _KERNEL.search(of_type) or _UNTYPED.match(of_type) else None


def _collectives(
    numbers: Numbers,
    columns: Mapping[str, Column],
    arguments: dict[str, tuple[Ints, Column]],
    rows: Ints,
    groups: list[str | None],
) -> None:
    """Classify the collectives, and write their operation and group as other recorders do."""
    columns["kind"][rows] = Kind.KERNEL
    for name in ("in_elements", "dtype"):  # other slices may have arguments of these names
        known, values = arguments.pop(name, _NONE)
        is_mine = np.isin(known, rows)
        arguments[name] = known[is_mine], values[is_mine]
    names = list(numbers.names)
    pairs, place = np.unique(np.stack([columns["name"][rows], columns["thread"][rows]]), axis=1, return_inverse=True)
    texts: list[tuple[int, int]] = []
    for name, thread in pairs.T.tolist():
        found = _COLLECTIVE.match(names[name])
        operation, suffix = found.groups() if found else (names[name], None)
        texts.append((numbers.text(operation), numbers.text(suffix or groups[thread])))
    for argument, values in zip(("collective", "group_name"), np.array(texts, np.int64).reshape(-1, 2).T, strict=True):
        arguments[argument] = rows, values[place.ravel()]


def _of(argument: tuple[Ints, Column], rows: Ints, count: int) -> Any:
    full = np.full(count, -1, np.int64)
    full[argument[0]] = argument[1]
    return full[rows]
