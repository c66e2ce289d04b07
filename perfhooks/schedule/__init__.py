"""Which steps of a training are profiled: pure arithmetic, the same answers as ``torch.profiler.schedule`` and more."""

from perfhooks.schedule.cycles import (
    COLUMNS,
    DRAWN_IN_FULL,
    ON_REQUEST,
    CallableSchedule,
    FromStartToStop,
    OnRequest,
    Phase,
    Phases,
    Planned,
    Schedule,
)

__all__ = [
    "COLUMNS",
    "DRAWN_IN_FULL",
    "ON_REQUEST",
    "CallableSchedule",
    "FromStartToStop",
    "OnRequest",
    "Phase",
    "Phases",
    "Planned",
    "Schedule",
]
