"""Updates by torch's optimizers, made again from what the recorder saw of them."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from perfhooks.trying.ready import Ready
from perfhooks.trying.schemas import DTYPES, UnmatchedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.trying.recorded import Argument, Calls, Signature

_LEAF: Final = "torch::autograd::AccumulateGrad"
_STEP: Final = "Optimizer.step#"
_COPIES: Final = 8
"""Parameters, gradients, two states, each for the update and for the variant of it."""

Shape = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Update:
    """What equal updates have in common; stands where a `Signature` stands for calls of operators."""

    optimizer: str
    """The name of its class in ``torch.optim``."""
    parameters: tuple[Shape, ...]
    """Type and sizes of each."""
    options: tuple[tuple[str, Any], ...]
    """What its operators tell of it."""
    implementation: str
    """``for-loop``, ``foreach`` or ``fused``."""

    @property
    def name(self) -> str:
        """As the table shows it."""
        return f"{_STEP}{self.optimizer}"

    @property
    def shapes(self) -> str:
        """What it updates, for people."""
        return f"{len(self.parameters)} parameters, {self.implementation}"

    @property
    def needed_bytes(self) -> int:
        """Of memory, while it is tried."""
        return _COPIES * sum(torch.Size(dims).numel() * DTYPES[kind].itemsize for kind, dims in self.parameters)


def find(found: Calls) -> dict[int, Update]:
    """The updates among some calls that can be made again, by the place of each."""
    signatures, names = found.signatures(), found.names()
    start = found.trace.start[found.row]
    leaves = [(start[place], signatures[place]) for place, name in enumerate(names) if name == _LEAF]
    places = [place for place, name in enumerate(names) if name.startswith(_STEP)]
    updates: dict[int, Update] = {}
    before = 0
    for place in sorted(places, key=lambda each: start[each]):
        gradients = [signature for time, signature in leaves if before <= time < start[place]]
        before = start[place]
        inside = [signatures[each] for each in _inside(found, place)]
        made = _update(names[place].removeprefix(_STEP).partition(".")[0], gradients, inside)
        if made is not None:
            updates[place] = made
    return updates


def _inside(found: Calls, place: int) -> Iterator[int]:
    """The calls on the thread of one while it ran."""
    row = found.row[place]
    for each in range(place + 1, len(found.row)):
        other = found.row[each]
        if found.trace.thread[other] != found.trace.thread[row] or found.trace.start[other] >= found.trace.end[row]:
            return
        yield each


def _update(optimizer: str, gradients: Sequence[Signature], inside: Sequence[Signature]) -> Update | None:
    """What an update did; None where the recording does not tell it."""
    if not hasattr(torch.optim, optimizer) or any(each.name == _LEAF for each in inside):  # a closure ran in it
        return None
    counts = Counter(each.name.removeprefix("aten::") for each in inside)
    fused = any(name.startswith("_fused_") for name in counts)
    foreach = not fused and any(name.startswith("_foreach_") for name in counts)
    given = [_shape(each.arguments[0]) for each in gradients if each.arguments]
    if not given or None in given:
        return None
    shapes = tuple(each for each in given if each is not None)
    if not foreach and not fused:
        shapes = _of_one_pass(shapes, _updated(optimizer, counts))
    implementation = "fused" if fused else "foreach" if foreach else "for-loop"
    return Update(optimizer, shapes, _options(optimizer, counts), implementation) if shapes else None


def _shape(leaf: Argument) -> Shape | None:
    return (leaf.type, leaf.dims) if leaf.type in DTYPES else None


def _updated(optimizer: str, counts: Counter[str]) -> int:
    """How many parameters a loop went over: each has one last operation that no other step of the update uses."""
    if optimizer in ("Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta"):
        return counts["addcdiv_"]
    return counts["add_"] // 2 if counts["mul_"] else counts["add_"]


def _of_one_pass(shapes: tuple[Shape, ...], count: int) -> tuple[Shape, ...]:
    """The gradients of one backward pass, where several were accumulated; nothing where the numbers do not fit."""
    return shapes[-count:] if count and len(shapes) % count == 0 else ()


def _options(optimizer: str, counts: Counter[str]) -> tuple[tuple[str, Any], ...]:
    """Options that cost time and leave a trace in the operators."""
    found: dict[str, Any] = {}
    has = {name.removeprefix("_foreach_") for name in counts}
    if optimizer == "SGD" and "mul_" in has:
        found["momentum"] = 0.9
    if optimizer in ("SGD", "Adam", "Adagrad", "RMSprop") and "add" in has:
        found["weight_decay"] = 1e-4
    if optimizer in ("Adam", "AdamW") and has & {"maximum", "maximum_"}:
        found["amsgrad"] = True
    return tuple(found.items())


def build(update: Update, device: str | torch.device) -> Ready:
    """Make an update ready to run.

    Raises:
        UnmatchedError: This torch's optimizer does not take these options.
    """
    parameters = [_parameter(*each, device) for each in update.parameters]
    return _ready(update, parameters, update.implementation)


def _parameter(kind: str, dims: tuple[int, ...], device: str | torch.device) -> torch.Tensor:
    made = torch.randn(dims, device=device).to(DTYPES[kind]).requires_grad_()
    made.grad = torch.randn(dims, device=device).to(DTYPES[kind])
    return made


def _ready(
    update: Update, parameters: list[torch.Tensor], implementation: str, state: dict[Any, Any] | None = None
) -> Ready:
    options = dict(update.options) | {"foreach": implementation == "foreach"}
    if implementation == "fused":
        options = dict(update.options) | {"fused": True}
    try:
        optimizer = getattr(torch.optim, update.optimizer)(parameters, lr=1e-3, **options)
    except (TypeError, RuntimeError, ValueError) as error:
        raise UnmatchedError(f"torch.optim.{update.optimizer} does not take {implementation}: {error}") from error

    if state:  # what it has seen so far is part of what it does next, as momentum is
        optimizer.load_state_dict(optimizer.state_dict() | {"state": copy.deepcopy(state)})

    def remade(wanted: str) -> Ready | None:
        if wanted == implementation:
            return None
        return _ready(update, [_copy(each) for each in parameters], wanted, optimizer.state_dict()["state"])

    written = tuple(each.detach() for each in parameters)
    return Ready(optimizer.step, (), {}, written, update.name, remade=remade)


def _copy(parameter: torch.Tensor) -> torch.Tensor:
    made = parameter.detach().clone().requires_grad_()
    made.grad = None if parameter.grad is None else parameter.grad.clone()
    return made
