"""Minimum bytes that operators must move, from recorded shapes and types.

Each tensor that a call reads or writes counts once. Caches are ignored.
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
"""Bytes per element, keyed by the number of the type in ``c10::ScalarType``."""

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
_READ: Final = {stem: count for count, group in enumerate(("one", "two", "three"), 1) for stem in _STEMS[group].split()}
"""Maximum number of tensors that each pointwise operator reads; further tensor arguments are outputs. Gradient
operators read two.
"""
_TRUTHS, _WHOLE, _WRITTEN = (frozenset(_STEMS[group].split()) for group in ("truths", "whole", "written"))
"""Operators with boolean results; with integer results for integer inputs; and that overwrite a tensor without reading
it.
"""


def per_call(trace: Trace, rows: Ints) -> Ints:
    """Return the minimum bytes of each slice; -1 without recorded shapes or a formula."""
    rules = {trace.names[name]: _rule(trace.names[name]) for name in trace.names_of(Kind.OP)}
    return evaluated(trace, rows, {name: rule for name, rule in rules.items() if rule is not None})


def weights_per_call(trace: Trace, rows: Ints) -> Ints:
    """Return the bytes of the weight of each GEMM in a forward pass; -1 for calls without shapes and others."""
    return evaluated(trace, rows, {name: _weight(*indices) for name, indices in operators.LAYER_GEMMS.items()})


def _weight(first: int, second: int) -> Formula:
    # if the second factor is a vector, the first one is the weight
    return lambda call: _size(call, first if call.shapes[second][-1] == 1 else second)


def is_memory_only(name: str) -> bool:
    """Return whether only memory can limit an operator, because it has no counted operations."""
    return name not in flops.COUNTED and _rule(name) is not None


def _rule(name: str) -> Formula | None:
    if name in _RULES:
        return _RULES[name]
    own_name, stem = name.removeprefix(operators.NAMESPACE), work_kinds.stem(name)
    in_place = own_name.endswith("_")
    if own_name == name or own_name in _BY_OWN_NAME:
        return None if own_name == name else _BY_OWN_NAME[own_name]
    if in_place and stem in _WRITTEN:
        return _filled
    if own_name.startswith("_") or stem not in _READ:
        return None
    return _pointwise(stem, is_gradient="_backward" in own_name, in_place=in_place)


def _size(call: Call, index: int) -> int:
    shape = call.shapes[index] if index < len(call.shapes) else []
    return math.prod(shape) * _element_size(call, index) if shape else 0


def _element_size(call: Call, index: int) -> int:
    size = tensor_types.size(call.types[index])
    if size is None:
        raise ValueError(call.types[index])
    return size


def _sum(call: Call, *indices: int) -> int:
    return sum(_size(call, index) for index in indices)


def _filled(call: Call) -> int:
    return _size(call, 0)


def _pointwise(stem: str, *, is_gradient: bool, in_place: bool) -> Formula:
    max_tensors = 2 if is_gradient else _READ[stem]

    def formula(call: Call) -> int | None:
        tensors = [index for index, type_name in enumerate(call.types) if tensor_types.size(type_name)][:max_tensors]
        inputs = [index for index in tensors if call.shapes[index]]
        typed_shapes = zip(call.shapes, call.types, strict=False)
        is_unknown = any(shape and not tensor_types.size(type_name) for shape, type_name in typed_shapes)
        if is_unknown or not inputs:
            return None
        types = [name for index in inputs if (name := tensor_types.name_of(call.types[index]))]
        scalars = [call.types[index] for index in tensors if index not in inputs]
        element_bytes = 1 if stem in _TRUTHS else _promoted(types, scalars, stem)
        if element_bytes is None:
            return None
        output_size = math.prod(np.broadcast_shapes(*(tuple(call.shapes[index]) for index in inputs)))
        return _sum(call, *inputs) + (_size(call, 0) if in_place else output_size * element_bytes)

    return formula


def _promoted(types: list[str], scalars: list[str], stem: str) -> int | None:
    floats = [tensor_types.SIZES[name] for name in types if name.startswith(("float", "bfloat"))]
    if any(name.startswith(("complex", "float8")) for name in types):
        return None
    if floats:
        halves = {name for name in types if name in ("float16", "bfloat16")}
        return _FLOAT if len(halves) > 1 else max(floats)
    is_whole = stem in _WHOLE and all(tensor_types.name_of(scalar) == "int64" for scalar in scalars)
    return max(tensor_types.SIZES[name] for name in types) if is_whole else None


def _copied(call: Call) -> int:
    return _sum(call, 0, 1)


def _gemm(first: int, second: int) -> Formula:
    def formula(call: Call) -> int:
        a, b = call.shapes[first], call.shapes[second]
        output_bytes = math.prod(a[:-1]) * b[-1] * _element_size(call, first)
        return _sum(call, *range(first), first, second) + output_bytes

    return formula


def _scaled_gemm(call: Call) -> int | None:
    a, b = call.shapes[0], call.shapes[1]
    element_bytes = _BY_NUMBER.get(call.arguments[6])
    return None if element_bytes is None else _sum(call, *range(5)) + math.prod(a[:-1]) * b[-1] * element_bytes


def _convolution(name: str) -> Formula:
    def formula(call: Call) -> int:
        weight = call.shapes[1]
        output_size = (flops.COUNTED[name](call) or 0) // (2 * math.prod(weight[1:]))
        bias = _size(call, 2) if tensor_types.size(call.types[2]) else 0
        return _sum(call, 0, 1) + bias + output_size * _element_size(call, 0)

    return formula


def _convolution_backward(call: Call) -> int:
    bias = call.shapes[0][1] * _element_size(call, 2)
    gradients = zip(flops.mask(call.arguments[10]), (_size(call, 1), _size(call, 2), bias), strict=False)
    return _sum(call, 0, 1, 2) + sum(size for is_requested, size in gradients if is_requested)


def _attention(call: Call) -> int:
    query, value = call.shapes[0], call.shapes[2]
    return _sum(call, *_tensors(call)) + math.prod(query[:-1]) * (value[-1] * _element_size(call, 0) + _FLOAT)


def _attention_backward(call: Call) -> int:
    return _sum(call, *_tensors(call)) + _sum(call, 1, 2, 3)


def _tensors(call: Call) -> list[int]:
    # random states follow the first six arguments
    return [index for index, type_name in enumerate(call.types[:6]) if tensor_types.size(type_name)]


def _normalised(rows: Callable[[Call], int], *inputs: int) -> Formula:
    def formula(call: Call) -> int:
        tensors = [index for index in inputs if tensor_types.size(call.types[index])]
        return _sum(call, *tensors) + _size(call, 0) + 2 * rows(call) * max(_FLOAT, _element_size(call, 0))

    return formula


def _layer_rows(call: Call) -> int:
    return math.prod(call.shapes[0]) // math.prod(flops.numbers(call.arguments[1]))


def _group_rows(call: Call) -> int:
    return call.shapes[0][0] * int(call.arguments[6])


def _channels(call: Call) -> int:
    return call.shapes[0][1]


def _gradients(read: Sequence[int], written: Sequence[int], flags: int | None = None) -> Formula:
    """Return a formula for the bytes of the arguments ``read``, and of the gradients of the arguments ``written``.

    ``flags`` is the index of the argument that selects gradients (default: all).
    """

    def formula(call: Call) -> int:
        requested = [True] * len(written) if flags is None else flops.mask(call.arguments[flags])
        tensors = [index for index in read if tensor_types.size(call.types[index])]
        outputs = [index for index, is_requested in zip(written, requested, strict=False) if is_requested]
        return _sum(call, *tensors) + _sum(call, *(index for index in outputs if tensor_types.size(call.types[index])))

    return formula


def _reduced(call: Call) -> int | None:
    shape, element_bytes = call.shapes[0], _element_size(call, 0)
    if not shape or tensor_types.name_of(call.types[0]) not in ("float16", "bfloat16", "float32", "float64"):
        return None
    has_dimensions = call.arguments[1].startswith("[")
    dimensions = flops.numbers(call.arguments[1]) if has_dimensions else []
    output_size = math.prod(shape) // math.prod(shape[dim] for dim in dimensions) if dimensions else 0
    return _size(call, 0) + output_size * _BY_NUMBER.get(call.arguments[-1] if has_dimensions else "", element_bytes)


def _softmax(call: Call) -> int:
    return _size(call, 0) + math.prod(call.shapes[0]) * (
        _FLOAT if call.arguments[2] == "True" else _element_size(call, 0)
    )


def _softmax_gradient(call: Call) -> int | None:
    element_bytes = _BY_NUMBER.get(call.arguments[3])
    return None if element_bytes is None else _sum(call, 0, 1) + math.prod(call.shapes[0]) * element_bytes


def _dropout(call: Call) -> int:
    return 2 * _size(call, 0) + math.prod(call.shapes[0])


def _selected_rows(table: int, index: int) -> Formula:

    def formula(call: Call) -> int:
        rows = math.prod(call.shapes[index])
        return _size(call, index) + 2 * rows * math.prod(call.shapes[table][1:]) * _element_size(call, table)

    return formula


def _index_selected(call: Call) -> int:
    shape, dim = call.shapes[0], int(call.arguments[1])
    output_size = math.prod(shape) // shape[dim] * math.prod(call.shapes[2])
    return _size(call, 2) + 2 * output_size * _element_size(call, 0)


def _gathered(call: Call) -> int:
    return _size(call, 2) + 2 * math.prod(call.shapes[2]) * _element_size(call, 0)


def _embedding_gradient(call: Call) -> int:
    return _sum(call, 0, 1) + int(call.arguments[2]) * call.shapes[0][-1] * _element_size(call, 0)


def _pooled(call: Call) -> int | None:
    image = call.shapes[0]
    options = [flops.numbers(argument) for argument in call.arguments[1:5]]
    if call.arguments[5] == "True" or any(len(option) != len(options[0]) for option in options):
        return None
    kernel, stride, padding, dilation = options
    space = flops.positions(image[-len(kernel) :], kernel, (stride, padding, dilation))
    output_size = math.prod(image[: -len(kernel)]) * math.prod(space)
    return _size(call, 0) + output_size * (_element_size(call, 0) + _INDEX)


_RULES: Final[dict[str, Formula]] = {
    **{name: _gemm(*indices) for name, indices in operators.FACTORS.items()},
    operators.ACTIVATED_GEMM: _gemm(1, 2),
    operators.SCALED_GEMM: _scaled_gemm,
    **{name: _convolution(name) for name in operators.PADDING_OF_CONVOLUTIONS},
    operators.CONVOLUTION_BACKWARD: _convolution_backward,
    **dict.fromkeys(operators.FUSED_ATTENTION, _attention),
    **{f"{name}_backward": _attention_backward for name in operators.FUSED_ATTENTION},
    **{f"{name}_forward": _attention for name in (operators.FLASH, operators.EFFICIENT)},
    **{f"{name}_backward": _attention_backward for name in (operators.FLASH, operators.EFFICIENT)},
}
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
    "embedding": _selected_rows(0, 1),
    "index_select": _index_selected,
    "gather": _gathered,
    "embedding_dense_backward": _embedding_gradient,
    "max_pool2d_with_indices": _pooled,
    "max_pool2d_with_indices_backward": lambda call: _sum(call, 0, 1, len(call.types) - 1) + _size(call, 1),
}
