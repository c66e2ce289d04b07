"""Planted: a checkpoint in every second step (good: after training)."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import perfhooks


def main(out: Path, *, good: bool) -> None:
    """Train eight steps and record four of them."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6)))
    batch = torch.rand(64, 1024)
    with (
        TemporaryDirectory() as folder,
        perfhooks.Profiler(
            schedule="wait=3 warmup=1 active=4 repeat=1", with_stack=True, out=out, background=False
        ) as prof,
    ):
        for step in prof.steps(range(8)):
            model(batch).square().mean().backward()
            if step % 2 and not good:  # planted
                torch.save(model.state_dict(), Path(folder) / "last.pt")


if __name__ == "__main__":
    main(Path("perf"), good="--good" in sys.argv)
