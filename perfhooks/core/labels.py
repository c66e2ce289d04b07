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

_LETTER: Final = re.compile(r"[^\x00-\x7f]")
ESCAPE: Final = "&#x"
"""The beginning of a letter that is escaped."""
_ESCAPED: Final = re.compile(ESCAPE + r"([0-9a-f]{2,6});")


def escaped(name: str) -> str:
    """Return a name in ASCII, because torch writes any other name as ``unknown``: ``训练`` is ``&#x8bad;&#x7ec3;``."""
    return name if name.isascii() else _LETTER.sub(lambda letter: f"&#x{ord(letter[0]):x};", name)


def unescaped(name: str) -> str:
    """Return the name of which `escaped` made this one."""
    return _ESCAPED.sub(_letter, name) if ESCAPE in name else name


def unescaped_text(text: bytes) -> bytes:
    """Return a text, such as a piece of a trace, in which names are as `unescaped` returns them."""
    if ESCAPE.encode() not in text:
        return text
    return unescaped(text.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _letter(escape: re.Match[str]) -> str:
    try:
        letter = chr(int(escape[1], 16))
        letter.encode()  # halves of letters cannot be written to any file
    except ValueError:
        return escape[0]
    return escape[0] if letter.isascii() else letter


AUTOMATIC: Final = {part: f"{part} (auto)" for part in PARTS}
"""What perfhooks calls each part where it labels by itself, so that a label that somebody wrote can win over it."""


def pattern(*parts: str) -> str:
    """A regular expression for the labels of some parts, whether somebody wrote them or perfhooks did."""
    return "^(?:" + "|".join(re.escape(name) for part in parts for name in (part, AUTOMATIC[part])) + ")$"


DEVICE_STOPPED: Final = "torch stopped collecting from the device before the end of the window"
"""A note in a capture."""

CLOCKS_CHECK: Final = "clocks-locked"
"""The check of a trace that says the following."""

CLOCKS_LOCKED: Final = (
    "hardware counters were sampled, which holds the clocks of the device: its times are not those of a training that "
    "nobody samples, and not to be compared with them"
)
"""The same; a window with it is compared with none."""

MODULE_NAMES: Final = "perfhooksModuleNames"
"""In a trace's metadata: what the model calls the modules of each class, in the order of the recorder's
numbers."""

LANES: Final = "perfhooksLanes"
"""In a trace's metadata: lanes for slices that cross others. A list of the process, the lane and its thread."""

FRAME_NAMES: Final = "perfhooksFrameNames"
"""In a trace's metadata: the names of the Python frames that Kineto calls ``unknown``, in the order of the file."""

GRAPH_REGIONS: Final = "perfhooksGraphRegions"
"""In a trace's metadata: what parts of CUDA graphs were called as they were recorded. A list of the name, the pass
(``backward`` or nothing) and the numbers of the nodes."""

PROCESSOR: Final = "perfhooksProcessor"
"""The same: the processor that it was recorded on, as `perfhooks.run.circumstances.processor` calls it."""

STEP_MARK: Final = "ProfilerStep#"
"""What torch.profiler writes before the number of a step; steps count from 0."""

FOREIGN: Final = "trace"
"""The stage of a trace that others recorded, as long as nobody has read it."""
