"""Inputs that lie in memory in the order of their dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from perfhooks.trying.variants.variant import EXACT

if TYPE_CHECKING:
    from perfhooks.trying.ready import Ready


class Contiguous:
    """Inputs without gaps, in the order of their dimensions, as if they had come so."""

    name = "contiguous"
    summary = "inputs contiguous in memory"
    tolerance = EXACT

    def suits(self, call: Ready) -> bool:
        """Calls of which an input is not, unless its channels are last on purpose."""
        return any(_is_scattered(each) for each in call.tensors())

    def changed(self, call: Ready) -> Ready | None:
        """All inputs made so; None where all are."""
        if call.remade is not None or all(each.is_contiguous() for each in call.tensors()):
            return None
        return call.with_tensors(torch.Tensor.contiguous)


def _is_scattered(tensor: torch.Tensor) -> bool:
    is_image = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)  # noqa: PLR2004
    return not tensor.is_contiguous() and not is_image
