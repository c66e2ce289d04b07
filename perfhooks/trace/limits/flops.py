"""Floating point operations, from the shapes and arguments that a trace recorded."""

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
    """Return the floating point operations that torch's profiler counts for each call, or -1.

    Unlike torch's, these count a call once if a dispatcher calls the operator again (`redispatch.resolved`).

    Args:
        trace: any trace.
        rows: slices of the trace.
    """
    operations, counts = redispatch.resolved(trace, rows, per_call(trace, rows, _KNOWN))
    return np.where((per_call(trace, rows, BY_TORCH) >= 0) & counts, operations, -1)


def missed_per_call(trace: Trace, rows: Ints, parent: Ints) -> Ints:
    """The floating point operations that torch's profiler forgets, for each call, or -1 for calls without any.

    A call that is part of one that was counted, by torch or here, counts nothing itself: ``aten::convolution`` is only
    counted where it was not called by an ``aten::conv2d`` that torch knew.

    Args:
        trace: any trace.
        rows: slices of the trace.
        parent: for each of them the one around it, as a place in ``rows``, or -1.
    """
    missed, _ = redispatch.resolved(trace, rows, per_call(trace, rows, _KNOWN))
    missed[per_call(trace, rows, MISSED_BY_TORCH) < 0] = -1
    counted = (missed > 0) | (per_call(trace, rows, BY_TORCH) > 0)
    inside = np.append(inherited(parent, np.where(counted, 1, -1)), -1)[parent] > 0
    return np.where(inside, -1, missed)


def numbers(argument: str) -> list[int]:
    """The whole numbers in an argument, such as ``[1, 1]``."""
    return [int(digits) for digits in _INTEGER.findall(argument)]


def _for_each(argument: str, count: int) -> list[int]:
    """An argument with a number for each dimension; a single number stands for all."""
    found = numbers(argument)
    return found * count if len(found) == 1 else found


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
        return None  # torch gives up as well: no batch, or a padding that is a word
    out = positions(image[2:], weight[2:], (stride, padding, dilation))
    return 2 * image[0] * math.prod(out) * math.prod(weight[2:]) * image[1] * weight[0] // int(call.arguments[6])


def positions(space: Shape, kernel: Shape, options: tuple[Shape, Shape, Shape]) -> Shape:
    """The size of what a kernel makes of a space: by stride, padding and dilation, each for each dimension."""
    return [
        (size + 2 * pad - gap * (width - 1) - 1) // step + 1
        for size, width, step, pad, gap in zip(space, kernel, *options, strict=True)
    ]


def _gemm(name: str, left: int, right: int) -> Formula:
    multiply = _batched_matmul if re.match(operators.BATCHED_GEMMS, name) else _matmul
    return lambda call: multiply(call.shapes[left], call.shapes[right])


BY_TORCH: Final[Mapping[str, Formula]] = {
    **{name: _gemm(name, *places) for name, places in operators.FACTORS.items()},
    operators.CONV2D: _conv2d,
    **dict.fromkeys(operators.COUNTED_ELEMENTWISE, _elementwise),
}
"""What ``with_flops=True`` counts, and how: ``computeFlops`` in ``torch/csrc/profiler/util.cpp`` of torch 2.4 to 2.15.

A product of matrices is 2·m·n·k (additions of ``addmm`` and ``baddbmm`` left out), a convolution
2·N·C_in·C_out·H_out·W_out·k_h·k_w / groups, an element-wise operator one for each element of its first input.
"""


def _convolved(image: Shape, weight: Shape, options: list[str]) -> int:
    """2·N·|weight|·|positions of the output|, by what was given for stride, padding and dilation."""
    space = image[2:]
    stride, padding, dilation = (_for_each(argument, len(space)) for argument in options)
    return 2 * image[0] * math.prod(weight) * math.prod(positions(space, weight[2:], (stride, padding, dilation)))


def _convolution(call: Call) -> int:
    """Where it is transposed, the positions are those of the input."""
    image, weight = call.shapes[0], call.shapes[1]
    if call.arguments[6] == "True":
        return 2 * image[0] * math.prod(weight) * math.prod(image[2:])
    return _convolved(image, weight, list(call.arguments[3:6]))


