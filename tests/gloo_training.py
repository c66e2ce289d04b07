"""A training on several ranks of this machine, one of them slow; a script, for torchrun or for as many processes."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import perfhooks


class Slow(Dataset):
    """Vectors that some rank takes its time to read."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.ones(64)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--meeting", help="a file that all ranks meet at; without it torchrun says where")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--slow-data", type=int, default=-1, help="the rank whose data is slow")
    parser.add_argument("--slow-compute", type=int, default=-1, help="the rank whose model is slow")
    parser.add_argument("--seconds", type=float, default=0.04)
    return parser.parse_args()


def join(meeting):
    """Meet the other ranks."""
    if meeting is None:
        dist.init_process_group("gloo")
        return
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)


def train(args):
    torch.set_num_threads(1)
    rank = dist.get_rank()
    layers = [torch.nn.Linear(64, 64) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Slow(args.seconds if rank == args.slow_data else 0.0), batch_size=1)
    schedule = "skip_first=2 wait=0 warmup=1 active=4 repeat=2"
    with perfhooks.Profiler(schedule=schedule, out=args.out) as prof:
        for step, batch in enumerate(prof.steps(loader), 1):
            if rank == args.slow_compute:
                time.sleep(args.seconds)
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == args.steps:
                break
    prof.wait()


if __name__ == "__main__":
    given = arguments()
    join(given.meeting)
    train(given)
    dist.destroy_process_group()
