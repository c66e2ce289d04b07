"""Planted: the data come from NumPy in float64, and the model was made to fit (good: float32)."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import perfhooks


def main(out: Path, *, good: bool) -> None:
    """Train eight steps and record four of them."""
    images = torch.from_numpy(np.random.default_rng(0).random((16, 3, 32, 32)))
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.Flatten()
    )
    images, model = (images.float(), model) if good else (images, model.double())  # planted
    with perfhooks.Profiler(
        schedule="wait=3 warmup=1 active=4 repeat=1", record_shapes=True, out=out, background=False
    ) as prof:
        for _ in prof.steps(range(8)):
            model(images).square().mean().backward()


if __name__ == "__main__":
    main(Path("perf"), good="--good" in sys.argv)
