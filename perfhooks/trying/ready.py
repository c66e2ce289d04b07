"""A recorded call that is ready to run: an overload with inputs of the same extent, layout and type."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from perfhooks.trying import schemas
from perfhooks.trying.recorded import Argument
from perfhooks.trying.roles import role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from perfhooks.trying.recorded import Signature

_COPIES: Final = 4
"""How often a call's inputs are in memory while it is tried: as built, kept to be written anew, and both of a variant;
results are about as large as what is kept."""
_ENDLESS: Final = 1 << 62
"""Bytes that nobody has; a trace may ask for numbers that no float holds."""


@dataclass(frozen=True)
class Ready:
    """A call that can be run any number of times."""

    operator: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    written: tuple[torch.Tensor, ...] = ()
    """The tensors that it writes into."""
    name: str = ""
    """As recorded: ``aten::mm``."""
    setting: Callable[[], AbstractContextManager[Any]] = nullcontext
    """What is set while it runs, and only then."""
    threads: int | None = None
    """How many threads it may use; None leaves them alone."""
    result: Callable[[Any], Any] = lambda given: given
    """What of its result counts."""
    remade: Callable[[str], Ready | None] | None = None
    """Of an update by an optimizer: makes the same one with other options."""
    gradients: bool = False
    """Whether autograd may see it, where it is on: the user's own code may need that."""
    is_random: bool = False
    """Whether its result is drawn, so that two of them cannot be held against each other."""

    def __call__(self) -> Any:
        """Run it once."""
        with self.running():
            return self.operator(*self.arguments, **self.keywords)

    @contextmanager
    def running(self) -> Iterator[None]:
        """What must hold while it runs."""
        with self.setting(), torch.set_grad_enabled(self.gradients and torch.is_grad_enabled()):
            yield

    def tensors(self) -> Iterator[torch.Tensor]:
        """All that it is given."""
        yield from _tensors((self.arguments, tuple(self.keywords.values())))

    def with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Ready:
        """The same call with other tensors; what was one tensor stays one, what is written stays written.

        Every tensor that is written into is copied, so that the two calls do not disturb each other.
        """
        known: dict[int, torch.Tensor] = {}
        kept = {id(each) for each in self.written}

        def changed(given: Any) -> Any:
            if isinstance(given, torch.Tensor):
                if id(given) not in known:
                    made = change(given)
                    known[id(given)] = same_layout(made) if made is given and id(given) in kept else made
                return known[id(given)]
            return type(given)(map(changed, given)) if isinstance(given, (list, tuple)) else given

        return replace(
            self,
            arguments=changed(self.arguments),
            keywords={name: changed(each) for name, each in self.keywords.items()},
            written=tuple(known.get(id(each), each) for each in self.written),
        )


def same_layout(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy that lies in memory as its original does, holes and elements that share a place among it.

    Args:
        tensor: Any.
        dtype: Of the copy; None is the same.
    """
    span = tensor.as_strided((_extent(tensor.size(), tensor.stride()),), (1,))
    return span.to(dtype or tensor.dtype, copy=True).as_strided(tensor.size(), tensor.stride(), 0)


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from _tensors(each)


def needed_bytes(signature: Signature) -> int:
    """What trying a call takes of memory at most, as far as its inputs tell."""
    given = sum(_bytes(each) for each in signature.arguments or ())
    return min(given * _COPIES, _ENDLESS)


def _bytes(argument: Argument) -> int:
    if argument.is_list:
        return sum(_extent(dims, None) for dims in argument.dims) * 4
    if argument.is_tensor and argument.type in schemas.DTYPES:
        return _extent(argument.dims, argument.strides) * schemas.DTYPES[argument.type].itemsize
    if argument.type == "ScalarList":  # the sizes of what an operator makes, as far as anybody can tell
        sizes = [int(each) for each in argument.value.strip("[]").split(",") if each.strip().isdigit()]
        return _extent(sizes, None) * 8
    return 0


def _extent(dims: Sequence[int], strides: Sequence[int] | None) -> int:
    """The elements of memory that a tensor spans."""
    if strides is None or len(strides) != len(dims):
        return math.prod(dims)
    if 0 in dims:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(dims, strides, strict=True))


def build(signature: Signature, device: str | torch.device) -> Ready:
    """Make a recorded call ready to run.

    Args:
        signature: What it was called with.
        device: Where to run it.

    Raises:
        UnmatchedError: It cannot be run again: says why.
    """
    operator, values = schemas.overload(signature)
    formal = schemas.formal(operator)
    stem = signature.name.removeprefix("aten::")
    named = {each.name: value for each, value in zip(formal, values, strict=True)}
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    written: list[torch.Tensor] = []
    for each, value in zip(formal, values, strict=True):
        made = _built(value, stem, each.name, named, torch.device(device))
        if each.name == "device" and str(each.type).endswith("Device]"):
            made = torch.device(device)
        if schemas.is_written(each):
            written += _tensors(made)
        if each.kwarg_only:
            keywords[each.name] = made
        else:
            positional.append(made)
    # attention without dropout draws nothing, though it might
    draws = torch.Tag.nondeterministic_seeded in operator.tags and named.get("dropout_p") != 0
    is_random = draws or "empty" in stem
    return Ready(operator, tuple(positional), keywords, tuple(written), signature.name, is_random=is_random)


def _built(value: Any, operator: str, name: str, named: dict[str, Any], device: torch.device) -> Any:
    if not isinstance(value, Argument):
        return value
    if value.is_tensor:
        fill = role(operator, name, named)
        return _tensor(value.dims, value.strides, schemas.DTYPES[value.type], fill, device)
    dtype = torch.int64 if name == "indices" else _dtype(named)
    strides = value.strides if value.strides is not None else [None] * len(value.dims)
    fills = [role(operator, name, named, place) for place in range(len(value.dims))]
    parts = zip(value.dims, strides, fills, strict=True)
    return [_tensor(dims, steps, dtype, fill, device) for dims, steps, fill in parts]


def _dtype(named: Mapping[str, Any]) -> torch.dtype:
    """The type of the tensors of a list, which is not recorded: that of the call's other tensors."""
    given = [each for each in named.values() if isinstance(each, Argument) and each.is_tensor]
    return schemas.DTYPES[given[0].type] if given else torch.float32


def _tensor(
    dims: Any, strides: Any, dtype: torch.dtype, fill: Callable[[torch.Tensor], object], device: torch.device
) -> torch.Tensor:
    """A tensor that lies in memory as the recorded one did, filled also where it has holes."""
    buffer = torch.empty(_extent(dims, strides), dtype=dtype, device=device)
    fill(buffer)
    if strides is None or len(strides) != len(dims):
        return buffer.view(dims)
    return buffer.as_strided(dims, strides)
