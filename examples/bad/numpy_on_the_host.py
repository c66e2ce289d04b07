"""Planted: a part of the step is computed in NumPy, by one core (good: in torch)."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import perfhooks


def noisy(images: torch.Tensor, *, good: bool) -> torch.Tensor:
    """Smooth noise on every image."""
    if good:
        return images + 0.1 * torch.sin(images) * torch.exp(-images.square())
    array = images.numpy()
    array = array + 0.1 * np.sin(array) * np.exp(-np.square(array))  # planted
    return torch.from_numpy(array)


def main(out: Path, *, good: bool) -> None:
    """Train eight steps and record four of them."""
    model = torch.nn.Linear(4096, 64)
    images = torch.rand(512, 4096)
    with perfhooks.Profiler(
        schedule="wait=3 warmup=1 active=4 repeat=1", with_stack=True, out=out, background=False
    ) as prof:
        for _ in prof.steps(range(8)):
            model(noisy(images, good=good)).square().mean().backward()


if __name__ == "__main__":
    main(Path("perf"), good="--good" in sys.argv)
