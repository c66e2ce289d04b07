"""A call by ``torch.compile``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from perfhooks.trying.variants.variant import EXACT

if TYPE_CHECKING:
    from perfhooks.trying.ready import Ready


class Compiled:
    """The single call compiled by ``torch.compile``; compiling is not timed."""

    name = "compile"
    summary = "the call compiled by torch.compile"
    tolerance = 5 * EXACT

    def suits(self, call: Ready) -> bool:  # noqa: ARG002 -- the form of a variant
        """Never by itself: compiling a call takes seconds, and what it gains it gains between calls."""
        return False

    def changed(self, call: Ready) -> Ready | None:
        """The same call, compiled when it first runs; None for updates."""
        if call.remade is not None:
            return None

        def run(*arguments: Any, **keywords: Any) -> Any:
            return call.operator(*arguments, **keywords)

        return replace(call, operator=torch.compile(run, dynamic=False))
