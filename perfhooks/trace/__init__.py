"""Reading Kineto traces and computing tables from them; imports neither torch nor polars."""

import importlib
from typing import Any, Final

from perfhooks.trace.kinds import DEVICE_WORK, Kind, Lane
from perfhooks.trace.model import Doubt, Flows, Instants, Samples, Thread, Trace
from perfhooks.trace.reading.reader import read

__all__ = ["DEVICE_WORK", "Doubt", "Flows", "Instants", "Kind", "Lane", "Samples", "Thread", "Trace", "read"]

_TABLES: Final = (
    *("categories", "checks", "collectives", "copies", "counters", "functions", "gaps", "kernels", "labels"),
    *("memory", "modules", "operators", "stacks", "steps", "synchronisations"),
)


def __getattr__(name: str) -> Any:
    """Import a table when it is first asked for: tables need polars, which reading does not."""
    if name not in _TABLES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.tables.{name}")
