"""Planted: the training process reads every sample when it is asked for (good: all were read before)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import perfhooks


class Images(Dataset[torch.Tensor]):
    """Samples that take 2 ms each to read, as small images do."""

    def __init__(self, *, read_before: bool) -> None:
        self.ready = [self.read(index) for index in range(len(self))] if read_before else None

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.read(index) if self.ready is None else self.ready[index]

    def read(self, index: int) -> torch.Tensor:
        """Read one sample."""
        time.sleep(0.002)  # planted
        return torch.full((1024,), index / len(self))


def main(out: Path, *, good: bool) -> None:
    """Train ten steps and record four of them."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))
    loader = DataLoader(Images(read_before=good), batch_size=16)
    with perfhooks.Profiler(
        schedule="wait=5 warmup=1 active=4 repeat=1", with_stack=True, out=out, background=False
    ) as prof:
        for batch in prof.steps(loader):
            model(batch.repeat(8, 1)).square().mean().backward()


if __name__ == "__main__":
    main(Path("perf"), good="--good" in sys.argv)
