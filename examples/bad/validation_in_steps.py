"""Planted: the model is validated in every second step (good: after training)."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import perfhooks


def main(out: Path, *, good: bool) -> None:
    """Train eight steps and record four of them."""
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
    batch = torch.rand(256, 512)
    with perfhooks.Profiler(schedule="wait=3 warmup=1 active=4 repeat=1", out=out, background=False) as prof:
        for step in prof.steps(range(8)):
            model(batch).square().mean().backward()
            if step % 2 and not good:  # planted
                with prof.region("validation"), torch.inference_mode():
                    for _ in range(4):
                        model(batch)


if __name__ == "__main__":
    main(Path("perf"), good="--good" in sys.argv)
