"""Profiling hooks that users of PyTorch leave switched on."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from perfhooks.core.version import __version__ as __version__

if TYPE_CHECKING:
    from perfhooks import trace
    from perfhooks.core.errors import NothingRecordedError, OptionError, PerfhooksError, ScheduleError, TraceError
    from perfhooks.core.options import Options
    from perfhooks.core.schedule import Phase, Schedule
    from perfhooks.record.loop.profiler import Profiler
    from perfhooks.record.loop.trace_handler import on_trace_ready
    from perfhooks.report.finishing.share import share
    from perfhooks.report.handlers import (
        Artifact,
        CategoryTable,
        ChromeTrace,
        CollectiveTable,
        Flame,
        FunctionTable,
        KernelTable,
        LabelTable,
        Memory,
        Modules,
        OperatorTable,
        PageData,
        Stacks,
        StepTable,
        TensorBoard,
        Workers,
    )
    from perfhooks.run.capture import Capture
    from perfhooks.trials.loader_results import LoaderTrial
    from perfhooks.trials.loader_trial import try_loader
    from perfhooks.trials.own_calls import CallComparison, compare_calls


__all__ = [
    "Artifact",
    "CallComparison",
    "Capture",
    "CategoryTable",
    "ChromeTrace",
    "CollectiveTable",
    "Flame",
    "FunctionTable",
    "KernelTable",
    "LabelTable",
    "LoaderTrial",
    "Memory",
    "Modules",
    "NothingRecordedError",
    "OperatorTable",
    "OptionError",
    "Options",
    "PageData",
    "PerfhooksError",
    "Phase",
    "Profiler",
    "Schedule",
    "ScheduleError",
    "Stacks",
    "StepTable",
    "TensorBoard",
    "TraceError",
    "Workers",
    "compare_calls",
    "on_trace_ready",
    "share",
    "trace",
    "try_loader",
]

_HOMES = {
    "run.capture": ("Capture",),
    "core.errors": ("NothingRecordedError", "OptionError", "PerfhooksError", "ScheduleError", "TraceError"),
    "report.finishing.share": ("share",),
    "core.options": ("Options",),
    "notebook": ("load_ipython_extension",),
    "core.schedule": ("Phase", "Schedule"),
    "record.loop.profiler": ("Profiler",),
    "record.loop.trace_handler": ("on_trace_ready",),
    "trace": ("trace",),
    "trials.loader_results": ("LoaderTrial",),
    "trials.loader_trial": ("try_loader",),
    "trials.own_calls": ("CallComparison", "compare_calls"),
}
_HOME = dict.fromkeys(__all__, "report.handlers") | {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: reading a trace needs no torch, and a schedule needs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOME[name]}")
    return module if name == _HOME[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
