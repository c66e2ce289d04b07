"""Trainings on several ranks of this machine, one of them slow; a script, for torchrun or with ranks that it forks."""

import argparse
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import perfhooks

OPTIONS = {
    "schedule": "skip_first=2 wait=0 warmup=1 active=4 repeat=2",
    "on_trace_ready": ["trace", "steps", "collectives"],
}

LATE_S = 0.4


class Place:
    """A place in a step that some ranks leave some time after all others have come to it, however busy the machine is.

    Args:
        late: The ranks that do.
        seconds: How much later.
    """

    def __init__(self, name, late, seconds):
        self.name, self.late, self.seconds = name, late, seconds
        self.count = 0

    def come(self):
        self.count += 1
        if not self.late:
            return
        store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
        store.set(f"{self.name} {self.count} {rank}", "")
        if rank in self.late:
            store.wait([f"{self.name} {self.count} {each}" for each in range(dist.get_world_size())])
            time.sleep(self.seconds)


class Samples(Dataset):
    """Samples that some ranks get late; and one that some rank dies of."""

    def __init__(self, samples, place, fatal):
        self.samples, self.place, self.fatal = samples, place, fatal

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.place.come()
        if self.place.count == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.samples[index]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="has a folder for each loop")
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=["raw"], help="whose loops train, each in turn")
    parser.add_argument("--ranks", type=int, help="how many to fork; without it torchrun has started us on each")
    parser.add_argument("--attempts", type=int, default=1, help="how often the ranks are forked, one after the other")
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--slow-data", type=int, nargs="+", default=[], help="the ranks whose data is slow")
    parser.add_argument("--slow-compute", type=int, nargs="+", default=[], help="the ranks whose model is slow")
    parser.add_argument("--killed", type=int, help="the rank that is killed in a window of the last attempt")
    parser.add_argument("--full", type=int, help="the rank that can write no file of some size")
    return parser.parse_args()


def loader(args, out, samples):
    """Batches of one."""
    fatal = 6 if dist.get_rank() == args.killed else None
    return DataLoader(Samples(samples, Place(f"{out} data", args.slow_data, LATE_S), fatal), batch_size=1)


def train(args, out):
    torch.set_num_threads(1)
    place = Place(f"{out} model", args.slow_compute, LATE_S)
    layers = [torch.nn.Linear(64, 64) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with perfhooks.Profiler(**OPTIONS, out=out) as prof:
        for step, batch in enumerate(prof.steps(loader(args, out, torch.ones(400, 64))), 1):
            place.come()
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == args.steps:
                break
    prof.wait()


def train_with_lightning(args, out):
    import lightning_training as tiny

    callback = tiny.ProfilerCallback(**OPTIONS, out=out)
    chosen = {"devices": dist.get_world_size(), "strategy": "ddp", "logger": False, "enable_checkpointing": False}
    trainer = tiny.pl.Trainer(callbacks=[callback], max_steps=args.steps, **tiny.QUIET | chosen)
    trainer.fit(tiny.Tiny(), loader(args, out, tiny.Numbers(400)))


def train_with_mmengine(args, out):
    import mmengine_training as tiny

    tiny.trained(
        f"{out}-work",
        tiny.ProfilerHook(**OPTIONS, out=out),
        train_dataloader=loader(args, out, tiny.Samples()),
        train_cfg={"by_epoch": False, "max_iters": args.steps},
        launcher="pytorch",
        cfg={"model_wrapper_cfg": {"type": "MMDistributedDataParallel", "device_ids": None}},
    )


LOOPS = {"raw": train, "lightning": train_with_lightning, "mmengine": train_with_mmengine}


def train_on_a_rank(given):
    if dist.get_rank() == given.full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for loop in given.loops:
        LOOPS[loop](given, given.out / loop)
    dist.destroy_process_group()


def fork(given, rank, meeting):
    child = os.fork()
    if child == 0:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(given.ranks))
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=given.ranks)
        train_on_a_rank(given)
        sys.exit()  # and not on with the launcher's work
    return child


def launch(given):
    """Write the exit codes of the ranks of each attempt."""
    fatal, given.killed = given.killed, None
    for attempt in range(1, given.attempts + 1):
        if attempt == given.attempts:
            given.killed = fatal
        children = [fork(given, rank, f"{given.out}-meeting{attempt}") for rank in range(given.ranks)]
        print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children], flush=True)


if __name__ == "__main__":
    asked = arguments()
    if asked.ranks is None:
        dist.init_process_group("gloo")
        train_on_a_rank(asked)
    else:
        launch(asked)
