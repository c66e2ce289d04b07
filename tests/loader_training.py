"""A training whose loader is tried in its place: says what it did, in lines of a file."""

import multiprocessing
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __init__(self, problem=""):
        self.problem = problem

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(0.002)
        if self.problem:
            raise ValueError(f"{self.problem} {index}")
        return torch.ones(4)


def say(word):
    with Path(sys.argv[1]).open("a", encoding="utf-8") as file:
        file.write(f"{word}\n")


def main(way):
    validation = DataLoader(Slow(), batch_size=4, sampler=range(8))
    with torch.no_grad():
        for _ in validation:
            say("validated")
    if way == "no loader":
        return
    context = "forkserver" if way == "forkserver" else None
    multiprocessing.set_forkserver_preload(["torch"])  # once for all workers
    loader = DataLoader(
        Slow("broken image" if way == "raises" else ""),
        batch_size=4,
        num_workers=1 if context else 0,
        multiprocessing_context=context,
    )
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
            say("step")
    finally:
        say("end")


if __name__ == "__main__":
    main(sys.argv[2])
