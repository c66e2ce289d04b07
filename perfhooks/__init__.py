"""Profiling hooks for PyTorch training that people leave switched on."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from perfhooks.version import __version__ as __version__

if TYPE_CHECKING:
    from perfhooks import trace
    from perfhooks.errors import NothingRecordedError, OptionError, PerfhooksError, ScheduleError, TraceError
    from perfhooks.finishing.share import share
    from perfhooks.handlers import (
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
    from perfhooks.options import Options
    from perfhooks.recording.profiler import Profiler
    from perfhooks.recording.trace_handler import on_trace_ready
    from perfhooks.run.capture import Capture
    from perfhooks.schedule import Phase, Schedule
    from perfhooks.trying.loader_results import LoaderTrial
    from perfhooks.trying.loader_trial import try_loader
    from perfhooks.trying.own_calls import CallComparison, compare_calls


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

_HOMES = {  # of all that are no handlers
    "run.capture": ("Capture",),
    "errors": ("NothingRecordedError", "OptionError", "PerfhooksError", "ScheduleError", "TraceError"),
    "finishing.share": ("share",),
    "options": ("Options",),
    "schedule": ("Phase", "Schedule"),
    "recording.profiler": ("Profiler",),
    "recording.trace_handler": ("on_trace_ready",),
    "trace": ("trace",),
    "trying.loader_results": ("LoaderTrial",),
    "trying.loader_trial": ("try_loader",),
    "trying.own_calls": ("CallComparison", "compare_calls"),
}
_HOME = dict.fromkeys(__all__, "handlers") | {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: reading a trace needs no torch, a schedule nothing at all."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOME[name]}")
    return module if name == _HOME[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
