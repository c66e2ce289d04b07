"""What one finished window becomes: each handler turns a capture and its trace into files.

A handler is a small frozen dataclass that needs only files, so it can run in another process, or later, on any Kineto
trace. Importing this package imports no handler.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.metadata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from perfhooks.core.errors import OptionError
from perfhooks.report.handlers.artifact import Artifact, Handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perfhooks.report.handlers.chrome import ChromeTrace
    from perfhooks.report.handlers.collectives import CollectiveTable
    from perfhooks.report.handlers.flame import Flame
    from perfhooks.report.handlers.page import PageData
    from perfhooks.report.handlers.permit import Permit
    from perfhooks.report.handlers.stacks import Stacks
    from perfhooks.report.handlers.tables import (
        CategoryTable,
        FunctionTable,
        KernelTable,
        LabelTable,
        Memory,
        Modules,
        OperatorTable,
        StepTable,
    )
    from perfhooks.report.handlers.tensorboard import TensorBoard
    from perfhooks.report.handlers.workers import Workers

__all__ = [
    "ENTRY_POINTS",
    "NAMES",
    "Artifact",
    "CategoryTable",
    "ChromeTrace",
    "CollectiveTable",
    "Flame",
    "FunctionTable",
    "Handler",
    "KernelTable",
    "LabelTable",
    "Memory",
    "Modules",
    "OperatorTable",
    "PageData",
    "Stacks",
    "StepTable",
    "TensorBoard",
    "Workers",
    "build",
    "by_default",
    "rebuild",
    "spec",
]


class _Home(NamedTuple):
    """Where a handler of ours is."""

    module: str
    cls: str
    needs: str | None = ""
    """The recording option without which there is nothing to make; empty if it needs none, None if it runs only where
    it is asked for."""


_HOMES: Final = {
    "trace": _Home("chrome", "ChromeTrace"),
    "steps": _Home("tables", "StepTable"),
    "labels": _Home("tables", "LabelTable"),
    "operators": _Home("tables", "OperatorTable"),
    "kernels": _Home("tables", "KernelTable"),
    "categories": _Home("tables", "CategoryTable"),
    "collectives": _Home("collectives", "CollectiveTable"),
    "stacks": _Home("stacks", "Stacks", "with_stack"),
    "flame": _Home("flame", "Flame", "with_stack"),
    "functions": _Home("tables", "FunctionTable", "with_stack"),
    "modules": _Home("tables", "Modules", "with_stack"),
    "memory": _Home("tables", "Memory", "profile_memory"),
    "workers": _Home("workers", "Workers"),
    "tensorboard": _Home("tensorboard", "TensorBoard", None),
    "page": _Home("page", "PageData"),
}


class _Names(Mapping[str, "Callable[..., Handler]"]):
    """Classes by name. Each is imported when it is first used: a training uses none, and they take 15 ms."""

    def __getitem__(self, name: str) -> Callable[..., Handler]:
        home = _HOMES[name]
        made: Callable[..., Handler] = getattr(importlib.import_module(f"{__name__}.{home.module}"), home.cls)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)


NAMES: Final = _Names()
"""What config files and the command line call the handlers."""

ENTRY_POINTS: Final = "perfhooks.report.handlers"
"""The group in which an installed package announces handlers of its own, by names that files may use."""

_ELSEWHERE: Final = {"tensorboard": "folder"}
"""Options with which a handler of ours writes outside of the window's folder."""


def by_default(recorded: Mapping[str, Any]) -> list[str]:
    """The names of the handlers that make everything that was recorded for.

    Args:
        recorded: The recording options.
    """
    return [name for name, home in _HOMES.items() if home.needs == "" or (home.needs and recorded.get(home.needs))]


