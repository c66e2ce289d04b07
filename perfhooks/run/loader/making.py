"""What the workers of a loader did, as they tell it themselves."""

from __future__ import annotations

import msgspec


class WorkerCounts(msgspec.Struct, frozen=True):
    """What one worker did between two moments."""

    worker: int
    """Its number, from 0 on."""
    pid: int
    batches: int
    """That it made."""
    wall_s: float
    """Between the two moments."""
    making_s: float
    """Spent on making batches: reading, decoding, collating."""
    processor_s: float
    """What its processors computed meanwhile."""
    squares: float
    """The sum of the squares of the seconds that each batch took."""
    longest_s: float
    """The batch that took longest."""
    waited_s: float
    """In which nothing was asked of it: it had made all that may be made ahead."""
    handed_over_s: float
    """Spent on handing batches over to the training."""
    memory_bytes: int | None
    """Its own, not shared with the training; None where the system does not tell."""
    queued_s: float | None = None
    """Of the making, in which it could have run and waited for a processor; None where the system does not tell."""
