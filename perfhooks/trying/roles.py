"""Values that an operator can work with: indices within range, probabilities, what has a root or a logarithm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch

from perfhooks.trying.recorded import Argument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Fill = Callable[[torch.Tensor], object]

_PROBABILITIES: Final = frozenset({"bernoulli", "binary_cross_entropy", "binary_cross_entropy_backward", "multinomial"})
_POSITIVE: Final = frozenset(
    {"log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "lgamma", "digamma", "xlogy", "poisson", "reciprocal"}
)
_POSITIVE_NAMES: Final = frozenset(
    {"rstd", "save_invstd", "save_var", "running_var", "var", "tensor2", "exp_avg_sq", "total_weight", "weight_sum"}
)
"""Arguments that are variances, their roots, or divisors."""
_ZERO_NAMES: Final = frozenset({"found_inf"})
_FEW: Final = 2


def role(operator: str, name: str, arguments: Mapping[str, Any], place: int = 0) -> Fill:
    """How to fill a tensor for an argument of an operator.

    Args:
        operator: Its name without the namespace.
        name: That of the argument in the schema.
        arguments: All of the call's, by name: `Argument` for tensors, else values.
        place: Which tensor of a list it is.
    """
    stem = operator.removeprefix("_foreach_").rstrip("_")
    if stem in _PROBABILITIES:
        return _uniform
    if stem in _POSITIVE or name in _POSITIVE_NAMES:
        return _positive
    if name in _ZERO_NAMES:
        return torch.Tensor.zero_

    def fill(tensor: torch.Tensor) -> object:
        if tensor.dtype == torch.bool:
            return tensor.bernoulli_(0.5)
        if tensor.is_floating_point() or tensor.is_complex():
            return tensor.copy_(torch.randn(tensor.shape, dtype=_drawn(tensor), device=tensor.device))
        return tensor.random_(0, _limit(name, arguments, place))

    return fill


def _drawn(tensor: torch.Tensor) -> torch.dtype:
    """The type to draw in: not all of them can be."""
    return tensor.dtype if tensor.is_complex() or tensor.dtype == torch.float64 else torch.float32


def _uniform(tensor: torch.Tensor) -> object:
    return tensor.copy_(torch.rand(tensor.shape, device=tensor.device))


def _positive(tensor: torch.Tensor) -> object:
    return tensor.copy_(torch.rand(tensor.shape, device=tensor.device) + 0.5)


def _limit(name: str, arguments: Mapping[str, Any], place: int) -> int:
    """Above the largest number that an argument of integers may hold."""
    if isinstance(weights := arguments.get("num_weights", arguments.get("num_classes")), int) and weights > 0:
        return weights
    source = next((arguments[each] for each in ("weight", "self", "input") if _has_sizes(arguments.get(each))), None)
    if source is None or arguments.get(name) is source:
        return _FEW
    sizes = source.dims
    if name == "target":
        found = sizes[1] if len(sizes) > 1 else sizes[0]
    elif isinstance(dim := arguments.get("dim"), int) and -len(sizes) <= dim < len(sizes):
        found = sizes[dim]
    elif "kernel_size" in arguments:  # places in the plane of an image
        found = math.prod(sizes[2:])
    else:
        found = sizes[place] if place < len(sizes) else sizes[0]
    return max(int(found), 1)


def _has_sizes(given: object) -> bool:
    return isinstance(given, Argument) and given.is_tensor and bool(given.dims)
