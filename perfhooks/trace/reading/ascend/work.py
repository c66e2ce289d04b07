from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from perfhooks.core import words
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
_KERNEL: Final = re.compile(r"AI_?(?:CORE|CPU|VEC)|^AI[CV](?:_SQE)?$|MIX|DSA|^KERNEL_|C_CORE|HOST_CPU|VPC|JPEG|TOF|VQ6")
_UNTYPED: Final = re.compile(r"(?:OTHER|UNKNOWN|N/?A)?$")
"""Task types of torch_npu in January 2024, which do not identify kernels, so that names decide."""
_COLLECTIVE: Final = re.compile(r"hc(?:om|cl)_?([A-Za-z]+)(?:__(\d+)_\d)?")
"""Pattern for the operation and the last digits of the process group in a name such as ``hcom_allReduce__586_0_1``."""
_WAIT_KIND: Final = "Stream Wait Event"
_NONE: Final = np.empty(0, np.int64), np.empty(0, np.int64)


class Numbers(NamedTuple):
    """Indices of names, texts and threads. Each mapping adds missing keys.

    Texts are numbered from 1, but `Trace.texts` begins at index 0.
    """

    names: Mapping[str, int]
    texts: Mapping[bytes, int]
    threads: Mapping[tuple[Lane, int | str, int | str], int]

    def text(self, value: object) -> int:
        return self.texts[msgspec.json.encode(value)] - 1


def classify(
    processes: Processes, numbers: Numbers, columns: Mapping[str, Column], arguments: dict[str, tuple[Ints, Column]]
) -> Iterator[Doubt]:
    """Set the kinds and threads of all slices. Yield one of `Trace.doubts` if types of tasks are unknown."""
    threads = list(numbers.threads)
    role = np.array([processes.role(pid).value for _, pid, _ in threads], np.int64)[columns["thread"]]
    kind, name = columns["kind"], columns["name"]
    kind[role == Role.CANN.value] = Kind.RUNTIME
    kind[role == Role.GARBAGE.value] = Kind.PYTHON
    name[role == Role.GARBAGE.value] = numbers.names[GARBAGE]
    unknown = _classify_tasks(numbers, columns, arguments, np.flatnonzero(role == Role.DEVICE.value))
    groups = [processes.group(pid, tid) for _, pid, tid in threads]
    is_group = np.array([group is not None for group in groups], np.bool_)
    _classify_collectives(numbers, columns, arguments, np.flatnonzero(is_group[columns["thread"]]), groups)
    # slices without a lane keep their threads
    has_lane = np.array([lane(value) is not Lane.OTHER for value in Kind], np.bool_)[kind]
    keys = [processes.thread_key(pid, tid) for _, pid, tid in threads]
    by_thread = [number if key is None else numbers.threads[key] for number, key in enumerate(keys)]
    columns["thread"][has_lane] = np.array(by_thread, np.int32)[columns["thread"][has_lane]]
    if unknown:
        yield Doubt(
            "unknown-tasks",
            unknown,
            f"not counted as work of the device: {words.count(unknown, 'task')} of an unknown type",
        )


def _classify_tasks(
    numbers: Numbers, columns: Mapping[str, Column], arguments: dict[str, tuple[Ints, Column]], rows: Ints
) -> int:
    types = _values_of(arguments.pop("task_type", _NONE), rows, len(columns["kind"]))
    name = columns["name"][rows].astype(np.int64)
    pairs, position = np.unique(np.stack([types, name]), axis=1, return_inverse=True)
    names, texts = list(numbers.names), list(numbers.texts)
    pair_kinds = [
        _kind(names[number], str(decode_value(texts[text + 1])) if text >= 0 else "")
        for text, number in pairs.T.tolist()
    ]
    kind = np.array([Kind.OTHER if value is None else value for value in pair_kinds], np.int8)[position.ravel()]
    columns["kind"][rows] = kind
    waits = rows[kind == Kind.SYNC]
    arguments["sync_kind"] = waits, np.full(len(waits), numbers.text(_WAIT_KIND))
    return int(np.array([value is None for value in pair_kinds], np.bool_)[position.ravel()].sum())


def _kind(name: str, task_type: str) -> Kind | None:
    upper_name, upper_type = name.upper(), task_type.upper()
    if _COPY.match(upper_name):
        return Kind.COPY
    if _STREAM_WAIT.match(upper_name):
        return Kind.SYNC
    if _NO_WORK.match(upper_name) or _NO_WORK.search(upper_type):
        return Kind.OTHER
    return Kind.KERNEL if _KERNEL.search(upper_type) or _UNTYPED.match(upper_type) else None


def _classify_collectives(
    numbers: Numbers,
    columns: Mapping[str, Column],
    arguments: dict[str, tuple[Ints, Column]],
    rows: Ints,
    groups: list[str | None],
) -> None:
    columns["kind"][rows] = Kind.KERNEL
    for name in ("in_elements", "dtype"):  # slices without device work may have arguments with these names
        slices, values = arguments.pop(name, _NONE)
        is_collective = np.isin(slices, rows)
        arguments[name] = slices[is_collective], values[is_collective]
    names = list(numbers.names)
    pairs, position = np.unique(np.stack([columns["name"][rows], columns["thread"][rows]]), axis=1, return_inverse=True)
    texts: list[tuple[int, int]] = []
    for name, thread in pairs.T.tolist():
        match = _COLLECTIVE.match(names[name])
        operation, suffix = match.groups() if match else (names[name], None)
        texts.append((numbers.text(operation), numbers.text(suffix or groups[thread])))
    for argument, values in zip(("collective", "group_name"), np.array(texts, np.int64).reshape(-1, 2).T, strict=True):
        arguments[argument] = rows, values[position.ravel()]


def _values_of(argument: tuple[Ints, Column], rows: Ints, count: int) -> Any:
    full = np.full(count, -1, np.int64)
    full[argument[0]] = argument[1]
    return full[rows]
