"""Planted: a mask is filled element by element in each step (good: by one operator)."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import perfhooks


def mask_of(length: int, *, good: bool) -> torch.Tensor:
    """Return which positions each position must not see."""
    if good:
        return torch.ones(length, length, dtype=torch.bool).triu(1)
    mask = torch.zeros(length, length, dtype=torch.bool)
    for row in range(length):  # planted: three operators per element
        for column in range(row + 1, length):
            mask[row, column] = True
    return mask


def main(out: Path, *, good: bool) -> None:
    """Train eight steps and record four of them."""
    attention = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    optimizer = torch.optim.SGD(attention.parameters(), lr=0.1)
    tokens = torch.rand(16, 48, 64)
    with perfhooks.Profiler(schedule="wait=3 warmup=1 active=4 repeat=1", out=out, background=False) as prof:
        for _ in prof.steps(range(8)):
            mask = mask_of(48, good=good)
            attention(tokens, tokens, tokens, attn_mask=mask, need_weights=False)[0].square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main(Path("perf"), good="--good" in sys.argv)
