"""Kernels for attention."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from torch.nn.attention import SDPBackend, sdpa_kernel

from perfhooks.trying.variants.variant import EXACT, on_cuda, stem

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from perfhooks.trying.ready import Ready

_BACKENDS: Final[dict[str, Any]] = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": getattr(SDPBackend, "CUDNN_ATTENTION", None),  # torch 2.4 has none
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
        return _is_attention(call) and is_there

    def changed(self, call: Ready) -> Ready | None:
        """The same call, with this back end allowed alone; None where this torch has none of that name."""
        return replace(call, setting=self._alone) if _is_attention(call) and self._backend is not None else None

    def _alone(self) -> AbstractContextManager[None]:
        return sdpa_kernel([self._backend])


def _is_attention(call: Ready) -> bool:
    return stem(call) == "scaled_dot_product_attention"
