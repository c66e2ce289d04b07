"""Planted: every batch has another length, and the compiled model is compiled anew (good: padded to one)."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import perfhooks


def main(out: Path, *, good: bool) -> None:
    """Train eight steps and record three of them."""
    torch.compiler.reset()
    model = torch.compile(torch.nn.Linear(512, 512), backend="eager", dynamic=False)
    with perfhooks.Profiler(schedule="wait=3 warmup=1 active=3 repeat=1", out=out, background=False) as prof:
        for step in prof.steps(range(7)):
            length = 1024 if good else 1024 - 8 * step  # planted
            model(torch.rand(length, 512)).square().mean().backward()


if __name__ == "__main__":
    main(Path("perf"), good="--good" in sys.argv)
