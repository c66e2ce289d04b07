"""Reading Kineto traces and computing tables from them; imports neither torch nor polars."""

import importlib
from typing import TYPE_CHECKING, Any, Final

from perfhooks.trace.kinds import DEVICE_WORK, Kind, Lane

if TYPE_CHECKING:
    from perfhooks.trace.model import Doubt, Flows, Instants, Samples, Thread, Trace
    from perfhooks.trace.reading.reader import read

__all__ = ["DEVICE_WORK", "Doubt", "Flows", "Instants", "Kind", "Lane", "Samples", "Thread", "Trace", "read"]

_TABLES: Final = (
    *("categories", "checks", "collectives", "copies", "counters", "functions", "gaps", "kernels", "labels"),
    *("memory", "modules", "operators", "stacks", "steps", "synchronisations"),
)


_HOMES: Final = {
    **dict.fromkeys(("Doubt", "Flows", "Instants", "Samples", "Thread", "Trace"), "model"),
    "read": "reading.reader",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use, because a training reads no trace, and reading a trace needs no polars."""
    if name in _TABLES:
        return importlib.import_module(f"{__name__}.tables.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
