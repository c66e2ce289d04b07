"""Intel's library for products, convolutions and normalisation on a CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perfhooks.trying.safe import has_onednn, is_onednn_on, onednn
from perfhooks.trying.variants.variant import EXACT, PRODUCTS, on_cuda, stem

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from perfhooks.trying.ready import Ready


class OneDnn:
    """oneDNN switched on where it is off, or off where it is on."""

    tolerance = EXACT

    def __init__(self, *, on: bool) -> None:
        self.name = "onednn" if on else "no-onednn"
        self.summary = f"oneDNN switched {'on' if on else 'off'}"
        self._on = on

    def suits(self, call: Ready) -> bool:
        """Products on a CPU; without it only convolutions, of which torch has slow ones of its own."""
        return stem(call) in PRODUCTS and (self._on or "conv" in stem(call)) and not on_cuda(call)

    def changed(self, call: Ready) -> Ready | None:
        """The same call; None where it is so already, and where this torch has no oneDNN."""
        with call.setting():
            is_on = is_onednn_on()
        if on_cuda(call) or not has_onednn() or is_on == self._on:
            return None
        return replace(call, setting=self._switched)

    def _switched(self) -> AbstractContextManager[None]:
        return onednn(on=self._on)
