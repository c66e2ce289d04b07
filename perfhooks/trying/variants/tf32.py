"""Products of float32 on tensor cores."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from perfhooks.trying.variants.variant import EXACT, PRODUCTS, on_cuda, stem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.trying.ready import Ready


class TF32:
    """Products of float32 by TF32, which NVIDIA's tensor cores take since Ampere."""

    name = "tf32"
    summary = "float32 products as TF32 on tensor cores"
    tolerance = 5 * EXACT

    def suits(self, call: Ready) -> bool:
        """Products on a device."""
        return stem(call) in PRODUCTS and on_cuda(call)

    def changed(self, call: Ready) -> Ready | None:
        """The same call with TF32 allowed; None on a CPU, which has none."""
        is_float32 = any(each.dtype == torch.float32 for each in call.tensors())
        return replace(call, setting=_allowed) if on_cuda(call) and is_float32 else None


@contextmanager
def _allowed() -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
