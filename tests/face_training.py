"""Tiny trainings under transformers, accelerate and Fabric: on the ranks of torchrun, or ended by a signal.

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
import lightning.fabric
import torch
import torch.distributed.fsdp
import transformers
from torch.utils.data import DataLoader, TensorDataset
from transformers_training import Numbers, Tiny

import perfhooks_accelerate
import perfhooks_fabric
import perfhooks_transformers

SCHEDULE = "skip_first=1 wait=1 warmup=1 active=3 repeat=1"
"""Steps 3 to 5."""
MOMENT = 4
"""The step in whose forward pass something happens."""
STEPS = 8
SIGNALS = {"sigterm": signal.SIGTERM, "ctrl-c": signal.SIGINT}


class Layer(torch.nn.Module):
    """A linear layer that counts its calls, and tells of one."""

    def __init__(self, happens):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.happens = happens
        self.calls = 0

    def forward(self, batch):
        if self.calls == MOMENT:
            self.happens()
        self.calls += 1
        return self.layer(batch)


def batches():
    # as many for each rank, however many there are
    world = int(os.environ.get("WORLD_SIZE", "1"))
    return DataLoader(TensorDataset(torch.randn(STEPS * world, 4)), batch_size=1)


def under_transformers(out, options, happens):
    callback = perfhooks_transformers.ProfilerCallback(SCHEDULE, **options)
    model = Tiny(before=lambda model: happens() if model.calls == MOMENT + 1 else None)
    group = {"ddp_backend": "gloo"} if "WORLD_SIZE" in os.environ else {}
    arguments = transformers.TrainingArguments(
        output_dir=str(out), max_steps=STEPS, per_device_train_batch_size=1, report_to=[], disable_tqdm=True,
        use_cpu=True, save_strategy="no", **group,
    )  # fmt: skip
    transformers.Trainer(model, arguments, train_dataset=Numbers(64), callbacks=[callback]).train()
    callback.summary()


def under_accelerate(out, options, happens):
    accelerator = accelerate.Accelerator(cpu=True, project_dir=str(out))
    layer = Layer(happens)
    model, optimizer, loader = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), 0.01), batches())
    with accelerator.profile(perfhooks_accelerate.ProfileKwargs(SCHEDULE, **options)) as prof:
        for (batch,) in prof.steps(loader):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    prof.wait()


def under_fsdp(out, options):
    """accelerate shards models on devices only; told that it does, it shards on CPUs too, by torch's `fully_shard`."""
    accelerate.state.AcceleratorState._reset_state()
    plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2)
    accelerator = accelerate.Accelerator(cpu=True, fsdp_plugin=plugin, project_dir=str(out))
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = accelerate.DistributedType.FSDP, plugin
    layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    model, optimizer, loader = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), 0.01), batches())
    if not isinstance(model, torch.distributed.fsdp.FSDPModule):
        sys.exit("it is not sharded")
    with accelerator.profile(perfhooks_accelerate.ProfileKwargs(SCHEDULE, **options)) as prof:
        for (batch,) in prof.steps(loader):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    prof.wait()


def under_fabric(out, options, happens):
    callback = perfhooks_fabric.ProfilerCallback(SCHEDULE, **options)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    how = {"strategy": "ddp"} if ranks > 1 else {}
    fabric = lightning.fabric.Fabric(accelerator="cpu", devices=ranks, callbacks=[callback], **how)
    fabric.launch()
    layer = Layer(happens)
    model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), 0.01))
    for (batch,) in callback.steps(fabric.setup_dataloaders(batches())):
        fabric.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    callback.stop()
    callback.summary()


FACES = {"transformers": under_transformers, "accelerate": under_accelerate, "fabric": under_fabric}


def options(folder):
    return {"on_trace_ready": ["trace", "steps"], "out": folder, "background": False}


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
        for name, train in FACES.items():
            train(Path(out, name), options(Path(out, name, "perf")), lambda: None)
        if hasattr(torch.distributed.fsdp, "FSDPModule"):  # since torch 2.6
            under_fsdp(Path(out, "fsdp"), options(Path(out, "fsdp", "perf")))
        torch.distributed.destroy_process_group()
        return
    codes = {}
    for name, train in FACES.items():
        for way in ways:
            folder = Path(out, f"{name}-{way}")

            def end(train=train, folder=folder, way=way):
                train(folder, options(folder / "perf"), lambda: os.kill(os.getpid(), SIGNALS[way]))

            codes[folder.name] = forked(end)
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