def recipe(wanted: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping that `build` makes the same handler from, in another process.

    Raises:
        OptionError: No such handler, or it does not take these options.
    """
    return {"type": wanted} if isinstance(wanted, str) and wanted in _HOMES else spec(build(wanted))


def __getattr__(name: str) -> Any:
    """Import the class of a handler when it is first used."""
    for home in _HOMES.values():
        if home.cls == name:
            return getattr(importlib.import_module(f"{__name__}.{home.module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    make = NAMES.get(kind) or _announced(kind) or _imported(kind)
    try:
        handler = make(**options)
    except TypeError as error:
        raise OptionError(f"handler {kind!r} does not take these options: {options!r} ({error})") from error
    if not isinstance(handler, Handler):
        raise OptionError(f"handler {kind!r} has no method artifacts(capture, trace)")
    return handler


def spec(handler: Handler) -> dict[str, Any]:
    """The mapping that `build` makes an equal handler from.

    Raises:
        OptionError: The handler cannot be made again elsewhere: it is no dataclass, or its class cannot be imported.
    """
    cls = type(handler)
    if not dataclasses.is_dataclass(handler) or "<" in cls.__qualname__ or cls.__module__ == "__main__":
        raise OptionError(
            f"handler {cls.__qualname__} must be a dataclass in a module that can be imported, because it runs in "
            "another process; a plain callable, which gets the torch profiler, can be defined anywhere"
        )
    known = next((name for name, ours in NAMES.items() if ours is cls), None) or _announcement(cls)
    fields = [field for field in dataclasses.fields(handler) if field.init]
    return {"type": known} | {field.name: getattr(handler, field.name) for field in fields}


def rebuild(recipe: Mapping[str, Any], permit: Permit) -> Handler:
    """Make a handler that the facts of a window name, if they may name it.

    A file may come from anybody. It may therefore name only handlers of perfhooks, which write into the window's own
    folder, and handlers that an installed package announces; everything else runs only if the user said so elsewhere.

    Args:
        recipe: What `spec` gave, before it went through a file.
        permit: What the user said.

    Raises:
        OptionError: It may not be named by a file, there is no such handler, or it does not take these options.
    """
    kind = recipe.get("type")
    if not isinstance(kind, str) or not (_is_harmless(kind, recipe) or _is_permitted(kind, recipe, permit)):
        raise OptionError(
            f"handler {kind!r} is named by a file only; if you trust it, `perfhooks report --handler {kind}` runs it"
        )
    return build(recipe)


def _is_harmless(kind: str, recipe: Mapping[str, Any]) -> bool:
    if kind in NAMES:
        return recipe.get(_ELSEWHERE.get(kind, "")) is None
    return ":" not in kind and _announced(kind) is not None


def _is_permitted(kind: str, recipe: Mapping[str, Any], permit: Permit) -> bool:
    # as JSON, because a tuple of options comes back from a file as a list
    told = msgspec.to_builtins(dict(recipe))
    return kind in permit.kinds or any(told == msgspec.to_builtins(dict(each)) for each in permit.handlers)


def _announced(name: str) -> Callable[..., Handler] | None:
    """The handler that an installed package announces by this name."""
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS, name=name):
        try:
            announced: Callable[..., Handler] = point.load()  # what it makes is checked by the caller
        except (ImportError, AttributeError) as error:
            raise OptionError(f"handler {name!r} cannot be imported ({error})") from error
        return announced
    return None


def _announcement(cls: type) -> str:
    """What a class is called by the package that announces it, else where it is."""
    path = f"{cls.__module__}:{cls.__qualname__}"
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return next((point.name for point in points if point.value == path), path)


def _imported(path: str) -> Callable[..., Handler]:
    module, colon, name = path.partition(":")
    if not colon:
        close = difflib.get_close_matches(path, NAMES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise OptionError(f"no handler is called {path!r}; known: {', '.join(NAMES)}, or 'module:Class'{hint}")
    try:
        made: Callable[..., Handler] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"handler {path!r} cannot be imported ({error})") from error
    if not callable(made):
        raise OptionError(f"handler {path!r} is not a class")
    return made  # what it makes is checked by the caller
