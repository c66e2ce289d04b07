"""What an integration of a framework needs beside `perfhooks.Profiler`; integrations/README.md walks through it.

A *stage* is a loop of the framework's (train, validate, test, predict) that is profiled on a schedule of its own.
"""

from perfhooks import labels
from perfhooks.adapting.callers import caller
from perfhooks.adapting.checks import check, read_counts
from perfhooks.adapting.face import Face
from perfhooks.adapting.module_names import ModuleNames
from perfhooks.adapting.open_labels import OpenLabels
from perfhooks.adapting.parts import Parts
from perfhooks.adapting.places import folder_in, new_run_name
from perfhooks.adapting.results import last_step, markdown, scalars, step_rows
from perfhooks.adapting.stages import SCHEDULE, Labels, Stage, Stages, schedules
from perfhooks.adapting.wrapped_methods import WrappedMethods
from perfhooks.errors import OnError
from perfhooks.guard import cause_of, guard, hide_frames, logger
from perfhooks.options import with_options
from perfhooks.recording.handover import HandlerLike
from perfhooks.recording.profiler import ScheduleLike
from perfhooks.run.capture import Place

__all__ = [
    "SCHEDULE",
    "Face",
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
