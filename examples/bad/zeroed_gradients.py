"""Planted: gradients are filled with zeros (good: dropped, which is the default)."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import perfhooks


def main(out: Path, *, good: bool) -> None:
    """Train eight steps and record four of them."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    batch = torch.rand(16, 1024)
    with perfhooks.Profiler(schedule="wait=3 warmup=1 active=4 repeat=1", out=out, background=False) as prof:
        for _ in prof.steps(range(8)):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=good)  # planted


if __name__ == "__main__":
    main(Path("perf"), good="--good" in sys.argv)
