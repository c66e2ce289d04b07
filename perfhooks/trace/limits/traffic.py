"""Bytes that operators must move at least, from the shapes and types that a trace recorded.

Each tensor that a call reads counts once, and each that it writes: what a kernel would move that kept everything else
in its registers. A trace has no outputs; their shapes follow from those of the inputs by the rules of each operator.
Numbers (tensors without dimensions) count nothing, and neither do caches: what comes from one need not be moved, and
what does not fit is moved more than once. Expanded tensors have the size that they show.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import flops
from perfhooks.trace.limits.recorded_calls import per_call as evaluated
from perfhooks.trace.names import operators, tensor_types, work_kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.trace.limits.recorded_calls import Call, Formula
    from perfhooks.trace.model import Ints, Trace

_HALF, _FLOAT, _INDEX = 2, 4, 8
_BY_NUMBER: Final = {"5": _HALF, "6": _FLOAT, "7": 8, "15": _HALF}
"""The bytes of types that are arguments: numbers of ``c10::ScalarType``."""

_STEMS: Final = {
    "one": (
        "abs celu cos cosh elu erf erfc exp exp2 expm1 gelu hardsigmoid hardswish hardtanh leaky_relu log log10 log1p "
        "log2 mish nan_to_num reciprocal relu relu6 rsqrt selu sigmoid silu sin sinh softplus sqrt tan tanh threshold "
        "ceil floor frac round trunc neg sgn sign square tril triu clamp_min clamp_max logical_not bitwise_not isnan "
        "isinf isfinite isneginf isposinf signbit"
    ),
    "two": (
        "add sub rsub mul div true_divide pow remainder fmod maximum minimum fmax fmin atan2 copysign xlogy hypot "
        "floor_divide masked_fill eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or "
        "bitwise_xor"
    ),
    "three": "where lerp addcmul addcdiv clamp",
    "truths": (
        "eq ne lt le gt ge isnan isinf isfinite isneginf isposinf signbit logical_and logical_or logical_xor "
        "logical_not"
    ),
    "whole": (
        "add sub rsub mul neg abs sgn sign bitwise_and bitwise_or bitwise_xor bitwise_not clamp clamp_min clamp_max "
        "maximum minimum where masked_fill tril triu square"
    ),
    "written": "fill zero normal uniform random bernoulli exponential geometric cauchy log_normal",
}
_READ: Final = {stem: most for most, word in enumerate(("one", "two", "three"), 1) for stem in _STEMS[word].split()}
"""Pointwise operators and how many tensors each reads at most, its gradient two; those after them are where it
writes."""
_TRUTHS, _WHOLE, _WRITTEN = (frozenset(_STEMS[word].split()) for word in ("truths", "whole", "written"))
"""What makes truths; what makes whole numbers of whole numbers (of others it is not looked up); and what reads nothing
in place."""


def per_call(trace: Trace, rows: Ints) -> Ints:
    """The bytes of each slice, or -1: not recorded, or no rule knows it.

    Args:
        trace: any trace.
        rows: slices of the trace.
    """
    found = {trace.names[name]: _rule(trace.names[name]) for name in trace.names_of(Kind.OP)}
    return evaluated(trace, rows, {name: rule for name, rule in found.items() if rule is not None})


def is_memory_only(name: str) -> bool:
    """Whether an operator computes so little that only memory can limit it: every one that has bytes and no GEMM."""
    return name not in flops.COUNTED and _rule(name) is not None


def _rule(name: str) -> Formula | None:
    if name in _RULES:
        return _RULES[name]
    own, stem = name.removeprefix(operators.NAMESPACE), work_kinds.stem(name)
    in_place = own.endswith("_")
    if own == name or own in _BY_OWN_NAME:
        return None if own == name else _BY_OWN_NAME[own]
    if in_place and stem in _WRITTEN:
        return _filled
    if own.startswith("_") or stem not in _READ:
        return None
    return _pointwise(stem, is_gradient="_backward" in own, in_place=in_place)


def _size(call: Call, place: int) -> int:
    """The bytes of a tensor; 0 for what is none, or has no dimensions."""
    shape = call.shapes[place] if place < len(call.shapes) else []
    return math.prod(shape) * _each(call, place) if shape else 0


def _each(call: Call, place: int) -> int:
    """The bytes of one element.

    Raises:
        ValueError: The type is not known.
    """
    size = tensor_types.size(call.types[place])
    if size is None:
        raise ValueError(call.types[place])
    return size


def _sum(call: Call, *places: int) -> int:
    return sum(_size(call, place) for place in places)


def _filled(call: Call) -> int:
    return _size(call, 0)


def _pointwise(stem: str, *, is_gradient: bool, in_place: bool) -> Formula:
    most = 2 if is_gradient else _READ[stem]

    def formula(call: Call) -> int | None:
        tensors = [place for place, kind in enumerate(call.types) if tensor_types.size(kind)][:most]
        read = [place for place in tensors if call.shapes[place]]
        typed = zip(call.shapes, call.types, strict=False)
        is_unknown = any(shape and not tensor_types.size(kind) for shape, kind in typed)
        if is_unknown or not read:
            return None
        kinds = [name for place in read if (name := tensor_types.name_of(call.types[place]))]
        numbers = [call.types[place] for place in tensors if place not in read]
        each = 1 if stem in _TRUTHS else _promoted(kinds, numbers, stem)
        if each is None:
            return None
        written = math.prod(np.broadcast_shapes(*(tuple(call.shapes[place]) for place in read)))
        return _sum(call, *read) + (_size(call, 0) if in_place else written * each)

    return formula


def _promoted(kinds: list[str], numbers: list[str], stem: str) -> int | None:
    """The bytes of an element of the result, by torch's promotion; None where it is not told."""
    floats = [tensor_types.SIZES[kind] for kind in kinds if kind.startswith(("float", "bfloat"))]
    if any(kind.startswith(("complex", "float8")) for kind in kinds):
        return None
    if floats:
        mixed = {kind for kind in kinds if kind in ("float16", "bfloat16")}
        return _FLOAT if len(mixed) > 1 else max(floats)
    is_whole = stem in _WHOLE and all(tensor_types.name_of(number) == "int64" for number in numbers)
    return max(tensor_types.SIZES[kind] for kind in kinds) if is_whole else None


