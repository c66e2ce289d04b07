"""Planted: oneDNN is switched off, as someone does to debug and forgets (good: it is on)."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import perfhooks


def main(out: Path, *, good: bool) -> None:
    """Train eight steps and record four of them."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.Flatten()
    )
    images = torch.rand(8, 3, 32, 32)
    torch.backends.mkldnn.enabled = good  # type: ignore[assignment]  # planted
    with perfhooks.Profiler(
        schedule="wait=3 warmup=1 active=4 repeat=1", record_shapes=True, out=out, background=False
    ) as prof:
        for _ in prof.steps(range(8)):
            model(images).square().mean().backward()
    torch.backends.mkldnn.enabled = True  # type: ignore[assignment]


if __name__ == "__main__":
    main(Path("perf"), good="--good" in sys.argv)
