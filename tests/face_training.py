"""Tiny trainings under integrations: on the ranks of torchrun, or ended by a signal.

    torchrun --standalone --nproc-per-node 2 face_training.py OUT
    python face_training.py OUT sigterm ctrl-c

Without torchrun each training is a forked process of its own, and the exit codes are written as JSON.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

import accelerate
import torch
import torch.distributed.fsdp
from integration_trainings import TRAININGS
from torch.utils.data import DataLoader, TensorDataset

import perfhooks_accelerate

SCHEDULE = "skip_first=1 wait=1 warmup=1 active=3 repeat=1"
"""Steps 3 to 5."""
MOMENT = 4
"""The step in whose forward pass something happens."""
STEPS = 8
SIGNALS = {"sigterm": signal.SIGTERM, "ctrl-c": signal.SIGINT}
FACES = ("transformers", "accelerate", "fabric")


def train(name, folder, happens=None):
    folder.mkdir(exist_ok=True)
    training = TRAININGS[name](folder)
    callback = training.callback(SCHEDULE, step_unit="optimizer", on_trace_ready=["trace", "steps"])
    training.train(callback, STEPS, before=lambda _, index: happens() if happens and index == MOMENT else None)
    training.summary(callback)


def under_fsdp(out):
    """accelerate shards models on devices only; told that it does, it shards on CPUs too, by torch's `fully_shard`."""
    accelerate.state.AcceleratorState._reset_state()
    plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2)
    accelerator = accelerate.Accelerator(cpu=True, fsdp_plugin=plugin, project_dir=str(out))
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = accelerate.DistributedType.FSDP, plugin
    layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    model, optimizer, loader = accelerator.prepare(
        layer, torch.optim.SGD(layer.parameters(), 0.01), DataLoader(TensorDataset(torch.randn(2 * STEPS, 4)))
    )
    if not isinstance(model, torch.distributed.fsdp.FSDPModule):
        sys.exit("it is not sharded")
    with accelerator.profile(
        perfhooks_accelerate.ProfileKwargs(SCHEDULE, ["trace", "steps"], out=out / "perf", background=False)
    ) as prof:
        for (batch,) in prof.steps(loader):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    prof.wait()


def forked(work):
    """Run something in a process of its own; its exit code, as a shell would say it."""
    child = os.fork()
    if child == 0:
        sys.stdout = sys.stderr
        work()
        sys.exit(0)  # and not on with the parent's loop
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main():
    torch.set_num_threads(1)
    out, *ways = sys.argv[1:]
    if not ways:
        for name in ("lightning", *FACES):
            train(name, Path(out, name))
        if hasattr(torch.distributed.fsdp, "FSDPModule"):  # since torch 2.6
            under_fsdp(Path(out, "fsdp"))
        torch.distributed.destroy_process_group()
        return
    codes = {}
    for name in FACES:
        for way in ways:
            folder = Path(out, f"{name}-{way}")

            def end(name=name, folder=folder, way=way):
                train(name, folder, lambda: os.kill(os.getpid(), SIGNALS[way]))

            codes[folder.name] = forked(end)
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