def _copied(call: Call) -> int:
    return _sum(call, 0, 1)


def _gemm(left: int, right: int) -> Formula:
    def formula(call: Call) -> int:
        a, b = call.shapes[left], call.shapes[right]
        written = math.prod(a[:-1]) * b[-1] * _each(call, left)
        return _sum(call, *range(left), left, right) + written

    return formula


def _scaled_gemm(call: Call) -> int | None:
    a, b = call.shapes[0], call.shapes[1]
    each = _BY_NUMBER.get(call.arguments[6])
    return None if each is None else _sum(call, *range(5)) + math.prod(a[:-1]) * b[-1] * each


def _convolution(name: str) -> Formula:
    def formula(call: Call) -> int:
        weight = call.shapes[1]
        written = (flops.COUNTED[name](call) or 0) // (2 * math.prod(weight[1:]))
        bias = _size(call, 2) if tensor_types.size(call.types[2]) else 0
        return _sum(call, 0, 1) + bias + written * _each(call, 0)

    return formula


def _convolution_backward(call: Call) -> int:
    channels = call.shapes[0][1] * _each(call, 2)
    wanted = zip(flops.mask(call.arguments[10]), (_size(call, 1), _size(call, 2), channels), strict=False)
    return _sum(call, 0, 1, 2) + sum(size for is_wanted, size in wanted if is_wanted)


def _attention(call: Call) -> int:
    """Query, key, value and a mask are read; the output and the logarithm of each query's sum (in float32) written."""
    query, value = call.shapes[0], call.shapes[2]
    return _sum(call, *_tensors(call)) + math.prod(query[:-1]) * (value[-1] * _each(call, 0) + _FLOAT)


def _attention_backward(call: Call) -> int:
    """Gradient, query, key, value, output and those logarithms are read; three gradients written."""
    return _sum(call, *_tensors(call)) + _sum(call, 1, 2, 3)


def _tensors(call: Call) -> list[int]:
    """The first arguments that are tensors; random states follow them."""
    return [place for place, kind in enumerate(call.types[:6]) if tensor_types.size(kind)]


def _normalised(rows: Callable[[Call], int], *read: int) -> Formula:
    """An input and its parameters are read; the output, and two numbers for each row or channel, are written."""

    def formula(call: Call) -> int:
        tensors = [place for place in read if tensor_types.size(call.types[place])]
        return _sum(call, *tensors) + _size(call, 0) + 2 * rows(call) * max(_FLOAT, _each(call, 0))

    return formula


def _layer_rows(call: Call) -> int:
    return math.prod(call.shapes[0]) // math.prod(flops.numbers(call.arguments[1]))


def _group_rows(call: Call) -> int:
    return call.shapes[0][0] * int(call.arguments[6])


def _channels(call: Call) -> int:
    return call.shapes[0][1]


def _gradients(read: Sequence[int], written: Sequence[int], flags: int | None = None) -> Formula:
    """Tensors are read, and gradients written that are as large as some of them: those that were asked for."""

    def formula(call: Call) -> int:
        wanted = [True] * len(written) if flags is None else flops.mask(call.arguments[flags])
        tensors = [place for place in read if tensor_types.size(call.types[place])]
        made = [place for place, asked in zip(written, wanted, strict=False) if asked]
        return _sum(call, *tensors) + _sum(call, *(place for place in made if tensor_types.size(call.types[place])))

    return formula


