"""Work of the workers of a loader."""

from __future__ import annotations

import msgspec


class WorkerCounts(msgspec.Struct, frozen=True):
    """Work of one worker between two times."""

    worker: int
    """Its number, from 0 on."""
    pid: int
    batches: int
    """Finished batches."""
    wall_s: float
    """Between the two moments."""
    making_s: float
    """Spent on making batches: reading, decoding, collating."""
    processor_s: float
    """CPU time, in seconds."""
    squares: float
    """The sum of the squares of the seconds that each batch took."""
    longest_s: float
    """The batch that took longest."""
    waited_s: float
    """Idle time in seconds, with a full prefetch queue."""
    handed_over_s: float
    """Spent on handing batches over to the training."""
    memory_bytes: int | None
    """Its own, not shared with the training; None where the system does not tell."""
    queued_s: float | None = None
    """Run-queue wait in seconds, within the work; None if unknown."""
