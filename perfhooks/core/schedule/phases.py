from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from perfhooks.core.errors import ScheduleError


class Phase(Enum):
    """State of the recorder during a step."""

    WAIT = "wait"
    WARMUP = "warm-up"
    ACTIVE = "active"


class Planned(NamedTuple):
    first: int
    """First step of the window, including its warm-up."""
    active: int
    last: int


class Phases(Protocol):
    def phase(self, step: int) -> Phase: ...

    def opens(self, step: int) -> bool: ...

    def ends(self, step: int) -> bool: ...

    def next_change(self, step: int) -> int | None: ...

    def next_window(self, step: int) -> Planned | None: ...


def check_step(step: int) -> None:
    """Raise a ScheduleError if the number is negative."""
    if step < 0:
        raise ScheduleError(f"step must be an integer >= 0, got {step!r}")
