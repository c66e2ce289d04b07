"""A tiny training of several gloo ranks, of which one is late in one part of the step: one case after the other.

Arguments: a JSON list of cases ``[stage, rank, kind]``, and the steps of each. Without a stage all ranks are equal.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset

CASES = [tuple(case) for case in json.loads(sys.argv[1])]
STEPS = int(sys.argv[2])
DELAY_S = 0.025
DELAYS_S: list[float] = []
KINDS = {
    "none": lambda _: False,
    "constant": lambda _: True,
    "sudden": lambda step: 2 * step >= STEPS,
    "rare": lambda step: step % 8 == 3,
    "alternating": lambda step: step % 2 == 0,
}


def late(step: int, stage: str) -> None:
    """Sleep where the case of this step has planted a delay. On a busy machine a sleep takes longer."""
    where, rank, kind = CASES[min(step // STEPS, len(CASES) - 1)]
    if stage == where and rank == distributed.get_rank() and KINDS[kind](step % STEPS):
        began = time.perf_counter()
        time.sleep(DELAY_S)
        DELAYS_S.append(time.perf_counter() - began)


class Samples(Dataset):
    """A sample a step, which knows its step."""

    def __len__(self) -> int:
        return STEPS * len(CASES)

    def __getitem__(self, step: int) -> tuple[int, torch.Tensor]:
        late(step, "data")
        return step, torch.full((64,), step % 7 / 7)


class Net(nn.Module):
    """Some layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        self.at = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        late(self.at, "forward")
        result: torch.Tensor = self.layers(batch).square().mean()
        return result


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    net = Net()
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for steps, batch in DataLoader(Samples(), batch_size=1):
        net.at = int(steps[0])
        optimizer.zero_grad()
        model(batch).backward()
        late(net.at, "update")
        optimizer.step()
    distributed.destroy_process_group()
    if DELAYS_S:
        Path("delay_ms.txt").write_text(f"{1e3 * statistics.median(DELAYS_S)}")


main()
