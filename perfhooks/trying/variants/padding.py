"""Matrices padded to sizes that units for products like."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from perfhooks.trying.variants.variant import EXACT, stem

if TYPE_CHECKING:
    from perfhooks.trying.ready import Ready

MULTIPLE: Final = 8
"""Elements: 16 bytes of float16, which tensor cores want (NVIDIA, Matrix Multiplication Background); a CPU's registers
hold 8 or 16 float32."""
_OPERANDS: Final = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}


class Padding:
    """Matrices with zeros around them, so that all sizes are multiples of 8; the padding itself is not timed."""

    name = "padding"
    summary = f"sizes of matrices padded to multiples of {MULTIPLE}"
    tolerance = EXACT

    def suits(self, call: Ready) -> bool:
        """Products of matrices of which a size is no multiple."""
        return stem(call) in _OPERANDS and _is_odd(call)

    def changed(self, call: Ready) -> Ready | None:
        """Both factors padded, and what is added to them; None where nothing is to be padded."""
        if stem(call) not in _OPERANDS or not _is_odd(call):
            return None
        left, right = (call.arguments[place] for place in _OPERANDS[stem(call)])
        rows, columns = left.shape[-2], right.shape[-1]
        made = [_padded(each, place, call) for place, each in enumerate(call.arguments)]
        return replace(call, arguments=tuple(made), result=lambda given: given[..., :rows, :columns])


def _is_odd(call: Ready) -> bool:
    factors = [call.arguments[place] for place in _OPERANDS[stem(call)]]
    return any(size % MULTIPLE for each in factors for size in each.shape[-2:])


def _padded(given: Any, place: int, call: Ready) -> Any:
    if not isinstance(given, torch.Tensor):
        return given
    # what is added may be one number for all columns or rows, and stays so
    is_factor = place in _OPERANDS[stem(call)]
    margins = [0 if size == 1 and not is_factor else -size % MULTIPLE for size in reversed(given.shape[-2:])]
    if not any(margins):
        return given
    padded = torch.nn.functional.pad(given, [each for margin in margins for each in (0, margin)])
    # a factor that lay turned in memory lies so still
    return padded.mT.contiguous().mT if given.dim() > 1 and given.stride(-2) == 1 != given.stride(-1) else padded
