"""Floating point operations, from the shapes and arguments that a trace recorded."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import operators
from perfhooks.trace.nesting.slices import inherited

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from perfhooks.trace.model import Ints, Trace

Shape: TypeAlias = "list[int]"
Formula: TypeAlias = "Callable[[Sequence[Shape], Sequence[str]], int | None]"

_LIMIT: Final = 2**56
"""No operator does more; shapes that say so are damaged."""
_DIMENSIONS: Final = 64
"""No tensor has more: most operators of torch refuse one (``TensorIterator``). The product of a hundred thousand sizes
would take a minute."""
_MALFORMED: Final = (IndexError, ValueError, ZeroDivisionError, OverflowError)
_INTEGER: Final = re.compile(r"-?\d+")


def per_call(trace: Trace, rows: Ints, formulas: Mapping[str, Formula]) -> Ints:
    """The floating point operations of each slice by some formulas, or -1: not recorded, or no formula knows it.

    Args:
        trace: any trace; shapes are in it if they were recorded (``record_shapes=True``).
        rows: slices of the trace.
        formulas: by the name of the operator; `BY_TORCH` or `MISSED_BY_TORCH`.
    """
    wanted = np.array([name in formulas for name in trace.names] or [False])[trace.name[rows]]
    chosen = np.flatnonzero(wanted & (trace.kind[rows] == Kind.OP))
    keys = np.stack([trace.name[rows[chosen]], *(trace.argument(what)[rows[chosen]] for what in ("dims", "inputs"))])
    distinct, place = np.unique(keys, axis=1, return_inverse=True)
    values = [_evaluated(trace, formulas, *key) for key in distinct.T.tolist()]
    operations = np.full(len(rows), -1, np.int64)
    operations[chosen] = np.array(values, np.int64)[place.ravel()]
    return operations


def missed_per_call(trace: Trace, rows: Ints, parent: Ints) -> Ints:
    """The floating point operations that torch's profiler forgets, for each call, or -1 for calls without any.

    A call that is part of one that was counted, by torch or here, counts nothing itself: ``aten::convolution`` is only
    counted where it was not called by an ``aten::conv2d`` that torch knew.

    Args:
        trace: any trace.
        rows: slices of the trace.
        parent: for each of them the one around it, as a place in ``rows``, or -1.
    """
    missed = per_call(trace, rows, MISSED_BY_TORCH)
    counted = (missed > 0) | (per_call(trace, rows, BY_TORCH) > 0)
    inside = np.append(inherited(parent, np.where(counted, 1, -1)), -1)[parent] > 0
    return np.where(inside, -1, missed)


def _evaluated(trace: Trace, formulas: Mapping[str, Formula], name: int, dims: int, inputs: int) -> int:
    shapes, arguments = trace.text(dims), trace.text(inputs)
    if not isinstance(shapes, list):
        return -1
    texts = [text if isinstance(text, str) else "" for text in arguments] if isinstance(arguments, list) else []
    try:
        value = formulas[trace.names[name]](_Shapes(shapes), texts)
    except _MALFORMED:
        return -1
    return value if value is not None and 0 <= value < _LIMIT else -1


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


def _numbers(argument: str, count: int) -> list[int]:
    """An argument that is a list, such as ``[1, 1]``; a single number stands for all."""
    numbers = [int(digits) for digits in _INTEGER.findall(argument)]
    return numbers * count if len(numbers) == 1 else numbers


def _elementwise(shapes: Sequence[Shape], _: Sequence[str]) -> int:
    return math.prod(shapes[0])


def _matmul(a: Shape, b: Shape) -> int:
    return 2 * math.prod(a) // a[-1] * math.prod(b) if a and a[-1] else 0


def _batched_matmul(a: Shape, b: Shape) -> int:
    return 2 * math.prod(a) // a[-1] // a[0] * math.prod(b) if a and a[-1] and a[0] else 0


def _conv2d(shapes: Sequence[Shape], arguments: Sequence[str]) -> int | None:
    image, weight = shapes[0], shapes[1]
    stride, padding, dilation = (_INTEGER.findall(argument) for argument in arguments[3:6])
    if (len(image), len(weight), len(stride), len(padding), len(dilation)) != (4, 4, 2, 2, 2):
        return None  # torch gives up as well: no batch, or a padding that is a word
    out = [
        (size + 2 * int(pad) - int(gap) * (kernel - 1) - 1) // int(step) + 1
        for size, kernel, step, pad, gap in zip(image[2:], weight[2:], stride, padding, dilation, strict=True)
    ]
    return 2 * image[0] * math.prod(out) * math.prod(weight[2:]) * image[1] * weight[0] // int(arguments[6])


def _gemm(name: str, left: int, right: int) -> Formula:
    multiply = _batched_matmul if re.match(operators.BATCHED_GEMMS, name) else _matmul
    return lambda shapes, _: multiply(shapes[left], shapes[right])


BY_TORCH: Final[Mapping[str, Formula]] = {
    **{name: _gemm(name, *places) for name, places in operators.FACTORS.items()},
    operators.CONV2D: _conv2d,
    **dict.fromkeys(operators.COUNTED_ELEMENTWISE, _elementwise),
}
"""What ``with_flops=True`` counts, and how: ``computeFlops`` in ``torch/csrc/profiler/util.cpp`` of torch 2.4 to 2.15.

