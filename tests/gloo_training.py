"""A training on several ranks of this machine, one of them slow; a script, for torchrun or for as many processes."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import perfhooks

SCHEDULE = "skip_first=2 wait=0 warmup=1 active=4 repeat=2"


class Slow(Dataset):
    """Samples that some rank takes its time to read."""

    def __init__(self, samples, seconds):
        self.samples = samples
        self.seconds = seconds

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return self.samples[index]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--loop", choices=LOOPS, default="raw", help="whose loop trains")
    parser.add_argument("--meeting", help="a file that all ranks meet at; without it torchrun says where")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--slow-data", type=int, nargs="+", default=[], help="the ranks whose data is slow")
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


def loader(args, samples):
    """Batches of one, which come late on the ranks that are to be slow."""
    slow = int(os.environ["RANK"]) in args.slow_data
    return DataLoader(Slow(samples, args.seconds if slow else 0.0), batch_size=1)


def train(args):
    torch.set_num_threads(1)
    rank = dist.get_rank()
    layers = [torch.nn.Linear(64, 64) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with perfhooks.Profiler(schedule=SCHEDULE, out=args.out) as prof:
        for step, batch in enumerate(prof.steps(loader(args, torch.ones(400, 64))), 1):
            if rank == args.slow_compute:
                time.sleep(args.seconds)
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == args.steps:
                break
    prof.wait()


def train_with_lightning(args):
    import lightning_training as tiny

    callback = tiny.ProfilerCallback(SCHEDULE, out=args.out)
    chosen = {"devices": dist.get_world_size(), "strategy": "ddp", "logger": False, "enable_checkpointing": False}
    trainer = tiny.pl.Trainer(callbacks=[callback], max_steps=args.steps, **tiny.QUIET | chosen)
    trainer.fit(tiny.Tiny(), loader(args, tiny.Numbers(400)))


def train_with_mmengine(args):
    import mmengine_training as tiny

    tiny.trained(
        f"{args.out}-work",
        tiny.ProfilerHook(schedule=SCHEDULE, out=args.out),
        train_dataloader=loader(args, tiny.Samples()),
        train_cfg={"by_epoch": False, "max_iters": args.steps},
        launcher="pytorch",
        cfg={"model_wrapper_cfg": {"type": "MMDistributedDataParallel", "device_ids": None}},
    )


LOOPS = {"raw": train, "lightning": train_with_lightning, "mmengine": train_with_mmengine}

if __name__ == "__main__":
    given = arguments()
    join(given.meeting)
    LOOPS[given.loop](given)
    dist.destroy_process_group()
