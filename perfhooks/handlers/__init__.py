"""What one finished window becomes: each handler turns a capture and its trace into files.

A handler is a small frozen dataclass that needs only files, so it can run in another process, or later, on any Kineto
trace. Importing this package, or making a handler, imports nothing heavy.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from typing import TYPE_CHECKING, Any, Final

from perfhooks.errors import OptionError
from perfhooks.handlers.artifact import Artifact, Handler
from perfhooks.handlers.chrome import ChromeTrace
from perfhooks.handlers.collectives import CollectiveTable
from perfhooks.handlers.flame import Flame
from perfhooks.handlers.kernels import KernelTable
from perfhooks.handlers.memory import Memory
from perfhooks.handlers.modules import Modules
from perfhooks.handlers.page import PageData
from perfhooks.handlers.stacks import Stacks
from perfhooks.handlers.tables import OperatorTable, StepTable
from perfhooks.handlers.tensorboard import TensorBoard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "NAMES",
    "Artifact",
    "ChromeTrace",
    "CollectiveTable",
    "Flame",
    "Handler",
    "KernelTable",
    "Memory",
    "Modules",
    "OperatorTable",
    "PageData",
    "Stacks",
    "StepTable",
    "TensorBoard",
    "build",
    "spec",
]


NAMES: Final[dict[str, Callable[..., Handler]]] = {
    "trace": ChromeTrace,
    "steps": StepTable,
    "operators": OperatorTable,
    "kernels": KernelTable,
    "collectives": CollectiveTable,
    "stacks": Stacks,
    "flame": Flame,
    "modules": Modules,
    "memory": Memory,
    "tensorboard": TensorBoard,
    "page": PageData,
}
"""What config files and the command line call the handlers."""


def build(wanted: str | Mapping[str, Any]) -> Handler:
    """Make a handler from its name, or from a mapping of its type and its options.

    Args:
        wanted: ``"stacks"``, ``{"type": "operators", "row_limit": 50}``, or ``"package.module:Class"`` for one's own.

    Raises:
        OptionError: No such handler, or it does not take these options.
    """
    options = {"type": wanted} if isinstance(wanted, str) else dict(wanted)
    kind = options.pop("type", None)
    if not isinstance(kind, str):
        raise OptionError(f"a handler given as a mapping needs a type, one of {', '.join(NAMES)}; got {wanted!r}")
    make = NAMES.get(kind) or _imported(kind)
    try:
        handler = make(**options)
    except TypeError as error:
        raise OptionError(f"handler {kind!r} does not take these options: {options!r} ({error})") from error
    if not isinstance(handler, Handler):
        raise OptionError(f"handler {kind!r} has no method artifacts(capture, trace)")
    return handler


def spec(handler: Handler) -> dict[str, Any]:
    """The mapping that :func:`build` makes an equal handler from.

    Raises:
        OptionError: The handler cannot be made again elsewhere: it is no dataclass, or its class cannot be imported.
    """
    cls = type(handler)
    if not dataclasses.is_dataclass(handler) or "<" in cls.__qualname__ or cls.__module__ == "__main__":
        raise OptionError(
            f"handler {cls.__qualname__} must be a dataclass in a module that can be imported, because it runs in "
            "another process; a plain callable, which gets the torch profiler, can be defined anywhere"
        )
    known = next((name for name, ours in NAMES.items() if ours is cls), f"{cls.__module__}:{cls.__qualname__}")
    fields = [field for field in dataclasses.fields(handler) if field.init]
    return {"type": known} | {field.name: getattr(handler, field.name) for field in fields}


def _imported(path: str) -> Callable[..., Handler]:
    module, colon, name = path.partition(":")
    if not colon:
        close = difflib.get_close_matches(path, NAMES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise OptionError(f"no handler is called {path!r}; known: {', '.join(NAMES)}, or 'module:Class'{hint}")
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"handler {path!r} cannot be imported ({error})") from error
    if not callable(made):
        raise OptionError(f"handler {path!r} is not a class")
    return made  # type: ignore[no-any-return]  # what it makes is checked by the caller
