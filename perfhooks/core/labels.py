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
"""Parts of a step, in the order of the columns of the step table."""

OTHER: Final = "other"
"""Name of the step time outside of all `PARTS`."""
PHRASES: Final = {
    **{part: part for part in PARTS},
    DATA: "waiting for data",
    CHECKPOINT: "checkpointing",
    OTHER: "other code",
}
"""Texts of the parts of a step in summaries and headlines."""

_LETTER: Final = re.compile(r"[^\x00-\x7f]")
ESCAPE: Final = "&#x"
_ESCAPED: Final = re.compile(ESCAPE + r"([0-9a-f]{2,6});")


def escaped(name: str) -> str:
    """Return a name in ASCII, because torch writes other names as ``unknown``: ``训练`` is ``&#x8bad;&#x7ec3;``."""
    return name if name.isascii() else _LETTER.sub(lambda letter: f"&#x{ord(letter[0]):x};", name)


def unescaped(name: str) -> str:
    return _ESCAPED.sub(_letter, name) if ESCAPE in name else name


def unescaped_text(text: bytes) -> bytes:
    if ESCAPE.encode() not in text:
        return text
    return unescaped(text.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _letter(escape: re.Match[str]) -> str:
    try:
        letter = chr(int(escape[1], 16))
        letter.encode()  # surrogates cannot be encoded
    except ValueError:
        return escape[0]
    return escape[0] if letter.isascii() else letter


AUTOMATIC: Final = {part: f"{part} (auto)" for part in PARTS}
"""Name of the automatic label of each part. Labels of the user take precedence."""


def pattern(*parts: str) -> str:
    return "^(?:" + "|".join(re.escape(name) for part in parts for name in (part, AUTOMATIC[part])) + ")$"


DEVICE_STOPPED: Final = "torch stopped collecting from the device before the end of the window"

CLOCKS_CHECK: Final = "clocks-locked"

CLOCKS_LOCKED: Final = (
    "sampling hardware counters locks the clocks of the device: do not compare device times with those of a window "
    "without counters"
)

MODULE_NAMES: Final = "perfhooksModuleNames"
"""Key of trace metadata: module names of each class."""

LANES: Final = "perfhooksLanes"
"""Key of trace metadata: (process, lane, thread) of overlapping slices."""

FRAME_NAMES: Final = "perfhooksFrameNames"
"""Key of trace metadata: names of the Python frames that Kineto writes as ``unknown``, in file order."""

GRAPH_REGIONS: Final = "perfhooksGraphRegions"
"""Key of trace metadata: (name, pass, node numbers) of regions in CUDA graphs; the pass is ``backward`` or empty."""

PROCESSOR: Final = "perfhooksProcessor"

STEP_MARK: Final = "ProfilerStep#"
"""Prefix of the step number in marks of torch.profiler. Steps count from 0."""

FOREIGN: Final = "trace"
"""Stage name for traces of other tools. In traces of perfhooks, the stage is the name of the loop, such as ``train``.
"""
