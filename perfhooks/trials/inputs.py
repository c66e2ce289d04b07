from __future__ import annotations

import copy
import logging
import math
from typing import TYPE_CHECKING, Any, Final

import torch

from perfhooks.trace.names import operators
from perfhooks.trials import schemas
from perfhooks.trials.ready import PreparedCall, extent, tensors
from perfhooks.trials.recorded import Argument, Update
from perfhooks.trials.schemas import DTYPES, UnmatchedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perfhooks.trials.recorded import Signature

_PROBABILITIES: Final = frozenset({"bernoulli", "binary_cross_entropy", "binary_cross_entropy_backward", "multinomial"})
_POSITIVE: Final = frozenset(
    {"log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "lgamma", "digamma", "xlogy", "poisson", "reciprocal"}
)
_POSITIVE_NAMES: Final = frozenset(
    {"rstd", "save_invstd", "save_var", "running_var", "var", "tensor2", "exp_avg_sq", "total_weight", "weight_sum"}
)


def import_shape_functions() -> None:
    """Import torch's shape computation, which takes two seconds, before this process forks."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # torch warns about unused devices and compilers
    try:
        torch.empty(1, device="meta").add(1)
    finally:
        logging.disable(before)


def check_memory(again: Signature | Update, allowed: float) -> None:
    """Raise an UnmatchedError if a call needs more bytes than ``allowed``, without allocating memory."""
    for needed_bytes in (min(estimate, 1 << 62) for estimate in _estimates(again)):
        if needed_bytes > allowed:
            raise UnmatchedError(
                f"needs {needed_bytes / 2**30:.3g} GiB; the limit is {allowed / 2**30:.3g} GiB (--memory)"
            )


def _estimates(again: Signature | Update) -> Iterator[int]:
    if isinstance(again, Update):
        # parameter, gradient and two states, for the update and for its variant
        yield 8 * sum(math.prod(dims) * DTYPES[kind].itemsize for kind, dims in again.parameters)
        return
    # inputs and a copy of them, for the call and for its variant
    input_bytes = 4 * sum(map(_bytes, again.arguments or ()))
    yield input_bytes
    try:
        results = [*tensors(build(again, "meta")())]
    except NotImplementedError as error:
        raise UnmatchedError("the size of its result is unknown before it runs") from error
    # the result, and copies of the results of call and variant
    yield input_bytes + 3 * sum(result.numel() * result.itemsize for result in results)


def _bytes(argument: Argument) -> int:
    itemsize = DTYPES.get(argument.type, torch.float32).itemsize
    return itemsize * sum(extent(*layout) for layout in argument.tensors)


def build(again: Signature | Update, device: str | torch.device) -> PreparedCall:
    """Return a prepared call or update. Raise an UnmatchedError if the call cannot run again."""
    if isinstance(again, Update):
        return _update(again, [_parameter(*parameter, device) for parameter in again.parameters], again.implementation)
    operator, arguments = schemas.overload(again)
    formal = schemas.schema_arguments(operator)
    values = {argument.name: _value_of(argument, arguments, again.name, torch.device(device)) for argument in formal}
    # torch tags attention as random, even without dropout
    draws = torch.Tag.nondeterministic_seeded in operator.tags and arguments.get("dropout_p") != 0
    return PreparedCall(
        operator,
        tuple(values[argument.name] for argument in formal if not argument.kwarg_only),
        {argument.name: values[argument.name] for argument in formal if argument.kwarg_only},
        tuple(tensors([values[argument.name] for argument in formal if schemas.is_written(argument)])),
        again.name,
        is_random=draws or "empty" in again.name,
    )


def _value_of(formal: Any, arguments: Mapping[str, Any], operator: str, device: torch.device) -> Any:
    value = arguments[formal.name]
    if formal.name == "device" and str(formal.type).endswith("Device]"):
        return device
    if not isinstance(value, Argument):
        return value
    stem = operator.removeprefix(operators.NAMESPACE).removeprefix(operators.FOREACH).rstrip("_")
    tensors = []
    for index, (dims, strides) in enumerate(value.tensors):
        buffer = torch.empty(extent(dims, strides), dtype=_dtype(value, formal.name, arguments), device=device)
        _fill(buffer, stem, formal.name, arguments, index)  # the buffer includes gaps between elements
        is_laid = strides is not None and len(strides) == len(dims)
        tensors.append(buffer.as_strided(dims, strides) if is_laid else buffer.view(dims))
    return tensors[0] if value.is_tensor else tensors


def _dtype(value: Argument, name: str, arguments: Mapping[str, Any]) -> torch.dtype:
    if value.is_tensor:
        return DTYPES[value.type]
    other_tensors = (other for other in arguments.values() if isinstance(other, Argument) and other.is_tensor)
    return torch.int64 if name == "indices" else next((DTYPES[other.type] for other in other_tensors), torch.float32)


def _fill(tensor: torch.Tensor, operator: str, name: str, arguments: Mapping[str, Any], place: int) -> None:
    if operator in _PROBABILITIES:
        tensor.copy_(torch.rand(tensor.shape, device=tensor.device))
    elif operator in _POSITIVE or name in _POSITIVE_NAMES:
        tensor.copy_(torch.rand(tensor.shape, device=tensor.device) + 0.5)
    elif name == "found_inf":
        tensor.zero_()
    elif tensor.dtype == torch.bool:
        tensor.bernoulli_(0.5)
    elif tensor.is_floating_point() or tensor.is_complex():
        drawn = tensor.dtype if tensor.is_complex() or tensor.dtype == torch.float64 else torch.float32
        tensor.copy_(torch.randn(tensor.shape, dtype=drawn, device=tensor.device))
    else:
        tensor.random_(0, _limit(name, arguments, place))


def _limit(name: str, arguments: Mapping[str, Any], place: int) -> int:
    if isinstance(weights := arguments.get("num_weights", arguments.get("num_classes")), int) and weights > 0:
        return weights
    source = next((arguments[name] for name in ("weight", "self", "input") if _has_sizes(arguments.get(name))), None)
    if source is None or arguments.get(name) is source:
        return 2
    sizes = source.dims
    if name == "target":
        limit = sizes[1] if len(sizes) > 1 else sizes[0]
    elif isinstance(dim := arguments.get("dim"), int) and -len(sizes) <= dim < len(sizes):
        limit = sizes[dim]
    elif "kernel_size" in arguments:
        limit = math.prod(sizes[2:])
    else:
        limit = sizes[place] if place < len(sizes) else sizes[0]
    return max(int(limit), 1)


def _has_sizes(value: object) -> bool:
    return isinstance(value, Argument) and value.is_tensor and bool(value.dims)


def _parameter(kind: str, dims: tuple[int, ...], device: str | torch.device) -> torch.Tensor:
    parameter = torch.randn(dims, device=device).to(DTYPES[kind]).requires_grad_()
    parameter.grad = torch.randn(dims, device=device).to(DTYPES[kind])
    return parameter


def _update(
    update: Update, parameters: list[torch.Tensor], implementation: str, state: dict[Any, Any] | None = None
) -> PreparedCall:
    options = {
        **dict(update.options),
        **({"fused": True} if implementation == "fused" else {"foreach": implementation == "foreach"}),
    }
    try:
        optimizer = getattr(torch.optim, update.optimizer)(parameters, lr=1e-3, **options)
    except (TypeError, RuntimeError, ValueError) as error:
        raise UnmatchedError(
            f"torch.optim.{update.optimizer} has no {implementation} implementation: {error}"
        ) from error
    if state:
        optimizer.load_state_dict(optimizer.state_dict() | {"state": copy.deepcopy(state)})

    def remade(new_implementation: str) -> PreparedCall | None:
        # a deep copy of a leaf includes its gradient
        copies = copy.deepcopy(parameters)
        return (
            None
            if new_implementation == implementation
            else _update(update, copies, new_implementation, optimizer.state_dict()["state"])
        )

    written = tuple(parameter.detach() for parameter in parameters)
    return PreparedCall(optimizer.step, (), {}, written, update.name, remade=remade)
