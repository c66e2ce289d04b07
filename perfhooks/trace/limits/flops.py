from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.trace.limits import redispatch
from perfhooks.trace.limits.recorded_calls import per_call
from perfhooks.trace.names import operators
from perfhooks.trace.nesting.slices import inherited

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.trace.limits.recorded_calls import Call, Formula, Shape
    from perfhooks.trace.model import Ints, Trace

_INTEGER: Final = re.compile(r"-?\d+")


def by_torch_per_call(trace: Trace, rows: Ints) -> Ints:
    """Return the operations that torch's profiler counts for each call, or -1.

    Calls that a dispatch mode repeats count once.
    """
    operations, counts = redispatch.resolved(trace, rows, per_call(trace, rows, _KNOWN))
    return np.where((per_call(trace, rows, BY_TORCH) >= 0) & counts, operations, -1)


def missed_per_call(trace: Trace, rows: Ints, parent: Ints) -> Ints:
    """Return the operations of each call that torch's profiler omits; -1 for other calls.

    Calls nested in a counted call also get -1.
    """
    missed, _ = redispatch.resolved(trace, rows, per_call(trace, rows, _KNOWN))
    missed[per_call(trace, rows, MISSED_BY_TORCH) < 0] = -1
    has_operations = (missed > 0) | (per_call(trace, rows, BY_TORCH) > 0)
    is_inside = np.append(inherited(parent, np.where(has_operations, 1, -1)), -1)[parent] > 0
    return np.where(is_inside, -1, missed)


def numbers(argument: str) -> list[int]:
    return [int(digits) for digits in _INTEGER.findall(argument)]


def _numbers_per_dimension(argument: str, count: int) -> list[int]:
    values = numbers(argument)
    return values * count if len(values) == 1 else values


def _elementwise(call: Call) -> int:
    return math.prod(call.shapes[0])


def _matmul(a: Shape, b: Shape) -> int:
    return 2 * math.prod(a) // a[-1] * math.prod(b) if a and a[-1] else 0


def _batched_matmul(a: Shape, b: Shape) -> int:
    return 2 * math.prod(a) // a[-1] // a[0] * math.prod(b) if a and a[-1] and a[0] else 0


def _conv2d(call: Call) -> int | None:
    image, weight = call.shapes[0], call.shapes[1]
    stride, padding, dilation = (numbers(argument) for argument in call.arguments[3:6])
    if (len(image), len(weight), len(stride), len(padding), len(dilation)) != (4, 4, 2, 2, 2):
        return None  # torch does not count convolutions without a batch, or with a padding such as "same", either
    out = positions(image[2:], weight[2:], (stride, padding, dilation))
    return 2 * image[0] * math.prod(out) * math.prod(weight[2:]) * image[1] * weight[0] // int(call.arguments[6])


def positions(space: Shape, kernel: Shape, options: tuple[Shape, Shape, Shape]) -> Shape:
    """Return the spatial output size of a convolution, without batch and channels.

    ``options`` are stride, padding and dilation.
    """
    return [
        (size + 2 * pad - gap * (width - 1) - 1) // step + 1
        for size, width, step, pad, gap in zip(space, kernel, *options, strict=True)
    ]


def _gemm(name: str, first: int, second: int) -> Formula:
    multiply = _batched_matmul if re.match(operators.BATCHED_GEMMS, name) else _matmul
    return lambda call: multiply(call.shapes[first], call.shapes[second])


BY_TORCH: Final[Mapping[str, Formula]] = {
    **{name: _gemm(name, *indices) for name, indices in operators.FACTORS.items()},
    operators.CONV2D: _conv2d,
    **dict.fromkeys(operators.COUNTED_ELEMENTWISE, _elementwise),
}
"""Formulas of ``computeFlops`` in ``torch/csrc/profiler/util.cpp`` of torch 2.4 to 2.15: matrix product 2·m·n·k;
convolution 2·N·C_in·C_out·H_out·W_out·k_h·k_w / groups; element-wise operators: one operation per element of the first
input.
"""


def _direct_convolution(image: Shape, weight: Shape, options: list[str]) -> int:
    """Return 2·N·|weight|·|output positions|."""
    space = image[2:]
    stride, padding, dilation = (_numbers_per_dimension(argument, len(space)) for argument in options)
    return 2 * image[0] * math.prod(weight) * math.prod(positions(space, weight[2:], (stride, padding, dilation)))


