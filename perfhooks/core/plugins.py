"""Handlers and rules that the entry points of installed packages name."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core.errors import OptionError
from perfhooks.core.guard import cause_of

if TYPE_CHECKING:
    from collections.abc import Iterator

HANDLERS: Final = "perfhooks.handlers"
RULES: Final = "perfhooks.rules"


def entry_points(group: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Return the entry points of a group.

    `importlib.metadata.entry_points` is slower: it parses the entry points of all groups.
    """
    packages = importlib.metadata.distributions()
    names = [package.name for package in packages if group in (package.read_text("entry_points.txt") or "")]
    # the first package of a name on the path hides the others
    visible = map(importlib.metadata.distribution, dict.fromkeys(names))
    return tuple(point for package in visible for point in package.entry_points if point.group == group)


def load(point: importlib.metadata.EntryPoint) -> Any:
    """Return the handler or rule. Raise OptionError if the object cannot be imported or called."""
    kind = point.group.rpartition(".")[2].removesuffix("s")
    try:
        plugin = point.load()
    except (Exception, SystemExit) as error:
        raise OptionError(f"{kind} {point.name!r} cannot be imported: {cause_of(error)}") from error
    if not callable(plugin):
        raise OptionError(f"{kind} {point.name!r} is no function or class: {point.value}")
    return plugin


def problems() -> Iterator[tuple[str, str]]:
    """Load all plugins. Yield the name of each handler and rule, and its problem (empty if it can be loaded)."""
    for group in (HANDLERS, RULES):
        for point in entry_points(group):
            try:
                load(point)
                yield point.name, ""
            except OptionError as error:
                yield point.name, str(error)
