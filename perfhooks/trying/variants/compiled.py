"""A call by ``torch.compile``."""

from __future__ import annotations

from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import torch

from perfhooks.trying.variants.variant import EXACT

if TYPE_CHECKING:
    from perfhooks.trying.ready import Ready


_NO_COMPILER: Final = "No working C++ compiler"
"""What torch says where it finds none, in a sentence that names its own configuration."""


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

        # torch keeps what it compiled by the code object, no more than eight for each, and then no longer compiles
        own = FunctionType(run.__code__.replace(), globals(), run.__name__, None, run.__closure__)
        made = torch.compile(own, dynamic=False, fullgraph=True)

        def compiled(*arguments: Any, **keywords: Any) -> Any:
            try:
                return made(*arguments, **keywords)
            except Exception as error:
                raise _said(error) from error

        return replace(call, operator=compiled)


def _said(error: Exception) -> Exception:
    if _NO_COMPILER in str(error):
        return RuntimeError("torch.compile needs a C++ compiler: install g++, or name another one in CXX")
    return error
