"""A training with one slow step of each kind; a script, which needs a folder for its run."""

import gc
import itertools
import os
import sys
import threading
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import perfhooks

STEPS = 260


class Samples(Dataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        if index == 60:
            time.sleep(0.5)  # data
        return torch.ones(8)


def litter():
    """Leave many objects for one collection, which is none by itself."""
    gc.disable()
    found = [[] for _ in range(10**6)]
    for one, other in itertools.pairwise([*found, found[0]]):
        one.append(other)


def collect():
    gc.enable()
    gc.collect()  # garbage collection


def spin():
    end = time.perf_counter() + 0.4
    while time.perf_counter() < end:  # unknown
        pass


def save_checkpoint(path):
    threading.Thread(target=read_late, args=(path,)).start()
    with path.open("wb") as file:  # checkpoint
        torch.save({"weight": torch.ones(4)}, file)


def read_late(path):
    time.sleep(0.5)
    with path.open("rb") as file:
        file.read()


def validate():
    time.sleep(0.4)  # validation


def main(out):
    fifo = Path(out, "fifo")
    fifo.parent.mkdir(exist_ok=True)
    os.mkfifo(fifo)
    model = torch.compile(torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(40)]), backend="eager")
    model(torch.ones(2, 8))
    litter()
    planted = {90: collect, 120: spin, 150: lambda: save_checkpoint(fifo), 210: validate}
    with perfhooks.Profiler(schedule="on request", out=out, run="job", poll=0.2) as prof:
        for step, _ in enumerate(prof.steps(DataLoader(Samples(), batch_size=1))):
            time.sleep(0.003)
            if step in planted:
                planted[step]()
            if step == 180:
                model(torch.ones(3, 9)[:, :8])  # compilation


if __name__ == "__main__":
    main(sys.argv[1])