def _reduced(call: Call) -> int | None:
    """Over the dimensions of a list, else over all."""
    shape, each = call.shapes[0], _each(call, 0)
    if not shape or tensor_types.name_of(call.types[0]) not in ("float16", "bfloat16", "float32", "float64"):
        return None
    listed = call.arguments[1].startswith("[")
    over = flops.numbers(call.arguments[1]) if listed else []
    left = math.prod(shape) // math.prod(shape[dim] for dim in over) if over else 0
    return _size(call, 0) + left * _BY_NUMBER.get(call.arguments[-1] if listed else "", each)


def _softmax(call: Call) -> int:
    return _size(call, 0) + math.prod(call.shapes[0]) * (_FLOAT if call.arguments[2] == "True" else _each(call, 0))


def _softmax_gradient(call: Call) -> int | None:
    each = _BY_NUMBER.get(call.arguments[3])
    return None if each is None else _sum(call, 0, 1) + math.prod(call.shapes[0]) * each


def _dropout(call: Call) -> int:
    return 2 * _size(call, 0) + math.prod(call.shapes[0])  # the mask has a byte for each


def _looked_up(table: int, index: int) -> Formula:
    """Rows of a table are read, not all of it."""

    def formula(call: Call) -> int:
        rows = math.prod(call.shapes[index])
        return _size(call, index) + 2 * rows * math.prod(call.shapes[table][1:]) * _each(call, table)

    return formula


def _index_selected(call: Call) -> int:
    shape, dim = call.shapes[0], int(call.arguments[1])
    taken = math.prod(shape) // shape[dim] * math.prod(call.shapes[2])
    return _size(call, 2) + 2 * taken * _each(call, 0)


def _gathered(call: Call) -> int:
    return _size(call, 2) + 2 * math.prod(call.shapes[2]) * _each(call, 0)


def _embedding_gradient(call: Call) -> int:
    return _sum(call, 0, 1) + int(call.arguments[2]) * call.shapes[0][-1] * _each(call, 0)


def _pooled(call: Call) -> int | None:
    image = call.shapes[0]
    options = [flops.numbers(each) for each in call.arguments[1:5]]
    if call.arguments[5] == "True" or any(len(each) != len(options[0]) for each in options):
        return None  # rounded up, or one number for all
    kernel, stride, padding, dilation = options
    space = flops.positions(image[-len(kernel) :], kernel, (stride, padding, dilation))
    written = math.prod(image[: -len(kernel)]) * math.prod(space)
    return _size(call, 0) + written * (_each(call, 0) + _INDEX)


_RULES: Final[dict[str, Formula]] = {
    **{name: _gemm(*places) for name, places in operators.FACTORS.items()},
    operators.ACTIVATED_GEMM: _gemm(1, 2),
    operators.SCALED_GEMM: _scaled_gemm,
    **{name: _convolution(name) for name in operators.PADDING_OF_CONVOLUTIONS},
    operators.CONVOLUTION_BACKWARD: _convolution_backward,
    **dict.fromkeys(operators.FUSED_ATTENTION, _attention),
    **{f"{name}_backward": _attention_backward for name in operators.FUSED_ATTENTION},
    **{f"{name}_forward": _attention for name in (operators.FLASH, operators.EFFICIENT)},
    **{f"{name}_backward": _attention_backward for name in (operators.FLASH, operators.EFFICIENT)},
}
"""By whole name."""
_BY_OWN_NAME: Final[dict[str, Formula]] = {
    "copy_": _copied,
    "native_layer_norm": _normalised(_layer_rows, 0, 2, 3),
    "native_layer_norm_backward": _gradients((0, 1, 3, 4, 5), (1, 5, 6), 7),
    "native_group_norm": _normalised(_group_rows, 0, 1, 2),
    "native_group_norm_backward": _gradients((0, 1, 2, 3, 4), (1, 4, 4), 9),
    "native_batch_norm": _normalised(_channels, 0, 1, 2, 3, 4),
    "cudnn_batch_norm": _normalised(_channels, 0, 1, 2, 3, 4),
    "miopen_batch_norm": _normalised(_channels, 0, 1, 2, 3, 4),
    "native_batch_norm_backward": _gradients((0, 1, 2, 3, 4, 5, 6), (1, 2, 2), 9),
    "cudnn_batch_norm_backward": _gradients((0, 1, 2, 3, 4, 5, 6), (0, 2, 2)),
    "miopen_batch_norm_backward": _gradients((0, 1, 2, 3, 4, 5, 6), (0, 2, 2)),
    **dict.fromkeys(("sum", "mean", "amax", "amin"), _reduced),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_gradient),
    "native_dropout": _dropout,
    "native_dropout_backward": lambda call: _sum(call, 0, 1) + _size(call, 0),
    "embedding": _looked_up(0, 1),
    "index_select": _index_selected,
    "gather": _gathered,
    "embedding_dense_backward": _embedding_gradient,
    "max_pool2d_with_indices": _pooled,
    "max_pool2d_with_indices_backward": lambda call: _sum(call, 0, 1, len(call.types) - 1) + _size(call, 1),
}
"""The same without their namespace, which is torch's own."""
