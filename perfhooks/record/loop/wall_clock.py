"""Whether the clock of the system was set while a window recorded: Kineto goes by it, and all times are wrong then."""

from __future__ import annotations

import time
from typing import Final

_TRIES: Final = 5
"""Another program may run between two readings; not each time."""
_SHARE: Final = 0.01
"""Of the time recorded: clocks that are merely slow or fast, as all are that are being set right bit by bit."""
_LEAST_S: Final = 1e-3
"""What is within the error of the readings."""


def ahead_s() -> float:
    """How far the clock that may be set is ahead of the one that may not, in seconds."""
    return min(_read() for _ in range(_TRIES))[1]


def _read() -> tuple[float, float]:
    """How long it took to read both, and their difference."""
    before, now, after = time.perf_counter(), time.time(), time.perf_counter()
    return after - before, now - (before + after) / 2


def was_set(ahead_at_start_s: float, recorded_s: float) -> str:
    """What to note of a window; empty where its times are right.

    Args:
        ahead_at_start_s: What `ahead_s` said when it began.
        recorded_s: How long it recorded.
    """
    moved_s = ahead_s() - ahead_at_start_s
    if abs(moved_s) <= _LEAST_S + _SHARE * recorded_s:
        return ""
    return (
        f"the clock of this machine was set by {moved_s:+.3f} s while it recorded (or the machine slept); "
        "the recorder goes by that clock, so its times are wrong"
    )
