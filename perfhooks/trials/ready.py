"""A call that is ready to run, and how far the results of two of them are apart."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_SEED = 20
_PIECE = 1 << 20
"""Elements of results that are held against each other at once, as float64: memory for them is not asked for."""


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
    result: Callable[[Any], Any] = lambda given: given
    """What of its result counts."""
    remade: Callable[[str], Ready | None] | None = None
    """Of an update by an optimizer: makes the same one with another implementation."""
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
        yield from tensors((self.arguments, self.keywords))

    def with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Ready:
        """The same call with other tensors; what was one tensor stays one, what is written stays written.

        Every tensor that is written into is copied, so that the two calls do not disturb each other.
        """
        known: dict[int, torch.Tensor] = {}
        kept = {id(tensor) for tensor in self.written}

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
            keywords={name: changed(given) for name, given in self.keywords.items()},
            written=tuple(known.get(id(tensor), tensor) for tensor in self.written),
        )

    def outputs(self) -> list[torch.Tensor]:
        """Run it, and take the tensors that it returns."""
        return [tensor for tensor in tensors(self.result(self())) if not tensor.is_complex()]

    @contextmanager
    def unwritten(self) -> Iterator[None]:
        """Give it its inputs back as they were, whatever it wrote into them meanwhile."""
        saved = [tensor.clone() for tensor in self.written]
        yield
        for tensor, before in zip(self.written, saved, strict=True):
            tensor.copy_(before)


def tensors(given: Any) -> Iterator[torch.Tensor]:
    """The tensors in something, at any depth of lists and mappings."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (list, tuple, dict)):
        for part in given.values() if isinstance(given, dict) else given:
            yield from tensors(part)


def same_layout(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy that lies in memory as its original does, holes and elements that share a place among it.

    Args:
        tensor: Any.
        dtype: Of the copy; None is the same.
    """
    span = tensor.as_strided((extent(tensor.size(), tensor.stride()),), (1,))
    return span.to(dtype or tensor.dtype, copy=True).as_strided(tensor.size(), tensor.stride(), 0)


def extent(dims: Sequence[int], strides: Sequence[int] | None) -> int:
    """The elements of memory that a tensor spans."""
    if strides is None or len(strides) != len(dims):
        return math.prod(dims)
    return 0 if 0 in dims else 1 + sum((size - 1) * step for size, step in zip(dims, strides, strict=True))


def difference(a: Ready, b: Ready) -> float | None:
    """The largest difference of two calls' results, as a part of the largest value in them; of each tensor its own.

    Both are left as they were: what they write into is given back.

    Args:
        a: A call.
        b: One that should give the same.

    Returns:
        0 for equal results; infinity where shapes differ, or one has a number where the other has none; None where
        results are drawn, memory that nobody has written to, or no tensors.
    """
    if a.is_random or b.is_random:
        return None
    first, second = _results(a), _results(b)
    if len(first) != len(second):
        return math.inf
    return max((_apart(*pair) for pair in zip(first, second, strict=True)), default=None)


def _results(call: Ready) -> list[torch.Tensor]:
    """What a call gives and what it writes."""
    torch.manual_seed(_SEED)
    with call.unwritten():
        every = (*call.outputs(), *call.written)
        return [each.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for each in every]


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape:
        return math.inf
    apart = largest = 0.0
    pieces = (tensor.reshape(-1).split(_PIECE) for tensor in (a, b))
    for pair in zip(*pieces, strict=True):
        one, other = (piece.to(torch.float64) for piece in pair)
        both = one.isfinite() & other.isfinite()
        # what is infinite or no number must be so in both
        if not torch.equal(one[~both].nan_to_num(7e77), other[~both].nan_to_num(7e77)):
            return math.inf
        if both.any():
            apart = max(apart, float((one - other)[both].abs().max()))
            largest = max(largest, float(one[both].abs().max()))
    return apart / (largest or 1.0)
