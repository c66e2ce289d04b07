"""The causes of slow steps, as the files of a run name them."""

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
PROCESSOR: Final = "busy processor"
ALLOCATOR: Final = "allocator"
CLOCK: Final = "throttled clock"
UNKNOWN: Final = "unknown"

SEEN_BY: Final = {
    GARBAGE: "Python's own callbacks",
    COMPILATION: "stacks inside of torch.compile or Triton",
    CHECKPOINT: "stacks inside of torch.save and the like, or of a function called save, checkpoint, ...",
    EVALUATION: (
        "a pass over a loader from which nothing was learned; a framework that says so; stacks inside of a function, "
        "or a loop, in which modules are in evaluation mode or keep no gradients: rollouts and generation as well"
    ),
    DATA: "the wait for data; stacks inside of a DataLoader",
    RANKS: "stacks inside of torch.distributed; a backward pass of a job with ranks that computes nothing",
    DISK: "a thread that waits in a call of the system that reads, writes or flushes a file; Linux only",
    LOCK: "a thread that waits for another one, at a line that enters, acquires or waits; Linux only",
    MEMORY: (
        "a thread that waits for pages that were swapped out, or whose computing is the system's, more than usual, "
        "while it gets new pages; Linux only"
    ),
    DEVICE: "stacks at one line that waits for the device, such as .item()",
    OWN: (
        "a thread that computes at a line, or in a function, where usual steps are not, or holds the interpreter more "
        "than in those, in code that is not torch's"
    ),
    PROCESSOR: (
        "Linux's count of how long the thread could have run and waited, as other programs or threads ran: what it is "
        "beyond the usual of this run"
    ),
    ALLOCATOR: "retries of the device's allocator, where nothing else explains it",
    CLOCK: "a device clock below 80% of its best, where it can be read and nothing else explains it",
    UNKNOWN: "none of these; the line is there all the same",
}
"""How each cause is told; the order is that in which they are tried. The page and the site say it from here."""

LUCKY: Final = (GARBAGE, PROCESSOR, ALLOCATOR, CLOCK)
"""Causes that any step may have by chance, in whatever function it is; they are measured."""
