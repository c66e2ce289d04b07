from __future__ import annotations

import msgspec


class WorkerCounts(msgspec.Struct, frozen=True):
    """Work of one worker between two times."""

    worker: int
    pid: int
    batches: int
    wall_s: float
    making_s: float
    """Time to read, decode and collate batches."""
    processor_s: float
    squares: float
    """Sum of squared seconds per batch."""
    longest_s: float
    waited_s: float
    """Idle time with a full prefetch queue."""
    handed_over_s: float
    memory_bytes: int | None
    """Memory that the worker does not share with the training."""
    queued_s: float | None = None
    """Run-queue wait within the work."""
