"""Support for ``lightning`` and ``pytorch_lightning``, which have different base classes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any, Final

PACKAGES: Final = {"lightning.pytorch": "lightning", "pytorch_lightning": "pytorch_lightning"}


def is_a(thing: object, name: str) -> bool:
    """Return whether an object has a class of this name, in ``lightning`` or ``pytorch_lightning``."""
    return any(kind.__name__ == name for kind in type(thing).__mro__)


def modules() -> list[Any]:
    """Return the imported Lightning packages, or the first installed one if none is imported."""
    names = [name for name in PACKAGES if sys.modules.get(name) is not None]
    names = names or [name for name, package in PACKAGES.items() if importlib.util.find_spec(package)][:1]
    if not names:
        raise ModuleNotFoundError("perfhooks_lightning needs Lightning: pip install 'perfhooks[lightning]'")
    return [importlib.import_module(name) for name in names]
