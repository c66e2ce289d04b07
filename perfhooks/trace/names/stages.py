from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from perfhooks.core import labels
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import part_names, ranges, work_kinds
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Trace

TRAIN: Final = "train"
INFERENCE: Final = "inference"
UNKNOWN: Final = "unknown"

_GRADIENTS: Final = re.compile(rf"^{re.escape(ranges.NODE)}|(?:^|[: ]){ranges.BACKWARD_CLASS}")
# kernels of the input gradient are left out, because a transposed convolution runs them in the forward pass
_GRADIENT_KERNELS: Final = re.compile(r"wgrad|_wrw_|backward|bn_bw|norm\w*bwd|_bwd_(?!data|gtc)", re.IGNORECASE)
_SERVING: Final = re.compile(r"kv_?cache|and_cache|paged_?(?:kv|attention)", re.IGNORECASE)
"""Operators with a cache of keys and values (KV cache), which only token generation uses."""
_TRAINING_PARTS: Final = (labels.BACKWARD, labels.OPTIMIZER)
_LAYERS: Final = ("gemms", "convolution", "attention")


@cached_per_trace
def shown(trace: Trace) -> str:
    """Classify the recorded loop as `TRAIN`, `INFERENCE` or `UNKNOWN`.

    A training has a backward pass or optimizer updates. An inference has no backward pass and no updates, but a KV
    cache, or layers without autograd's sequence numbers.
    """
    if _is_training(trace):
        return TRAIN
    return INFERENCE if _is_inference(trace) else UNKNOWN


def _is_training(trace: Trace) -> bool:
    return (
        any(_is_training_name(name) for name in _names(trace, Kind.OP, Kind.ANNOTATION))
        or any(part_names.of_frame(name) == labels.BACKWARD for name in _names(trace, Kind.PYTHON))
        or any(
            _GRADIENT_KERNELS.search(name) or work_kinds.of_kernel(name) == "optimizer"
            for name in _names(trace, Kind.KERNEL)
        )
    )


def _is_training_name(name: str) -> bool:
    classifiers = (part_names.of_label, part_names.of_automatic, part_names.of_range)
    return any(part_of(name) in _TRAINING_PARTS for part_of in classifiers) or _GRADIENTS.search(name) is not None


def _is_inference(trace: Trace) -> bool:
    if any(_SERVING.search(name) for name in _names(trace, Kind.OP, Kind.KERNEL)):
        return True
    _, sequence = trace.sparse("sequence")
    return not (sequence >= 0).any() and any(work_kinds.of_operator(name) in _LAYERS for name in _names(trace, Kind.OP))


def _names(trace: Trace, *kinds: Kind) -> list[str]:
    return [trace.names[number] for number in trace.names_of(*kinds)]
