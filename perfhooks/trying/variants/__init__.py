"""What is tried with a recorded call: each variant a class in a file of its own, and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.trying.variants.attention import Attention
from perfhooks.trying.variants.channels_last import ChannelsLast
from perfhooks.trying.variants.compiled import Compiled
from perfhooks.trying.variants.contiguous import Contiguous
from perfhooks.trying.variants.cudnn_benchmark import CudnnBenchmark
from perfhooks.trying.variants.onednn import OneDnn
from perfhooks.trying.variants.optimizer import Implementation
from perfhooks.trying.variants.padding import Padding
from perfhooks.trying.variants.precision import Precision
from perfhooks.trying.variants.tf32 import TF32
from perfhooks.trying.variants.threads import Threads

if TYPE_CHECKING:
    from perfhooks.trying.variants.variant import Variant

VARIANTS: Final[tuple[Variant, ...]] = (
    Precision("float32"),
    Precision("bf16"),
    Precision("fp16"),
    TF32(),
    ChannelsLast(),
    Contiguous(),
    Padding(),
    Implementation("foreach"),
    Implementation("fused"),
    Attention("math"),
    Attention("flash"),
    Attention("efficient"),
    Attention("cudnn"),
    OneDnn(on=True),
    OneDnn(on=False),
    CudnnBenchmark(),
    Threads(),
    Compiled(),
)
"""Every variant, in the order in which they are tried."""
BY_NAME: Final = {each.name: each for each in VARIANTS}

__all__ = ["BY_NAME", "VARIANTS"]
