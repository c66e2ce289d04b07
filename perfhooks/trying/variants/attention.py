"""Kernels for attention."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from torch.nn.attention import SDPBackend, sdpa_kernel

from perfhooks.trying.variants.variant import EXACT, on_cuda, stem

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from perfhooks.trying.ready import Ready

_BACKENDS: Final = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


class Attention:
    """``scaled_dot_product_attention`` by one of its back ends."""

    tolerance = 5 * EXACT

    def __init__(self, kernel: str) -> None:
        self.name = f"attention-{kernel}"
        self.summary = f"attention by the back end {kernel!r}"
        self._backend = _BACKENDS[kernel]

    def suits(self, call: Ready) -> bool:
        """Attention; of the back ends a CPU has two."""
        is_there = on_cuda(call) or self._backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION)
        return stem(call) == "scaled_dot_product_attention" and is_there

    def changed(self, call: Ready) -> Ready | None:
        """The same call, with this back end allowed alone."""
        return replace(call, setting=self._alone) if stem(call) == "scaled_dot_product_attention" else None

    def _alone(self) -> AbstractContextManager[None]:
        return sdpa_kernel([self._backend])
