"""Which steps of a training are profiled: in cycles, as somebody's callable says, on request, or from start to stop."""

from perfhooks.schedule.cycles import Schedule
from perfhooks.schedule.drawing import COLUMNS
from perfhooks.schedule.phases import Phase, Phases, Planned
from perfhooks.schedule.unplanned import ON_REQUEST, CallableSchedule, FromStartToStop, OnRequest

__all__ = [
    "COLUMNS",
    "ON_REQUEST",
    "CallableSchedule",
    "FromStartToStop",
    "OnRequest",
    "Phase",
    "Phases",
    "Planned",
    "Schedule",
]
