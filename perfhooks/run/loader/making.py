from __future__ import annotations

import msgspec


class WorkerCounts(msgspec.Struct, frozen=True):
    """Work of one worker between two times."""

    worker: int
    pid: int
    batches: int
    wall_s: float
    making_s: float
    """Time in s to read, decode and collate batches."""
    processor_s: float
    squares: float
    """Sum of the squared seconds per batch, for their variance."""
    longest_s: float
    waited_s: float
    """Idle time in s of the worker because its prefetch queue was full."""
    handed_over_s: float
    memory_bytes: int | None
    """Memory in bytes that the worker does not share with the training."""
    queued_s: float | None = None
    """Run-queue wait in s while the worker made batches."""
