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
    """The planned steps of one window. All three belong to it."""

    first: int
    """First step of the warm-up, or first recorded step without warm-up."""
    active: int
    """First recorded step."""
    last: int


class Phases(Protocol):
    """The interface of a schedule."""

    def phase(self, step: int) -> Phase:
        """Return the phase of a step."""

    def opens(self, step: int) -> bool:
        """Return whether a step is the first of a window. A resumed training may start to record there."""

    def ends(self, step: int) -> bool:
        """Return whether a step is the last of a window."""

    def next_change(self, step: int) -> int | None:
        """Return the next later step whose phase or window may differ; None if there is none."""

    def next_window(self, step: int) -> Planned | None:
        """Return the first window that begins at this step or later; None if there is none or it is unknown."""


def check_step(step: int) -> None:
    """Raise a ScheduleError if the number is negative."""
    if step < 0:
        raise ScheduleError(f"step must be an integer >= 0, got {step!r}")
