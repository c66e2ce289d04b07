"""The names of the parts of a step: known to whoever writes them into a trace and whoever reads them out."""

from typing import Final

DATA: Final = "data"
TRANSFER: Final = "transfer"
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
VALIDATION: Final = "validation"
CHECKPOINT: Final = "checkpoint"

PARTS: Final = (DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, VALIDATION, CHECKPOINT)
"""The parts of a step, in the order of their columns. Any other label is shown in the trace and is no part."""

DEVICE_STOPPED: Final = "torch stopped collecting from the device before the end of the window"
"""A note in a capture."""

STEP_MARK: Final = "ProfilerStep#"
"""What torch.profiler writes before the number of a step; steps count from 0."""
