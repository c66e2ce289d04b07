"""Other implementations of an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.trying.variants.variant import EXACT

if TYPE_CHECKING:
    from perfhooks.trying.ready import Ready

_SUMMARIES: Final = {
    "foreach": "the update as operators on lists of tensors",
    "fused": "the update in one operator for all parameters",
}


class Implementation:
    """An update by the same optimizer with ``foreach=True`` or ``fused=True``."""

    tolerance = EXACT

    def __init__(self, name: str) -> None:
        self.name = name
        self.summary = _SUMMARIES[name]

    def suits(self, call: Ready) -> bool:
        """Updates."""
        return call.remade is not None

    def changed(self, call: Ready) -> Ready | None:
        """The same update; None for anything else, and where the optimizer has no such implementation."""
        return None if call.remade is None else call.remade(self.name)
