from perfhooks.core.schedule.cycles import Schedule
from perfhooks.core.schedule.drawing import COLUMNS
from perfhooks.core.schedule.phases import Phase, Phases, Planned
from perfhooks.core.schedule.settled import FEWEST_STEPS, LONGEST_WAIT_S, MOST_LOOKED_AT, WhenSettled, is_enough
from perfhooks.core.schedule.unplanned import ON_REQUEST, WHEN_SETTLED, CallableSchedule, FromStartToStop, OnRequest

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
