"""Images with their channels last in memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import torch

from perfhooks.trying.variants.variant import EXACT, stem

if TYPE_CHECKING:
    from perfhooks.trying.ready import Ready

_IMAGES: Final = re.compile(r"conv|pool|batch_norm|upsample|interpolate|group_norm|instance_norm")
_LAYOUTS: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


class ChannelsLast:
    """Images, filters and their gradients with the channels last in memory, as if they had come so."""

    name = "channels_last"
    summary = "images and filters in channels-last memory"
    tolerance = EXACT

    def suits(self, call: Ready) -> bool:
        """Operators on images."""
        return bool(_IMAGES.search(stem(call)))

    def changed(self, call: Ready) -> Ready | None:
        """All tensors of four or five dimensions turned; None where none is, or all are already."""
        images = [each for each in call.tensors() if each.dim() in _LAYOUTS]
        if call.remade is not None or all(each is _turned(each) for each in images):
            return None
        return call.with_tensors(_turned)


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    layout = _LAYOUTS.get(tensor.dim())
    return tensor if layout is None else tensor.contiguous(memory_format=layout)
