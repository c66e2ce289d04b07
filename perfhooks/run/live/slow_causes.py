from __future__ import annotations

from typing import Final

GARBAGE: Final = "garbage collection"
COMPILATION: Final = "compilation"
CHECKPOINT: Final = "checkpoint"
EVALUATION: Final = "evaluation"
DATA: Final = "data"
RANKS: Final = "other ranks"
DISK: Final = "disk"
LOCK: Final = "lock"
MEMORY: Final = "memory"
DEVICE: Final = "device"
OWN: Final = "own code"
CONTENTION: Final = "CPU contention"
ALLOCATOR: Final = "allocator"
CLOCK: Final = "throttled clock"
UNKNOWN: Final = "unknown"

SEEN_BY: Final = {
    GARBAGE: "callbacks of Python's garbage collector",
    COMPILATION: "stack samples inside torch.compile or Triton",
    CHECKPOINT: "stack samples inside torch.save or similar, or inside a function named save, checkpoint, ...",
    EVALUATION: (
        "a pass over a loader without an update; a report of the framework; or stack samples inside a function or loop "
        "with modules in evaluation mode or without gradients. Rollouts and generation count too"
    ),
    DATA: "the measured wait for data; stack samples inside a DataLoader",
    RANKS: "stack samples inside torch.distributed; a backward pass that does not compute, in a job with ranks",
    DISK: "the thread waits in a system call that reads, writes or flushes a file (Linux only)",
    LOCK: "the thread waits for another thread, at a line that enters, acquires or waits for a lock (Linux only)",
    MEMORY: "the thread waits for swapped-out pages, or spends more kernel time than usual on new pages (Linux only)",
    DEVICE: "stack samples at a line that waits for the device, for example .item()",
    OWN: (
        "the thread computes at a line or in a function that usual steps do not run, or code outside torch holds the "
        "GIL longer than in usual steps"
    ),
    CONTENTION: (
        "Linux's run-queue wait of the thread while other programs or threads ran, above the usual wait of this run"
    ),
    ALLOCATOR: "retries of the device allocator, if no other cause explains the step",
    CLOCK: "a device clock below 80% of its maximum in the run, if readable and no other cause explains the step",
    UNKNOWN: "none of these. The line is named if most samples share it",
}
"""How each cause is detected, in the order of the checks. The report and the site show these texts."""

CHANCE_CAUSES: Final = (GARBAGE, CONTENTION, ALLOCATOR, CLOCK)
"""Causes that may hit any step, whatever function runs."""
