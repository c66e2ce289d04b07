"""Handlers: each handler writes files from the trace and the facts of a window.

A handler is a frozen dataclass that needs only files, so it can run in another process, or later, on any Kineto trace.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from perfhooks.core import plugins
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


class _Location(NamedTuple):
    module: str
    cls: str
    needs: str | None = ""
    """Recording option that the handler needs; empty if none. None if the handler must be selected."""


_LOCATIONS: Final = {
    "trace": _Location("chrome", "ChromeTrace"),
    "steps": _Location("tables", "StepTable"),
    "labels": _Location("tables", "LabelTable"),
    "operators": _Location("tables", "OperatorTable"),
    "kernels": _Location("tables", "KernelTable"),
    "categories": _Location("tables", "CategoryTable"),
    "collectives": _Location("collectives", "CollectiveTable"),
    "stacks": _Location("stacks", "Stacks", "with_stack"),
    "flame": _Location("flame", "Flame", "with_stack"),
    "functions": _Location("tables", "FunctionTable", "with_stack"),
    "modules": _Location("tables", "Modules", "with_stack"),
    "memory": _Location("tables", "Memory", "profile_memory"),
    "workers": _Location("workers", "Workers"),
    "tensorboard": _Location("tensorboard", "TensorBoard", None),
    "page": _Location("page", "PageData"),
}


class _Names(Mapping[str, "Callable[..., Handler]"]):
    """Imports handler classes on first use. All imports take 15 ms, and the training process needs none."""

    def __getitem__(self, name: str) -> Callable[..., Handler]:
        location = _LOCATIONS[name]
        cls: Callable[..., Handler] = getattr(importlib.import_module(f"{__name__}.{location.module}"), location.cls)
        return cls

    def __iter__(self) -> Iterator[str]:
        return iter(_LOCATIONS)

    def __len__(self) -> int:
        return len(_LOCATIONS)


NAMES: Final = _Names()

_ELSEWHERE: Final = {"tensorboard": "folder"}
"""Option of each handler that selects a target outside of the window's folder."""


def by_default(recorded: Mapping[str, Any]) -> list[str]:
    return [
        name
        for name, location in _LOCATIONS.items()
        if location.needs == "" or (location.needs and recorded.get(location.needs))
    ]


def recipe(config: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping from which `build` creates the same handler."""
    return {"type": config} if isinstance(config, str) and config in _LOCATIONS else spec(build(config))


def __getattr__(name: str) -> Any:
    for location in _LOCATIONS.values():
        if location.cls == name:
            return getattr(importlib.import_module(f"{__name__}.{location.module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def build(config: str | Mapping[str, Any]) -> Handler:
    """Create a handler from its name, or from a mapping of its type and options.

    For example ``"stacks"``, ``{"type": "operators", "row_limit": 50}``, or ``"package.module:Class"``. Raises
    OptionError if the handler or an option does not exist.
    """
    options = {"type": config} if isinstance(config, str) else dict(config)
    kind = options.pop("type", None)
    if not isinstance(kind, str):
        raise OptionError(f"a handler given as a mapping needs a type, one of {', '.join(NAMES)}; got {config!r}")
    make = NAMES.get(kind) or _load_entry_point(kind) or _import_class(kind)
    try:
        handler = make(**options)
    except TypeError as error:
        raise OptionError(f"handler {kind!r} does not take these options: {options!r} ({error})") from error
    if not isinstance(handler, Handler):
        raise OptionError(f"handler {kind!r} has no method artifacts(capture, trace)")
    return handler


def spec(handler: Handler) -> dict[str, Any]:
    """Return a mapping for `build`. Raise OptionError if the handler is no dataclass, or cannot be imported."""
    cls = type(handler)
    if not dataclasses.is_dataclass(handler) or "<" in cls.__qualname__ or cls.__module__ == "__main__":
        raise OptionError(
            f"handler {cls.__qualname__} must be a dataclass in a module that can be imported, because it runs in "
            "another process; a plain callable, which gets the torch profiler, can be defined anywhere"
        )
    kind = next((name for name, handler_cls in NAMES.items() if handler_cls is cls), None) or _entry_point_name(cls)
    fields = [field for field in dataclasses.fields(handler) if field.init]
    return {"type": kind} | {field.name: getattr(handler, field.name) for field in fields}


def rebuild(recipe: Mapping[str, Any], permit: Permit) -> Handler:
    """Create a handler from the stored facts of a window. Raise OptionError if the handler needs the user's permission.

    Files are not trusted. A file may name handlers of perfhooks that write into the window's own folder, and handlers
    of installed packages. Other handlers need the permission of the user.
    """
    kind = recipe.get("type")
    if not isinstance(kind, str) or not (_is_harmless(kind, recipe) or _is_permitted(kind, recipe, permit)):
        raise OptionError(
            f"handler {kind!r} does not run, because only a file of the run requests it. If you trust it, run "
            f"`perfhooks report --handler {kind}`"
        )
    return build(recipe)


def _is_harmless(kind: str, recipe: Mapping[str, Any]) -> bool:
    if kind in NAMES:
        return recipe.get(_ELSEWHERE.get(kind, "")) is None
    return ":" not in kind and _load_entry_point(kind) is not None


def _is_permitted(kind: str, recipe: Mapping[str, Any], permit: Permit) -> bool:
    # compare as JSON, because JSON stores a tuple as a list
    plain = msgspec.to_builtins(dict(recipe))
    return kind in permit.kinds or any(plain == msgspec.to_builtins(dict(allowed)) for allowed in permit.handlers)


def _load_entry_point(name: str) -> Callable[..., Handler] | None:
    point = next((point for point in plugins.entry_points(plugins.HANDLERS) if point.name == name), None)
    factory: Callable[..., Handler] | None = None if point is None else plugins.load(point)
    return factory


def _entry_point_name(cls: type) -> str:
    path = f"{cls.__module__}:{cls.__qualname__}"
    return next((point.name for point in plugins.entry_points(plugins.HANDLERS) if point.value == path), path)


def _import_class(path: str) -> Callable[..., Handler]:
    module, colon, name = path.partition(":")
    if not colon:
        close = difflib.get_close_matches(path, NAMES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise OptionError(f"no handler is called {path!r}; known: {', '.join(NAMES)}, or 'module:Class'{hint}")
    try:
        factory: Callable[..., Handler] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"handler {path!r} cannot be imported ({error})") from error
    if not callable(factory):
        raise OptionError(f"handler {path!r} is not a class")
    return factory
