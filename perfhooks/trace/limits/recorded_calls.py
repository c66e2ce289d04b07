"""What a trace recorded of the arguments of operators, for formulas over them."""

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
"""A number of a call, or None where its arguments do not tell."""

_LIMIT: Final = 2**56
"""No operator computes or moves more; shapes that say so are damaged."""
_DIMENSIONS: Final = 64
"""No tensor has more: most operators of torch refuse one (``TensorIterator``). The product of a hundred thousand sizes
would take a minute."""
_GIVEN: Final = ("dims", "inputs", "types")
_MALFORMED: Final = (IndexError, ValueError, ZeroDivisionError, OverflowError)


class Call(NamedTuple):
    """The arguments of a call of an operator, as they were recorded with ``record_shapes=True``."""

    shapes: Sequence[Shape]
    """Of tensors; those of everything else are empty."""
    arguments: Sequence[str]
    """Numbers and lists of numbers, written out; empty for tensors."""
    types: Sequence[str]
    """As the trace spells them."""


def per_call(trace: Trace, rows: Ints, formulas: Mapping[str, Formula]) -> Ints:
    """The value of a formula for each slice, or -1: not recorded, or no formula knows it.

    Args:
        trace: any trace; shapes are in it if they were recorded (``record_shapes=True``).
        rows: slices of the trace.
        formulas: by the name of the operator.
    """
    wanted = np.array([name in formulas for name in trace.names] or [False])[trace.name[rows]]
    chosen = np.flatnonzero(wanted & (trace.kind[rows] == Kind.OP))
    name, *given = trace.name[rows[chosen]], *(trace.argument(what)[rows[chosen]] for what in _GIVEN)
    alike = groups(name, *(text + 1 for text in given))  # -1 is none
    keys = zip(*(each[alike.first].tolist() for each in (name, *given)), strict=True)
    values = [_evaluated(trace, formulas[trace.names[number]], *texts) for number, *texts in keys]
    found = np.full(len(rows), -1, np.int64)
    found[chosen] = np.array(values, np.int64)[alike.of]
    return found


def _evaluated(trace: Trace, formula: Formula, dims: int, inputs: int, types: int) -> int:
    shapes = trace.text(dims)
    if not isinstance(shapes, list):
        return -1
    try:
        value = formula(Call(_Shapes(shapes), _texts(trace, inputs), _texts(trace, types)))
    except _MALFORMED:
        return -1
    return value if value is not None and 0 <= value < _LIMIT else -1


def _texts(trace: Trace, place: int) -> list[str]:
    found = trace.text(place)
    return [text if isinstance(text, str) else "" for text in found] if isinstance(found, list) else []


class _Shapes(list[Any]):
    """The shapes of a call's arguments, looked at when they are needed: only tensors must have one."""

    def __getitem__(self, place: Any) -> Any:
        taken = super().__getitem__(place)
        for shape in taken if isinstance(place, slice) else [taken]:
            if not isinstance(shape, list) or len(shape) > _DIMENSIONS:
                raise ValueError("no shape of a tensor")
            if any(type(size) is not int or size < 0 for size in shape):
                raise ValueError(f"no shape of a tensor: {shape!r}")
        return taken
