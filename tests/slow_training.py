"""A training with slow steps of each kind; a script, which needs a folder for its run.

The line that makes a step slow ends with its number and its cause: what the test looks for. More are in slow_parts.py.
"""

import gc
import io
import itertools
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import slow_parts
import torch
from slow_parts import NAP_S, read_late, too_short
from torch.utils.data import DataLoader, Dataset

import perfhooks
from perfhooks.record.watch import watcher

STEPS = 170
"""Of the first loop; each of the others goes on where the one before it ended."""
FEW = 30
ACCUMULATED = 4


class Samples(Dataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        while index == 20 and too_short():
            time.sleep(NAP_S)  # step 20: data
        return torch.full((8,), float(index))


def collate(samples):
    while samples[0][0] == 30 and too_short():
        time.sleep(NAP_S)  # step 30: data
    return torch.stack(samples)


class Remote(Dataset):
    """In another process, which cannot know what the watcher has seen unless it is told."""

    def __init__(self):
        self.is_seen = multiprocessing.Event()

    def __len__(self):
        return FEW

    def __getitem__(self, index):
        if index == 10:
            self.is_seen.wait()
        return torch.ones(8)


def stream():
    """Data that nobody made a loader of."""
    for index in range(FEW):
        while index == 10 and too_short():
            time.sleep(NAP_S)  # step 210: data
        yield torch.ones(8)


class Accumulated(Dataset):
    def __len__(self):
        return FEW * ACCUMULATED

    def __getitem__(self, index):
        while index == 10 * ACCUMULATED + 2 and too_short():
            time.sleep(NAP_S)  # step 240: data
        return torch.ones(8)


def litter():
    """Leave many objects for one collection, which is none by itself."""
    gc.disable()
    found = [[] for _ in range(10**6)]
    for one, other in itertools.pairwise([*found, found[0]]):
        one.append(other)


def allocate():
    gc.enable()
    [[] for _ in range(10_000)]  # step 40: garbage collection


def collect():
    gc.enable()
    gc.collect()  # step 220: garbage collection


def spin():
    while too_short():
        end = time.perf_counter() + NAP_S
        while time.perf_counter() < end:  # step 60: own code
            pass


def save_checkpoint(path):
    read_late(path, save_checkpoint)
    with path.open("wb") as file:  # step 70: checkpoint
        torch.save({"weight": torch.ones(4)}, file)


class Disk(io.BytesIO):
    """A slow one; torch stands in its own code meanwhile, in a function that nobody called saving."""

    def write(self, data):
        while too_short():
            time.sleep(NAP_S)  # step 80: checkpoint
        return super().write(data)


def keep():
    torch.save(torch.ones(10), Disk())


def recompile(model):
    """New shapes, until that took long enough."""
    for size in itertools.count(3):
        model(torch.ones(size, 8))  # step 90: compilation
        if not too_short():
            break


class Slow(torch.nn.Module):
    def forward(self, given):
        time.sleep(NAP_S)
        return given


def score(model):
    model.eval()
    while too_short():
        model(torch.ones(1))  # step 100: evaluation


def loops(prof, fifo):
    model = torch.compile(
        torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(8)]), backend="eager", dynamic=False
    )
    model(torch.ones(2, 8))
    litter()
    trainer = slow_parts.Trainer()
    planted = {
        40: allocate, 60: spin, 70: lambda: save_checkpoint(fifo), 80: keep, 90: lambda: recompile(model),
        100: lambda: score(Slow()), 120: trainer.collect, 130: trainer.log_metrics,
        140: lambda: trainer.dump_state(fifo), 150: slow_parts.train_one, 160: slow_parts.wait_for_lock,
    }  # fmt: skip
    for step, _ in enumerate(prof.steps(DataLoader(Samples(), batch_size=1, collate_fn=collate))):
        time.sleep(0.003)
        if step in planted:
            planted[step]()
    remote = Remote()
    threading.Thread(target=tell, args=(remote.is_seen,)).start()
    for _ in prof.steps(DataLoader(remote, batch_size=1, num_workers=1)):  # step 180: data
        time.sleep(0.003)
    litter()
    for _ in prof.steps(stream()):
        time.sleep(0.003)
        if prof.step_num == 220:
            collect()
    batches = iter(DataLoader(Accumulated(), batch_size=1))
    for _ in range(FEW):
        for _ in range(ACCUMULATED):
            next(batches)
            time.sleep(0.001)
        prof.step()


def tell(event):
    while prof.step_num < STEPS + 10 or too_short(loops):
        time.sleep(NAP_S)
    event.set()


if __name__ == "__main__":
    watcher._SHARE = 1.0  # it looks at every chance, whatever looks cost
    for limit in ("recompile_limit", "cache_size_limit"):  # the first is newer than torch 2.4
        if hasattr(torch._dynamo.config, limit):
            setattr(torch._dynamo.config, limit, 1000)
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    os.mkfifo(folder / "fifo")
    with perfhooks.Profiler(schedule="on request", out=folder, run="job", poll=0.2) as prof:
        loops(prof, folder / "fifo")
