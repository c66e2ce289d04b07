"""What a collective says of itself: operation, process group, type and size of the message."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from perfhooks.trace.names import tensor_types
from perfhooks.trace.names.communication import LABEL, RECORD, library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.trace.model import Ints, Trace

# in this order: an all_reduce is no reduce
_OPERATIONS: Final = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast", "barrier"),
    *("gather", "scatter", "reduce", "send", "recv"),
)
_PLAIN: Final = {name.replace("_", ""): name for name in _OPERATIONS}
_LIMIT: Final = 2**62
"""Bytes: no message has more, and the column of a table has no room for more."""


_LONGEST: Final = 8192
"""Letters of a text that many rows may share."""


class Message(NamedTuple):
    """The columns of a table of collectives that do not depend on time; None is what the trace does not tell."""

    operation: str | None
    name: str
    backend: str | None
    group: str | None
    group_description: str | None
    group_size: int | None
    dtype: str | None
    bytes: int | None


class ProcessGroup(NamedTuple):
    """A process group, as ``distributedInfo`` tells it."""

    description: str | None
    size: int | None


def messages(trace: Trace, rows: Ints, record: Ints, label: Ints, around: Sequence[str | None]) -> list[Message]:
    """Say what each collective moved.

    Args:
        trace: any trace.
        rows: what took the time: kernels, or ranges on the host.
        record: for each of them the slice that has the arguments of a collective, or -1.
        label: for each of them the range that `LABEL` matches, whose inputs are the tensors, or -1.
        around: for each of them the name of the operator that launched it, see `collectives.operators`.
    """
    known = groups(trace)
    only = next(iter(known)) if len(known) == 1 else None
    texts = {name: _texts(trace, name, record) for name in ("collective", "dtype", "group_name")}
    counts = {name: _numbers(trace, name, record) for name in ("in_elements", "out_elements", "group_size")}
    inputs = zip(_texts(trace, "dims", label), _texts(trace, "types", label), strict=True)
    labels = [LABEL.match(trace.names[trace.name[row]]) if row >= 0 else None for row in label.tolist()]
    told = []
    for place, (row, match, (dims, types)) in enumerate(zip(rows.tolist(), labels, inputs, strict=True)):
        name = trace.names[trace.name[row]]
        group = word(texts["group_name"][place]) or only
        stored = known.get(group or "", ProcessGroup(None, None))
        dtype = word(texts["dtype"][place])
        size = counts["group_size"][place] if counts["group_size"][place] > 0 else stored.size
        said = library(name)
        operation = _first_operation(
            texts["collective"][place],
            match[2] if match else None,
            said.operation if said else None,
            name,
            around[place],
        )
        elements = max(counts["in_elements"][place], counts["out_elements"][place])
        moved = _bytes(elements, dtype) if elements >= 0 else _input_bytes(dims, types, operation, size)
        told.append(
            Message(
                operation=operation,
                name=name,
                backend=match[1] if match else _backend(trace, name),
                group=group,
                group_description=stored.description,
                group_size=size,
                dtype=dtype or _input_type(types),
                bytes=moved if moved is not None and moved < _LIMIT else None,
            )
        )
    return told


def groups(trace: Trace) -> dict[str, ProcessGroup]:
    """The process groups of the job, by name."""
    info = trace.metadata.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    described = {}
    for config in listed if isinstance(listed, list) else ():
        name = word(config.get("pg_name")) if isinstance(config, dict) else None
        if name is not None:
            description, size = word(config.get("pg_desc")), config.get("pg_size")
            size = size if type(size) is int and 0 < size < _LIMIT else None
            described[name] = ProcessGroup(None if description == "undefined" else description, size)
    return described


def operation(text: object) -> str | None:
    """The common name of a collective, whatever a backend calls it; None if it is none.

    ``allreduce``, ``_allgather_base``, ``ncclDevKernel_AllReduce_Sum_f32_RING_LL`` and so on.
    """
    plain = re.sub(r"[^a-z]", "", text.lower()) if isinstance(text, str) else ""
    return next((_PLAIN[each] for each in _PLAIN if each in plain), None)


def _first_operation(*texts: object) -> str | None:
    return next(filter(None, map(operation, texts)), None)


def _backend(trace: Trace, name: str) -> str | None:
    of = library(name)
    info = trace.metadata.get("distributedInfo")
    # a record that names no library is of the job's
    usual = info.get("backend") if isinstance(info, dict) and name == RECORD else None
    return of.name if of else word(usual)


def _bytes(elements: int, dtype: str | None) -> int | None:
    width = tensor_types.size(dtype)
    return elements * width if width else None


def _input_bytes(dims: object, types: object, operation: str | None, size: int | None) -> int | None:
    """The size of a message from its input tensors; what is gathered is as large as the inputs of all ranks."""
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    total = 0
    for shape, dtype in zip(dims, types, strict=False):
        width = tensor_types.size(word(dtype))
        if width and isinstance(shape, list) and all(type(each) is int and 0 <= each < _LIMIT for each in shape):
            total += math.prod(shape[:16]) * width
    if not total or (operation == "all_gather" and size is None):
        return None
    return total * (size or 1) if operation == "all_gather" else total


def _input_type(types: object) -> str | None:
    known = [each for each in types if tensor_types.size(word(each))] if isinstance(types, list) else []
    return known[0] if known else None


def word(value: object) -> str | None:
    """A text, or its beginning, as files can hold it, where JSON can spell some that they cannot; None for others."""
    return value[:_LONGEST].encode("utf-8", "replace").decode() if isinstance(value, str) and value else None


def _texts(trace: Trace, name: str, rows: Ints) -> list[Any]:
    """An argument of some rows, decoded once each; None where absent."""
    index = np.append(trace.argument(name), -1)[rows].astype(np.int64)
    decoded = {number: trace.text(number) for number in set(index.tolist())}
    return [decoded[number] for number in index.tolist()]


def _numbers(trace: Trace, name: str, rows: Ints) -> list[int]:
    numbers: list[int] = np.append(trace.argument(name), -1)[rows].tolist()
    return numbers
