"""Detection of changes of the system clock.

Kineto uses the system clock, so a change makes all times of a window wrong.
"""

from __future__ import annotations

from perfhooks.core.clocks import system_ahead_s


def describe_change(ahead_at_start_s: float, recorded_s: float) -> str:
    """Return a note; empty if the clock was not changed."""
    moved_s = system_ahead_s() - ahead_at_start_s
    if abs(moved_s) <= 1e-3 + 0.01 * recorded_s:
        return ""
    return (
        f"the clock of this machine was changed by {moved_s:+.3f} s during the recording (or the machine slept); "
        "the recorder uses that clock, so its times are wrong"
    )
