"""How far the results of two calls are apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.trying.ready import Ready

_SEED = 20


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


def outputs(call: Ready) -> list[torch.Tensor]:
    """What a call gives: the tensors that it returns."""
    return list(_flat(call.result(call())))


def _results(call: Ready) -> list[torch.Tensor]:
    """What a call gives and what it writes."""
    saved = [each.clone() for each in call.written]
    torch.manual_seed(_SEED)
    given = [each.detach().to("cpu", torch.float64, copy=True) for each in (*outputs(call), *call.written)]
    for each, before in zip(call.written, saved, strict=True):
        each.copy_(before)
    return given


def _flat(given: Any) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor) and not given.is_complex():
        yield given
    elif isinstance(given, (list, tuple, dict)):
        for each in given.values() if isinstance(given, dict) else given:
            yield from _flat(each)


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape:
        return math.inf
    if not a.numel():
        return 0.0
    both = a.isfinite() & b.isfinite()
    # what is infinite or no number must be so in both
    if not torch.equal(a[~both].nan_to_num(7e77), b[~both].nan_to_num(7e77)):
        return math.inf
    a, b = a[both], b[both]
    if not a.numel():
        return 0.0
    largest = float(a.abs().max())
    return float((a - b).abs().max()) / (largest or 1.0)
