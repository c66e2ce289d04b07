"""Inputs of another precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from perfhooks.trying.ready import same_layout
from perfhooks.trying.variants.variant import EXACT, PRODUCTS, ROUNDED, on_cuda, stem

if TYPE_CHECKING:
    from perfhooks.trying.ready import Ready

_TYPES: Final = {
    "float32": (torch.float64, torch.float32),
    "bf16": (torch.float32, torch.bfloat16),
    "fp16": (torch.float32, torch.float16),
}


class Precision:
    """Inputs of one precision instead of a higher one, as if they had come so: the conversion is not timed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._given, self._wanted = _TYPES[name]
        self.summary = f"inputs in {name} instead of {str(self._given).removeprefix('torch.')}"
        self.tolerance = EXACT if name == "float32" else ROUNDED

    def suits(self, call: Ready) -> bool:
        """Products for bf16, on devices also for fp16; whatever has float64 for float32."""
        if self.name == "float32":
            return any(each.dim() for each in call.tensors() if each.dtype == self._given)
        return stem(call) in PRODUCTS and (self.name == "bf16" or on_cuda(call))

    def changed(self, call: Ready) -> Ready | None:
        """All inputs converted that have the higher precision."""
        if call.remade is not None or not any(each.dtype == self._given for each in call.tensors()):
            return None
        return call.with_tensors(self._converted)

    def _converted(self, tensor: torch.Tensor) -> torch.Tensor:
        return same_layout(tensor, self._wanted) if tensor.dtype == self._given else tensor