def _library_convolution(first: int) -> Formula:
    """Of a library's own operator, which is given padding, stride and dilation from some place on."""

    def formula(call: Call) -> int:
        padding, stride, dilation = call.arguments[first : first + 3]
        return _convolved(call.shapes[0], call.shapes[1], [stride, padding, dilation])

    return formula


def _convolution_backward(call: Call) -> int:
    """As much as forward for each of the two gradients, of the input and of the weight, that was asked for."""
    gradient, image, weight = call.shapes[0], call.shapes[1], call.shapes[2]
    space = image if call.arguments[7] == "True" else gradient
    return 2 * image[0] * math.prod(weight) * math.prod(space[2:]) * sum(mask(call.arguments[10])[:2])


def mask(argument: str) -> list[bool]:
    """Which gradients were asked for."""
    return [flag.strip() in ("True", "1") for flag in argument.strip("[]").split(",")]


def _attention(query: Shape, key: Shape, value: Shape, products: tuple[int, int]) -> int:
    """Products over queries, keys and the size of keys (first), and of values (second); 2 operations an element."""
    batch, heads, queries, size = query
    return 2 * math.prod([batch, heads, queries, key[2]]) * (products[0] * size + products[1] * value[3])


def _attention_forward(call: Call) -> int:
    return _attention(call.shapes[0], call.shapes[1], call.shapes[2], (1, 1))


def _attention_backward(call: Call) -> int:
    return _attention(call.shapes[1], call.shapes[2], call.shapes[3], (3, 2))


def _heads_first(shape: Shape) -> Shape:
    batch, length, heads, size = shape
    return [batch, heads, length, size]


def _plain_attention(first: int, ragged: int, products: tuple[int, int]) -> Formula:
    """For the kernels below ``scaled_dot_product_attention``, with heads third, unless the sequences are packed."""

    def formula(call: Call) -> int | None:
        if len(call.shapes) > ragged and call.shapes[ragged]:
            return None  # the lengths of the sequences are in a tensor, not in a shape
        query, key, value = map(_heads_first, call.shapes[first : first + 3])
        return _attention(query, key, value, products)

    return formula


MISSED_BY_TORCH: Final[Mapping[str, Formula]] = {
    **dict.fromkeys(operators.GENERAL_CONVOLUTIONS, _convolution),
    **{name: _library_convolution(first) for name, first in operators.PADDING_OF_CONVOLUTIONS.items()},
    operators.CONVOLUTION_BACKWARD: _convolution_backward,
    **dict.fromkeys(operators.FUSED_ATTENTION, _attention_forward),
    **{f"{name}_backward": _attention_backward for name in operators.FUSED_ATTENTION},
    f"{operators.FLASH}_forward": _plain_attention(0, 3, (1, 1)),
    f"{operators.FLASH}_backward": _plain_attention(1, 6, (3, 2)),
    f"{operators.EFFICIENT}_forward": _plain_attention(0, 4, (1, 1)),
    f"{operators.EFFICIENT}_backward": _plain_attention(1, 6, (3, 2)),
    operators.SCALED_GEMM: lambda call: _matmul(call.shapes[0], call.shapes[1]),
    operators.ACTIVATED_GEMM: lambda call: _matmul(call.shapes[1], call.shapes[2]),
}
"""What the profiler forgets and ``FlopCounterMode`` counts: formulas of ``torch/utils/flop_counter.py`` of torch 2.15.

Convolutions of any number of dimensions, transposed or not, their backward pass, and attention: two products forward
(scores, and scores with values), five backward, for the scores are computed again. Masks, causal ones among them, are
not taken into account: causal attention counts in full. Packed sequences are not counted, whose lengths no shape
tells. Three things differ on purpose: for the gradient of the weight of a grouped convolution, torch's counter does not
divide by the number of groups; it does not know the attention of backends outside of torch (``overrideable``), whose
arguments are the same; and of convolutions in libraries it knows cuDNN's alone, and no GEMM with an activation.
"""

_KNOWN: Final = {**BY_TORCH, **MISSED_BY_TORCH}
COUNTED: Final[Mapping[str, Formula]] = {
    name: formula for name, formula in _KNOWN.items() if name not in operators.COUNTED_ELEMENTWISE
}
"""Products of matrices, convolutions and attention: what a model is said to compute."""
