"""Recorded calls and updates made ready to run: inputs of the recorded extent, layout and type, with usable values."""

from __future__ import annotations

import copy
import logging
import math
from typing import TYPE_CHECKING, Any, Final

import torch

from perfhooks.trace.names import operators
from perfhooks.trials import schemas
from perfhooks.trials.ready import Ready, extent, tensors
from perfhooks.trials.recorded import Argument, Update
from perfhooks.trials.safe import GIB
from perfhooks.trials.schemas import DTYPES, UnmatchedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perfhooks.trials.recorded import Signature

_COPIES: Final = 4
"""How often a call's inputs are in memory while it is tried: as built, kept to be written anew, both of a variant."""
_RESULTS: Final = 3
"""The same of its results: as given, and a copy of these and of the variant's, to hold them against each other."""
_OF_UPDATE: Final = 8
"""The same of an update's parameters: these, gradients and two states, each for the update and for its variant."""
_ENDLESS: Final = 1 << 62
"""Bytes that nobody has; a trace may ask for numbers that no float holds."""
_PROBABILITIES: Final = frozenset({"bernoulli", "binary_cross_entropy", "binary_cross_entropy_backward", "multinomial"})
_POSITIVE: Final = frozenset(
    {"log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "lgamma", "digamma", "xlogy", "poisson", "reciprocal"}
)
_POSITIVE_NAMES: Final = frozenset(
    {"rstd", "save_invstd", "save_var", "running_var", "var", "tensor2", "exp_avg_sq", "total_weight", "weight_sum"}
)
"""Arguments that are variances, their roots, or divisors."""
_FEW: Final = 2
"""Integers below this are good for any argument."""


def learn_sizes() -> None:
    """Import what computes sizes without memory: two seconds, here once instead of in each copy of this process."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # torch tells of devices and compilers that nobody asks for here
    try:
        torch.empty(1, device="meta").add(1)
    finally:
        logging.disable(before)


def check_memory(again: Signature | Update, allowed: float) -> None:
    """See whether a call or an update can be tried with so many bytes, before any of them is taken.

    Raises:
        UnmatchedError: It needs more, or torch cannot tell how large its result will be.
    """
    for needed in (min(each, _ENDLESS) for each in _needed(again)):
        if needed > allowed:
            raise UnmatchedError(f"needs {needed / GIB:.3g} GiB, and {allowed / GIB:.3g} may be taken (--memory)")


def _needed(again: Signature | Update) -> Iterator[int]:
    """What is needed at least, more exactly with each number: inputs, then what torch tells of results."""
    if isinstance(again, Update):
        yield _OF_UPDATE * sum(math.prod(dims) * DTYPES[kind].itemsize for kind, dims in again.parameters)
        return
    given = _COPIES * sum(map(_bytes, again.arguments or ()))
    yield given
    try:
        # on this device torch only computes shapes, and takes no memory
        results = [*tensors(build(again, "meta")())]
    except NotImplementedError as error:
        raise UnmatchedError("how large its result will be is not known before it has run") from error
    yield given + _RESULTS * sum(result.numel() * result.itemsize for result in results)


def _bytes(argument: Argument) -> int:
    itemsize = DTYPES.get(argument.type, torch.float32).itemsize
    return itemsize * sum(extent(*layout) for layout in argument.tensors)


def build(again: Signature | Update, device: str | torch.device) -> Ready:
    """Make a recorded call, or an update, ready to run.

    Args:
        again: What it was called with.
        device: Where to run it.

    Raises:
        UnmatchedError: It cannot be run again: says why.
    """
    if isinstance(again, Update):
        return _update(again, [_parameter(*parameter, device) for parameter in again.parameters], again.implementation)
    operator, given = schemas.overload(again)
    formal = schemas.formal(operator)
    made = {argument.name: _made(argument, given, again.name, torch.device(device)) for argument in formal}
    # attention without dropout draws nothing, though it might
    draws = torch.Tag.nondeterministic_seeded in operator.tags and given.get("dropout_p") != 0
    return Ready(
        operator,
        tuple(made[argument.name] for argument in formal if not argument.kwarg_only),
        {argument.name: made[argument.name] for argument in formal if argument.kwarg_only},
        tuple(tensors([made[argument.name] for argument in formal if schemas.is_written(argument)])),
        again.name,
        is_random=draws or "empty" in again.name,
    )


def _made(formal: Any, given: Mapping[str, Any], operator: str, device: torch.device) -> Any:
    """What an argument of a schema is when the call is run."""
    value = given[formal.name]
    if formal.name == "device" and str(formal.type).endswith("Device]"):
        return device
    if not isinstance(value, Argument):
        return value
    stem = operator.removeprefix(operators.NAMESPACE).removeprefix(operators.FOREACH).rstrip("_")
    made = []
    for place, (dims, strides) in enumerate(value.tensors):
        buffer = torch.empty(extent(dims, strides), dtype=_dtype(value, formal.name, given), device=device)
        _fill(buffer, stem, formal.name, given, place)  # also the holes between its elements
        is_laid = strides is not None and len(strides) == len(dims)
        made.append(buffer.as_strided(dims, strides) if is_laid else buffer.view(dims))
    return made[0] if value.is_tensor else made


def _dtype(value: Argument, name: str, given: Mapping[str, Any]) -> torch.dtype:
    """The type of a tensor; those of a list are not recorded: that of the call's other tensors."""
    if value.is_tensor:
        return DTYPES[value.type]
    others = (other for other in given.values() if isinstance(other, Argument) and other.is_tensor)
    return torch.int64 if name == "indices" else next((DTYPES[other.type] for other in others), torch.float32)


def _fill(tensor: torch.Tensor, operator: str, name: str, given: Mapping[str, Any], place: int) -> None:
    """Values that an operator can work with: indices within range, probabilities, what has a root or a logarithm.

    Args:
        tensor: To be filled.
        operator: The stem of its name.
        name: That of the argument in the schema.
        given: All arguments of the call by name: `Argument` for tensors, else values.
        place: Which tensor of a list it is.
    """
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
        tensor.random_(0, _limit(name, given, place))


def _limit(name: str, given: Mapping[str, Any], place: int) -> int:
    """Above the largest number that an argument of integers may hold."""
    if isinstance(weights := given.get("num_weights", given.get("num_classes")), int) and weights > 0:
        return weights
    source = next((given[name] for name in ("weight", "self", "input") if _has_sizes(given.get(name))), None)
    if source is None or given.get(name) is source:
        return _FEW
    sizes = source.dims
    if name == "target":
        limit = sizes[1] if len(sizes) > 1 else sizes[0]
    elif isinstance(dim := given.get("dim"), int) and -len(sizes) <= dim < len(sizes):
        limit = sizes[dim]
    elif "kernel_size" in given:  # places in the plane of an image
        limit = math.prod(sizes[2:])
    else:
        limit = sizes[place] if place < len(sizes) else sizes[0]
    return max(int(limit), 1)


def _has_sizes(given: object) -> bool:
    return isinstance(given, Argument) and given.is_tensor and bool(given.dims)


def _parameter(kind: str, dims: tuple[int, ...], device: str | torch.device) -> torch.Tensor:
    parameter = torch.randn(dims, device=device).to(DTYPES[kind]).requires_grad_()
    parameter.grad = torch.randn(dims, device=device).to(DTYPES[kind])
    return parameter


def _update(update: Update, parameters: list[torch.Tensor], way: str, state: dict[Any, Any] | None = None) -> Ready:
    """An update of some parameters by one of the implementations of an optimizer."""
    options = {**dict(update.options), **({"fused": True} if way == "fused" else {"foreach": way == "foreach"})}
    try:
        optimizer = getattr(torch.optim, update.optimizer)(parameters, lr=1e-3, **options)
    except (TypeError, RuntimeError, ValueError) as error:
        raise UnmatchedError(f"torch.optim.{update.optimizer} does not take {way}: {error}") from error
    if state:  # what it has seen so far is part of what it does next, as momentum is
        optimizer.load_state_dict(optimizer.state_dict() | {"state": copy.deepcopy(state)})

    def remade(wanted: str) -> Ready | None:
        # a parameter is a leaf of autograd, so a deep copy has a copy of its gradient
        copies = copy.deepcopy(parameters)
        return None if wanted == way else _update(update, copies, wanted, optimizer.state_dict()["state"])

    written = tuple(parameter.detach() for parameter in parameters)
    return Ready(optimizer.step, (), {}, written, update.name, remade=remade)
