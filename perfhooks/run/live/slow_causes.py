from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

import msgspec

GARBAGE: Final = "garbage collection"
COMPILATION: Final = "compilation"
CHECKPOINT: Final = "checkpoint"
EVALUATION: Final = "evaluation"
DATA: Final = "data"
RANKS: Final = "other ranks"
DEVICE: Final = "device"
BLOCKING: Final = "blocking call"
OWN: Final = "own code"
CONTENTION: Final = "CPU contention"
UNKNOWN: Final = "unknown"

CAUSES: Final = (
    *(GARBAGE, COMPILATION, CHECKPOINT, EVALUATION, DATA, RANKS, DEVICE, BLOCKING, OWN, CONTENTION, UNKNOWN),
)
"""Causes in the order of the checks. `slow_causes.toml` has a text for each."""
CHANCE_CAUSES: Final = (GARBAGE, CONTENTION)
"""Causes that can slow any step, independent of the running function."""


@functools.cache
def signs() -> dict[str, str]:
    """Return how each cause is detected, in the order of the checks."""
    texts = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, str])
    return {cause: " ".join(text.split()) for cause, text in texts.items()}
