from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from perfhooks.trace.bounds import MAX_NUMBER
from perfhooks.trace.names import tensor_types
from perfhooks.trace.names.communication import LABEL, RECORD, library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.trace.model import Ints, Trace

# the order matters: all_reduce contains reduce
_OPERATIONS: Final = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast", "barrier"),
    *("gather", "scatter", "reduce", "send", "recv"),
)
_PLAIN: Final = {name.replace("_", ""): name for name in _OPERATIONS}


class Message(NamedTuple):
    operation: str | None
    name: str
    backend: str | None
    group: str | None
    group_description: str | None
    group_size: int | None
    dtype: str | None
    bytes: int | None


class ProcessGroup(NamedTuple):
    """Properties of a process group, from ``distributedInfo`` of the trace."""

    description: str | None
    size: int | None


def messages(trace: Trace, rows: Ints, record: Ints, label: Ints, around: Sequence[str | None]) -> list[Message]:
    """Return operation, backend, process group, data type and size of each collective.

    ``record`` are the slices with the arguments of each collective, ``label`` the slices that match `LABEL`, ``around``
    the launching operators.
    """
    by_name = groups(trace)
    single_group = next(iter(by_name)) if len(by_name) == 1 else None
    texts = {name: _texts(trace, name, record) for name in ("collective", "dtype", "group_name")}
    counts = {name: _numbers(trace, name, record) for name in ("in_elements", "out_elements", "group_size")}
    inputs = zip(_texts(trace, "dims", label), _texts(trace, "types", label), strict=True)
    labels = [LABEL.match(trace.names[trace.name[row]]) if row >= 0 else None for row in label.tolist()]
    result = []
    for index, (row, match, (dims, types)) in enumerate(zip(rows.tolist(), labels, inputs, strict=True)):
        name = trace.names[trace.name[row]]
        group = word(texts["group_name"][index]) or single_group
        process_group = by_name.get(group or "", ProcessGroup(None, None))
        dtype = word(texts["dtype"][index])
        size = counts["group_size"][index] if counts["group_size"][index] > 0 else process_group.size
        kernel_library = library(name)
        operation = _first_operation(
            texts["collective"][index],
            match[2] if match else None,
            kernel_library.operation if kernel_library else None,
            name,
            around[index],
        )
        elements = max(counts["in_elements"][index], counts["out_elements"][index])
        size_bytes = _bytes(elements, dtype) if elements >= 0 else _input_bytes(dims, types, operation, size)
        result.append(
            Message(
                operation=operation,
                name=name,
                backend=match[1] if match else _backend(trace, name),
                group=group,
                group_description=process_group.description,
                group_size=size,
                dtype=dtype or _input_type(types),
                bytes=size_bytes if size_bytes is not None and size_bytes < MAX_NUMBER else None,
            )
        )
    return result


def groups(trace: Trace) -> dict[str, ProcessGroup]:
    info = trace.metadata.get("distributedInfo")
    configs = info.get("pg_config") if isinstance(info, dict) else None
    by_name = {}
    for config in configs if isinstance(configs, list) else ():
        name = word(config.get("pg_name")) if isinstance(config, dict) else None
        if name is not None:
            description, size = word(config.get("pg_desc")), config.get("pg_size")
            size = size if type(size) is int and 0 < size < MAX_NUMBER else None
            by_name[name] = ProcessGroup(None if description == "undefined" else description, size)
    return by_name


def operation(text: object) -> str | None:
    letters = re.sub(r"[^a-z]", "", text.lower()) if isinstance(text, str) else ""
    return next((_PLAIN[plain] for plain in _PLAIN if plain in letters), None)


def _first_operation(*texts: object) -> str | None:
    return next(filter(None, map(operation, texts)), None)


def _backend(trace: Trace, name: str) -> str | None:
    kernel_library = library(name)
    info = trace.metadata.get("distributedInfo")
    # if the name shows no library: the backend of the job
    backend = info.get("backend") if isinstance(info, dict) and name == RECORD else None
    return kernel_library.name if kernel_library else word(backend)


def _bytes(elements: int, dtype: str | None) -> int | None:
    width = tensor_types.size(dtype)
    return elements * width if width else None


def _input_bytes(dims: object, types: object, operation: str | None, size: int | None) -> int | None:
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    total = 0
    for shape, dtype in zip(dims, types, strict=False):
        width = tensor_types.size(word(dtype))
        if width and isinstance(shape, list) and all(type(n) is int and 0 <= n < MAX_NUMBER for n in shape):
            total += math.prod(shape[:16]) * width
    if not total or (operation == "all_gather" and size is None):
        return None
    return total * (size or 1) if operation == "all_gather" else total


def _input_type(types: object) -> str | None:
    names = [name for name in types if tensor_types.size(word(name))] if isinstance(types, list) else []
    return names[0] if names else None


def word(value: object) -> str | None:
    """Return a non-empty text as valid UTF-8 with at most 8192 characters, or None."""
    return value[:8192].encode("utf-8", "replace").decode() if isinstance(value, str) and value else None


def _texts(trace: Trace, name: str, rows: Ints) -> list[Any]:
    index = np.append(trace.argument(name), -1)[rows].astype(np.int64)
    decoded = {number: trace.text(number) for number in set(index.tolist())}
    return [decoded[number] for number in index.tolist()]


def _numbers(trace: Trace, name: str, rows: Ints) -> list[int]:
    numbers: list[int] = np.append(trace.argument(name), -1)[rows].tolist()
    return numbers
