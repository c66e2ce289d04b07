from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.nesting.grouping import groups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from perfhooks.trace.model import Ints, Trace

Shape: TypeAlias = "list[int]"
Formula: TypeAlias = "Callable[[Call], int | None]"
"""Function that computes a number from a call; None if the arguments do not determine it."""

_DIMENSIONS: Final = 64
"""Maximum dimensions of a tensor in ``TensorIterator`` of torch."""
_ARGUMENTS: Final = ("dims", "inputs", "types")
_MALFORMED: Final = (IndexError, ValueError, ZeroDivisionError, OverflowError)


class Call(NamedTuple):
    shapes: Sequence[Shape]
    """Shape of each argument. Arguments other than tensors have an empty shape."""
    arguments: Sequence[str]
    """Value of each argument as text. Tensors have an empty text."""
    types: Sequence[str]


def per_call(trace: Trace, rows: Ints, formulas: Mapping[str, Formula]) -> Ints:
    """Return the value of the operator's formula for each slice, or -1."""
    has_formula = np.array([name in formulas for name in trace.names] or [False])[trace.name[rows]]
    calls = np.flatnonzero(has_formula & (trace.kind[rows] == Kind.OP))
    name, *arguments = trace.name[rows[calls]], *(trace.argument(column)[rows[calls]] for column in _ARGUMENTS)
    by_arguments = groups(name, *(text + 1 for text in arguments))
    keys = zip(*(column[by_arguments.first].tolist() for column in (name, *arguments)), strict=True)
    values = [_evaluate(trace, formulas[trace.names[number]], *texts) for number, *texts in keys]
    result = np.full(len(rows), -1, np.int64)
    result[calls] = np.array(values, np.int64)[by_arguments.of]
    return result


def _evaluate(trace: Trace, formula: Formula, dims: int, inputs: int, types: int) -> int:
    shapes = trace.text(dims)
    if not isinstance(shapes, list):
        return -1
    try:
        value = formula(Call(_Shapes(shapes), _texts(trace, inputs), _texts(trace, types)))
    except _MALFORMED:
        return -1
    # larger values come from damaged shapes
    return value if value is not None and 0 <= value < 2**56 else -1


def _texts(trace: Trace, number: int) -> list[str]:
    texts = trace.text(number)
    return [text if isinstance(text, str) else "" for text in texts] if isinstance(texts, list) else []


class _Shapes(list[Any]):
    """Shapes that are validated on access, because formulas read the shapes of only some arguments."""

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        for shape in item if isinstance(index, slice) else [item]:
            if not isinstance(shape, list) or len(shape) > _DIMENSIONS:
                raise ValueError("an argument has no valid shape")
            if any(type(size) is not int or size < 0 for size in shape):
                raise ValueError(f"an argument has no valid shape: {shape!r}")
        return item
