"""The names of the parts of a step: known to whoever writes them into a trace and whoever reads them out."""

import re
from typing import Final

DATA: Final = "data"
TRANSFER: Final = "transfer"
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
VALIDATION: Final = "validation"
CHECKPOINT: Final = "checkpoint"
COMMUNICATION: Final = "communication"

PARTS: Final = (DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, VALIDATION, CHECKPOINT, COMMUNICATION)
"""The parts of a step, in the order of their columns. Any other label is shown in the trace and is no part."""

AUTOMATIC: Final = {part: f"{part} (auto)" for part in PARTS}
"""What perfhooks calls each part where it labels by itself, so that a label that somebody wrote can win over it."""


def pattern(*parts: str) -> str:
    """A regular expression for the labels of some parts, whether somebody wrote them or perfhooks did."""
    return "^(?:" + "|".join(re.escape(name) for part in parts for name in (part, AUTOMATIC[part])) + ")$"


DEVICE_STOPPED: Final = "torch stopped collecting from the device before the end of the window"
"""A note in a capture."""

MODULE_NAMES: Final = "perfhooksModuleNames"
"""In a trace's metadata: what the model calls the modules of each class, in the order of the recorder's
numbers."""

STEP_MARK: Final = "ProfilerStep#"
"""What torch.profiler writes before the number of a step; steps count from 0."""