def _convolution(call: Call) -> int:
    image, weight = call.shapes[0], call.shapes[1]
    if call.arguments[6] == "True":  # transposed: positions of the input
        return 2 * image[0] * math.prod(weight) * math.prod(image[2:])
    return _direct_convolution(image, weight, list(call.arguments[3:6]))


def _library_convolution(first: int) -> Formula:
    def formula(call: Call) -> int:
        padding, stride, dilation = call.arguments[first : first + 3]
        return _direct_convolution(call.shapes[0], call.shapes[1], [stride, padding, dilation])

    return formula


def _convolution_backward(call: Call) -> int:
    gradient, image, weight = call.shapes[0], call.shapes[1], call.shapes[2]
    space = image if call.arguments[7] == "True" else gradient
    return 2 * image[0] * math.prod(weight) * math.prod(space[2:]) * sum(mask(call.arguments[10])[:2])


def mask(argument: str) -> list[bool]:
    return [flag.strip() in ("True", "1") for flag in argument.strip("[]").split(",")]


def _attention(query: Shape, key: Shape, value: Shape, products: tuple[int, int]) -> int:
    """Return the operations of all matrix products, 2 per multiply-add. Shapes are (batch, heads, length, head size).

    ``products`` are the numbers of matrix products over the head size of the keys, and over the head size of the
    values.
    """
    batch, heads, queries, size = query
    return 2 * math.prod([batch, heads, queries, key[2]]) * (products[0] * size + products[1] * value[3])


def _attention_forward(call: Call) -> int:
    return _attention(call.shapes[0], call.shapes[1], call.shapes[2], (1, 1))


def _attention_backward(call: Call) -> int:
    return _attention(call.shapes[1], call.shapes[2], call.shapes[3], (3, 2))


def _heads_first(shape: Shape) -> Shape:
    batch, length, heads, size = shape
    return [batch, heads, length, size]


def _kernel_attention(first: int, ragged: int, products: tuple[int, int]) -> Formula:
    """Return the formula for kernels with the heads in the third dimension, but without sequence lengths.

    ``first`` and ``ragged`` are the argument indices of the query and of the sequence lengths.
    """

    def formula(call: Call) -> int | None:
        if len(call.shapes) > ragged and call.shapes[ragged]:
            return None
        query, key, value = map(_heads_first, call.shapes[first : first + 3])
        return _attention(query, key, value, products)

    return formula


MISSED_BY_TORCH: Final[Mapping[str, Formula]] = {
    **dict.fromkeys(operators.GENERAL_CONVOLUTIONS, _convolution),
    **{name: _library_convolution(first) for name, first in operators.PADDING_OF_CONVOLUTIONS.items()},
    operators.CONVOLUTION_BACKWARD: _convolution_backward,
    **dict.fromkeys(operators.FUSED_ATTENTION, _attention_forward),
    **{f"{name}_backward": _attention_backward for name in operators.FUSED_ATTENTION},
    f"{operators.FLASH}_forward": _kernel_attention(0, 3, (1, 1)),
    f"{operators.FLASH}_backward": _kernel_attention(1, 6, (3, 2)),
    f"{operators.EFFICIENT}_forward": _kernel_attention(0, 4, (1, 1)),
    f"{operators.EFFICIENT}_backward": _kernel_attention(1, 6, (3, 2)),
    operators.SCALED_GEMM: lambda call: _matmul(call.shapes[0], call.shapes[1]),
    operators.ACTIVATED_GEMM: lambda call: _matmul(call.shapes[1], call.shapes[2]),
}
"""Formulas of operators that torch's profiler omits, from ``torch/utils/flop_counter.py`` of torch 2.15. Attention has
two matrix products in the forward pass and five in the backward pass, which computes the scores again. Masks are
ignored, so causal attention counts in full. The formulas differ from torch's for weight gradients of grouped
convolutions, ``overrideable`` attention, GEMMs with an activation, and convolutions without cuDNN.
"""

_KNOWN: Final = {**BY_TORCH, **MISSED_BY_TORCH}
COUNTED: Final[Mapping[str, Formula]] = {
    name: formula for name, formula in _KNOWN.items() if name not in operators.COUNTED_ELEMENTWISE
}
"""Formulas of the operators that count in published FLOP numbers of models."""
