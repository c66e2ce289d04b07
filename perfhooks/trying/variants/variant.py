"""What a variant is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from perfhooks.trying.ready import Ready

EXACT: Final = 1e-3
"""How far results may be apart where both compute with the same precision: sums in another order, and TF32's products
rounded to 10 bits of mantissa."""
ROUNDED: Final = 0.05
"""And where one has 7 or 10 bits of mantissa: an error of 1% to 2% of the largest value is usual for bf16."""

PRODUCTS: Final = frozenset(
    {
        *("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "addmm_", "mv", "einsum", "linear_backward"),
        *("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "convolution_backward"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "mkldnn_convolution", "thnn_conv2d"),
        *("_slow_conv2d_forward", "_slow_conv2d_backward", "cudnn_convolution"),
        "scaled_dot_product_attention",
    }
)
"""Operators that are products of matrices, without ``aten::``."""


class Variant(Protocol):
    """Another way to run a call."""

    @property
    def name(self) -> str:
        """One word, as ``--variant`` takes it."""

    @property
    def summary(self) -> str:
        """What it does, in a few words."""

    @property
    def tolerance(self) -> float:
        """How far its results may be from those of the call; beyond it they are wrong."""

    def suits(self, call: Ready) -> bool:
        """Whether it makes sense to try it where nobody asked for it by name."""

    def changed(self, call: Ready) -> Ready | None:
        """The call in this way; None where it would be the same call, or cannot be."""


def stem(call: Ready) -> str:
    """The name of an operator without ``aten::``."""
    return call.name.removeprefix("aten::")


def on_cuda(call: Ready) -> bool:
    """Whether it runs on a device that torch calls so."""
    return any(each.is_cuda for each in call.tensors())
