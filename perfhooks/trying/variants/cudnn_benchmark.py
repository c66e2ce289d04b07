"""cuDNN's own search for the fastest way."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from perfhooks.trying.variants.variant import EXACT, on_cuda, stem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.trying.ready import Ready


class CudnnBenchmark:
    """Convolutions by the fastest of cuDNN's ways, which it finds out at the first call."""

    name = "cudnn-benchmark"
    summary = "torch.backends.cudnn.benchmark = True"
    tolerance = 5 * EXACT

    def suits(self, call: Ready) -> bool:
        """Convolutions on a device."""
        return "conv" in stem(call) and on_cuda(call)

    def changed(self, call: Ready) -> Ready | None:
        """The same call; None where it is searched for already, and without cuDNN."""
        if not self.suits(call) or torch.backends.cudnn.benchmark:
            return None
        return replace(call, setting=_searching)


@contextmanager
def _searching() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
