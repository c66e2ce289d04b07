"""Which steps of a training are profiled: in cycles, as somebody's callable says, on request, or from start to stop."""

from perfhooks.schedule.cycles import Schedule
from perfhooks.schedule.drawing import COLUMNS
from perfhooks.schedule.phases import Phase, Phases, Planned
from perfhooks.schedule.settled import FEWEST_STEPS, LONGEST_WAIT_S, MOST_LOOKED_AT, WhenSettled, is_enough
from perfhooks.schedule.unplanned import ON_REQUEST, WHEN_SETTLED, CallableSchedule, FromStartToStop, OnRequest

__all__ = [
    "COLUMNS",
    "FEWEST_STEPS",
    "LONGEST_WAIT_S",
    "MOST_LOOKED_AT",
    "ON_REQUEST",
    "WHEN_SETTLED",
    "CallableSchedule",
    "FromStartToStop",
    "OnRequest",
    "Phase",
    "Phases",
    "Planned",
    "Schedule",
    "WhenSettled",
    "is_enough",
]