A product of matrices is 2·m·n·k (additions of ``addmm`` and ``baddbmm`` left out), a convolution
2·N·C_in·C_out·H_out·W_out·k_h·k_w / groups, an element-wise operator one for each element of its first input.
"""


def _convolution(shapes: Sequence[Shape], arguments: Sequence[str]) -> int:
    """2·N·|weight|·|positions|, where the positions are the output's, or the input's if transposed."""
    image, weight = shapes[0], shapes[1]
    space = image[2:]
    if arguments[6] != "True":
        count = len(space)
        options = [_numbers(argument, count) for argument in arguments[3:6]]
        space = [
            (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
            for size, kernel, step, pad, gap in zip(space, weight[2:], *options, strict=True)
        ]
    return 2 * image[0] * math.prod(weight) * math.prod(space)


def _convolution_backward(shapes: Sequence[Shape], arguments: Sequence[str]) -> int:
    """As much as forward for each of the two gradients, of the input and of the weight, that was asked for."""
    gradient, image, weight = shapes[0], shapes[1], shapes[2]
    space = image if arguments[7] == "True" else gradient
    wanted = [flag.strip() in ("True", "1") for flag in arguments[10].strip("[]").split(",")]
    return 2 * image[0] * math.prod(weight) * math.prod(space[2:]) * sum(wanted[:2])


def _attention(query: Shape, key: Shape, value: Shape, products: tuple[int, int]) -> int:
    """Products over queries, keys and the size of keys (first), and of values (second); 2 operations an element."""
    batch, heads, queries, size = query
    return 2 * math.prod([batch, heads, queries, key[2]]) * (products[0] * size + products[1] * value[3])


def _attention_forward(shapes: Sequence[Shape], _: Sequence[str]) -> int:
    return _attention(shapes[0], shapes[1], shapes[2], (1, 1))


def _attention_backward(shapes: Sequence[Shape], _: Sequence[str]) -> int:
    return _attention(shapes[1], shapes[2], shapes[3], (3, 2))


def _heads_first(shape: Shape) -> Shape:
    batch, length, heads, size = shape
    return [batch, heads, length, size]


def _plain_attention(first: int, ragged: int, products: tuple[int, int]) -> Formula:
    """For the kernels below ``scaled_dot_product_attention``, with heads third, unless the sequences are packed."""

    def formula(shapes: Sequence[Shape], _: Sequence[str]) -> int | None:
        if len(shapes) > ragged and shapes[ragged]:
            return None  # the lengths of the sequences are in a tensor, not in a shape
        query, key, value = map(_heads_first, shapes[first : first + 3])
        return _attention(query, key, value, products)

    return formula


MISSED_BY_TORCH: Final[Mapping[str, Formula]] = {
    **dict.fromkeys(operators.GENERAL_CONVOLUTIONS, _convolution),
    operators.CONVOLUTION_BACKWARD: _convolution_backward,
    **dict.fromkeys(operators.FUSED_ATTENTION, _attention_forward),
    **{f"{name}_backward": _attention_backward for name in operators.FUSED_ATTENTION},
    f"{operators.FLASH}_forward": _plain_attention(0, 3, (1, 1)),
    f"{operators.FLASH}_backward": _plain_attention(1, 6, (3, 2)),
    f"{operators.EFFICIENT}_forward": _plain_attention(0, 4, (1, 1)),
    f"{operators.EFFICIENT}_backward": _plain_attention(1, 6, (3, 2)),
    operators.SCALED_GEMM: lambda shapes, _: _matmul(shapes[0], shapes[1]),
}
"""What the profiler forgets and ``FlopCounterMode`` counts: formulas of ``torch/utils/flop_counter.py`` of torch 2.15.

Convolutions of any number of dimensions, transposed or not, their backward pass, and attention: two products forward
(scores, and scores with values), five backward, for the scores are computed again. Masks, causal ones among them, are
not taken into account; nor are packed sequences counted, whose lengths no shape tells. Two things differ on purpose:
for the gradient of the weight of a grouped convolution, torch's counter does not divide by the number of groups; and
it does not know the attention of backends outside of torch (``overrideable``), whose arguments are the same.
"""
