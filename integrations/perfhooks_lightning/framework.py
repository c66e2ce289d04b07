"""Which Lightning there is: ``lightning``, ``pytorch_lightning`` or both; each has base classes of its own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any, Final

PACKAGES: Final = {"lightning.pytorch": "lightning", "pytorch_lightning": "pytorch_lightning"}
"""The modules with the base classes, and the package that each is part of."""


def is_a(thing: object, name: str) -> bool:
    """Whether something is of a class of this name, in whichever Lightning."""
    return any(kind.__name__ == name for kind in type(thing).__mro__)


def modules() -> list[Any]:
    """The Lightnings of this program: those it has imported, else the first one that is installed.

    Raises:
        ModuleNotFoundError: There is none.
    """
    names = [name for name in PACKAGES if sys.modules.get(name) is not None]
    names = names or [name for name, package in PACKAGES.items() if importlib.util.find_spec(package)][:1]
    if not names:
        raise ModuleNotFoundError("perfhooks_lightning needs Lightning: pip install 'perfhooks[lightning]'")
    return [importlib.import_module(name) for name in names]
