"""Planted: Adam updates a hundred small parameters one by one (good: fused)."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import perfhooks


def main(out: Path, *, good: bool) -> None:
    """Train eight steps and record four of them."""
    model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(50)))
    optimizer = torch.optim.Adam(model.parameters(), fused=good)  # planted: None and False loop on a CPU
    batch = torch.rand(64, 128)
    with perfhooks.Profiler(schedule="wait=3 warmup=1 active=4 repeat=1", out=out, background=False) as prof:
        for _ in prof.steps(range(8)):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main(Path("perf"), good="--good" in sys.argv)
