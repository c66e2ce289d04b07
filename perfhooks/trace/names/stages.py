"""Which loop a trace shows, where nobody says it: training or inference, by what only one of them leaves in a trace."""

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
# a transposed convolution runs the kernels of the gradient by the input forwards: these are no sign
_GRADIENT_KERNELS: Final = re.compile(r"wgrad|_wrw_|backward|bn_bw|norm\w*bwd|_bwd_(?!data|gtc)", re.IGNORECASE)
_SERVING: Final = re.compile(r"kv_?cache|and_cache|paged_?(?:kv|attention)", re.IGNORECASE)
"""Keys and values are kept from token to token only where tokens are generated."""
_TRAINING_PARTS: Final = (labels.BACKWARD, labels.OPTIMIZER)
_LAYERS: Final = ("gemms", "convolution", "attention")


@cached_per_trace
def shown(trace: Trace) -> str:
    """The loop that a trace shows: `TRAIN`, `INFERENCE` or `UNKNOWN`.

    Training has a backward pass (nodes of autograd, a call of ``backward``, a label, kernels of gradients) or updates
    (ranges of optimizers, their kernels). Inference has none of these, and keeps keys and values from token to token,
    or has layers of which autograd took no note, as under ``torch.no_grad`` and ``torch.inference_mode``: elsewhere
    torch numbers operators for the backward pass. What is neither, as a forward pass that notes gradients, is unknown.

    Args:
        trace: any trace.
    """
    if _trains(trace):
        return TRAIN
    return INFERENCE if _infers(trace) else UNKNOWN


def _trains(trace: Trace) -> bool:
    return (
        any(_is_of_training(name) for name in _names(trace, Kind.OP, Kind.ANNOTATION))
        or any(part_names.of_frame(name) == labels.BACKWARD for name in _names(trace, Kind.PYTHON))
        or any(
            _GRADIENT_KERNELS.search(name) or work_kinds.of_kernel(name) == "optimizer"
            for name in _names(trace, Kind.KERNEL)
        )
    )


def _is_of_training(name: str) -> bool:
    told = (part_names.of_label, part_names.of_automatic, part_names.of_range)
    return any(part_of(name) in _TRAINING_PARTS for part_of in told) or _GRADIENTS.search(name) is not None


def _infers(trace: Trace) -> bool:
    if any(_SERVING.search(name) for name in _names(trace, Kind.OP, Kind.KERNEL)):
        return True
    _, sequence = trace.sparse("sequence")
    return not (sequence >= 0).any() and any(work_kinds.of_operator(name) in _LAYERS for name in _names(trace, Kind.OP))


def _names(trace: Trace, *kinds: Kind) -> list[str]:
    return [trace.names[number] for number in trace.names_of(*kinds)]
