"""Base classes and functions for integrations; integrations/README.md is a guide.

A *stage* is a loop of the framework (train, validate, test, predict) with its own schedule.
"""

from perfhooks.adapters.adapter import Adapter
from perfhooks.adapters.callers import caller
from perfhooks.adapters.checks import check, read_counts
from perfhooks.adapters.module_names import ModuleNames
from perfhooks.adapters.open_labels import OpenLabels
from perfhooks.adapters.parts import Parts
from perfhooks.adapters.places import folder_in, new_run_name
from perfhooks.adapters.results import last_step, markdown, scalars, step_rows
from perfhooks.adapters.stages import SCHEDULE, Labels, Stage, Stages, schedules
from perfhooks.adapters.wrapped_methods import WrappedMethods
from perfhooks.core import labels
from perfhooks.core.errors import OnError
from perfhooks.core.frames import hide_from_warnings
from perfhooks.core.guard import cause_of, guard, hide_frames, logger
from perfhooks.core.options import with_options
from perfhooks.record.loop.handover import HandlerLike
from perfhooks.record.loop.profiler import ScheduleLike
from perfhooks.run.capture import Place

__all__ = [
    "SCHEDULE",
    "Adapter",
    "HandlerLike",
    "Labels",
    "ModuleNames",
    "OnError",
    "OpenLabels",
    "Parts",
    "Place",
    "ScheduleLike",
    "Stage",
    "Stages",
    "WrappedMethods",
    "caller",
    "cause_of",
    "check",
    "folder_in",
    "guard",
    "hide_frames",
    "hide_from_warnings",
    "labels",
    "last_step",
    "logger",
    "markdown",
    "new_run_name",
    "read_counts",
    "scalars",
    "schedules",
    "step_rows",
    "with_options",
]
