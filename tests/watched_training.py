"""A training that goes on until a file says stop; a script, for one process or for several that meet in a file."""

import argparse
import contextlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import perfhooks

TOGETHER = 20
"""Steps after which the ranks wait for each other: until then each has its own speed."""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--stop", required=True)
    parser.add_argument("--meeting")
    parser.add_argument("--pause", type=float, default=0.001, help="seconds that a step of this rank sleeps")
    args = parser.parse_args()
    if args.meeting:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", init_method=f"file://{args.meeting}", rank=rank, world_size=world)
    matrix = torch.ones(8, 8)
    model = torch.nn.Linear(8, 8)
    if args.meeting:
        model = torch.nn.parallel.DistributedDataParallel(model)
    with perfhooks.Profiler(
        schedule="on request", on_trace_ready="steps", out=args.out, run="job", poll=0.05, exit_timeout=5
    ) as prof:
        step = 0
        while not Path(args.stop).exists():
            matrix @ matrix
            time.sleep(args.pause)
            step += 1
            if args.meeting and step % TOGETHER == 0:
                with contextlib.suppress(RuntimeError):  # the other one has ended
                    dist.barrier()  # wait in a collective
            if args.meeting and step % TOGETHER == TOGETHER // 2:
                with contextlib.suppress(RuntimeError):
                    model(matrix).sum().backward()  # wait in a backward pass
            prof.step()


if __name__ == "__main__":
    main()
