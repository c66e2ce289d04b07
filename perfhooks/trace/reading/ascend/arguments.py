from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from perfhooks.trace.bounds import MAX_DIGITS
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names.tensor_types import LISTS
from perfhooks.trace.reading.arguments import NOTHING, Arguments, MarkedStruct
from perfhooks.trace.reading.events import decode_value

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Ints
    from perfhooks.trace.reading.ascend.work import Numbers


class Task(Arguments, gc=False):
    """Arguments of device work, launch calls, and the queue between host threads."""

    task_type: msgspec.Raw = msgspec.field(default=NOTHING, name="Task Type")
    connection: int | str = msgspec.field(default=-1, name="connection_id")
    queue: int | str = msgspec.field(default=-1, name="correlation_id")
    in_elements: int = msgspec.field(default=-1, name="count")
    dtype: msgspec.Raw = msgspec.field(default=NOTHING, name="data_type")


TASKS: Final = {Kind.OTHER: (MarkedStruct(b'_id"', Task), MarkedStruct(b"", Arguments))}

_INPUTS: Final = ("dims", "types")
_NO_INPUT: Final = "None"
_NONE: Final = np.empty(0, np.int64), np.empty(0, np.int64)


def split_inputs(arguments: dict[str, tuple[Ints, Column]], numbers: Numbers) -> None:
    r"""Replace shapes and types that are a single text (``"8,64;\r\n"``) by lists, as in other traces.

    Ascend does not record the shapes in lists of tensors, which become null.
    """
    texts = list(numbers.texts)[1:]
    count = max((int(arguments[name][0].max(initial=-1)) + 1 for name in _INPUTS if name in arguments), default=0)
    columns = np.full((2, count), -1, np.int64)
    for column, name in zip(columns, _INPUTS, strict=True):
        rows, values = arguments.get(name, _NONE)
        column[rows] = values
    rows = np.flatnonzero((columns >= 0).any(axis=0))
    pairs, position = np.unique(columns[:, rows], axis=1, return_inverse=True)
    split = []
    for pair in pairs.T.tolist():
        dims, types = (decode_value(texts[index]) if index >= 0 else None for index in pair)
        lists = _lists(dims, types)
        split.append([-1 if value is None else numbers.text(value) for value in lists])
    for name, values in zip(_INPUTS, np.array(split, np.int64).reshape(-1, 2).T, strict=True):
        of_row = values[position.ravel()]
        arguments[name] = rows[of_row >= 0], of_row[of_row >= 0]


def _lists(dims: Any, types: Any) -> tuple[list[Any] | None, list[Any] | None]:
    shapes = [_shape(text) for text in dims.split(";")] if isinstance(dims, str) else dims
    words = [word.strip() for word in types.split(";")] if isinstance(types, str) else types
    if isinstance(types, str) and isinstance(dims, str) and len(words) == len(shapes):
        shapes = [None if word in LISTS and not shape else shape for word, shape in zip(words, shapes, strict=True)]
        words = ["" if word == _NO_INPUT else word for word in words]
    return shapes, words


def _shape(text: str) -> list[int] | None:
    sizes = [size.strip() for size in text.split(",")] if text.strip() else []
    return (
        [int(size) for size in sizes] if all(size.isdecimal() and len(size) <= MAX_DIGITS for size in sizes) else None
    )
