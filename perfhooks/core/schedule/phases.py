"""What a recorder does during a step, and what a profiler asks of whatever says so."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from perfhooks.core.errors import ScheduleError


class Phase(Enum):
    """What the recorder does during a step."""

    WAIT = "wait"
    WARMUP = "warm-up"
    ACTIVE = "active"


class Planned(NamedTuple):
    """The steps of one window, as planned; all three belong to it."""

    first: int
    """The first step of its warm-up, or the first active step when there is no warm-up."""
    active: int
    """The first recorded step."""
    last: int
    """The last recorded step."""


class Phases(Protocol):
    """What a profiler asks of a schedule, be it arithmetic or somebody's callable."""

    def phase(self, step: int) -> Phase:
        """What the recorder does during ``step``."""

    def opens(self, step: int) -> bool:
        """Whether ``step`` is the first of a window: where a resumed training may start to record."""

    def ends(self, step: int) -> bool:
        """Whether ``step`` is the last of a window."""

    def next_change(self, step: int) -> int | None:
        """The next step after ``step`` that may be treated differently; None if none will."""

    def next_window(self, step: int) -> Planned | None:
        """The first window that begins at ``step`` or later; None if there is none, or none is known."""


def check_step(step: int) -> None:
    """Refuse a step that cannot be.

    Raises:
        ScheduleError: It is negative.
    """
    if step < 0:
        raise ScheduleError(f"step must be an integer >= 0, got {step!r}")
