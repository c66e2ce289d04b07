from __future__ import annotations

import math
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@dataclass(frozen=True)
class PreparedCall:
    operator: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    written: tuple[torch.Tensor, ...] = ()
    name: str = ""
    """Recorded name, for example ``aten::mm``."""
    setting: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Context for each run, for example to set flags of torch."""
    result: Callable[[Any], Any] = lambda given: given
    """Function that selects the part of the result to compare."""
    remade: Callable[[str], PreparedCall | None] | None = None
    """Function that returns the same optimizer update with another implementation."""
    gradients: bool = False
    """Whether autograd stays enabled, as for the user's own code."""
    is_random: bool = False
    """Whether results are random, so that they cannot be compared."""

    def __call__(self) -> Any:
        with self.running():
            return self.operator(*self.arguments, **self.keywords)

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.setting(), torch.set_grad_enabled(self.gradients and torch.is_grad_enabled()):
            yield

    def tensors(self) -> Iterator[torch.Tensor]:
        yield from tensors((self.arguments, self.keywords))

    def with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> PreparedCall:
        """Return the call with changed tensors. Arguments that were the same tensor remain the same tensor.

        Tensors that the call overwrites are copied.
        """
        replacements: dict[int, torch.Tensor] = {}
        written_ids = {id(tensor) for tensor in self.written}

        def replace_in(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if id(value) not in replacements:
                    replacement = change(value)
                    replacements[id(value)] = (
                        same_layout(replacement) if replacement is value and id(value) in written_ids else replacement
                    )
                return replacements[id(value)]
            return type(value)(map(replace_in, value)) if isinstance(value, (list, tuple)) else value

        return replace(
            self,
            arguments=replace_in(self.arguments),
            keywords={name: replace_in(value) for name, value in self.keywords.items()},
            written=tuple(replacements.get(id(tensor), tensor) for tensor in self.written),
        )

    def outputs(self) -> list[torch.Tensor]:
        """Return the result tensors, except complex ones."""
        return [tensor for tensor in tensors(self.result(self())) if not tensor.is_complex()]

    @contextmanager
    def unwritten(self) -> Iterator[None]:
        saved = [tensor.clone() for tensor in self.written]
        yield
        for tensor, before in zip(self.written, saved, strict=True):
            tensor.copy_(before)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for element in value.values() if isinstance(value, dict) else value:
            yield from tensors(element)


def same_layout(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Copy a tensor, including gaps and overlapping elements."""
    span = tensor.as_strided((extent(tensor.size(), tensor.stride()),), (1,))
    return span.to(dtype or tensor.dtype, copy=True).as_strided(tensor.size(), tensor.stride(), 0)


def extent(dims: Sequence[int], strides: Sequence[int] | None) -> int:
    if strides is None or len(strides) != len(dims):
        return math.prod(dims)
    return 0 if 0 in dims else 1 + sum((size - 1) * step for size, step in zip(dims, strides, strict=True))


def difference(a: PreparedCall, b: PreparedCall) -> float | None:
    """Return the largest difference of the results, relative to the largest value of each tensor of ``a``.

    The difference is infinite if shapes differ, or if only one result is finite at some position. The difference is
    None if results are random, uninitialised or no tensors.
    """
    if a.is_random or b.is_random:
        return None
    results_a, results_b = _results(a), _results(b)
    if len(results_a) != len(results_b):
        return math.inf
    return max((_relative_difference(*pair) for pair in zip(results_a, results_b, strict=True)), default=None)


def _results(call: PreparedCall) -> list[torch.Tensor]:
    torch.manual_seed(20)
    with call.unwritten():
        outputs = (*call.outputs(), *call.written)
        return [tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for tensor in outputs]


def _relative_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape:
        return math.inf
    largest_difference = largest_value = 0.0
    chunks = (tensor.reshape(-1).split(1 << 20) for tensor in (a, b))
    for pair in zip(*chunks, strict=True):
        chunk_a, chunk_b = (chunk.to(torch.float64) for chunk in pair)
        is_finite = chunk_a.isfinite() & chunk_b.isfinite()
        if not torch.equal(chunk_a[~is_finite].nan_to_num(7e77), chunk_b[~is_finite].nan_to_num(7e77)):
            return math.inf
        if is_finite.any():
            largest_difference = max(largest_difference, float((chunk_a - chunk_b)[is_finite].abs().max()))
            largest_value = max(largest_value, float(chunk_a[is_finite].abs().max()))
    return largest_difference / (largest_value or 1.0)
