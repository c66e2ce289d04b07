"""What the tests of the transformers callback share: a tiny model, a quiet Trainer, and the files that a run left."""

import csv
import gzip
import json

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from perfhooks_transformers import ProfilerCallback


class Numbers(Dataset):
    """As many constant vectors as are asked for."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return {"x": torch.full((4,), float(index)), "labels": torch.zeros(2)}


class Tiny(torch.nn.Module):
    """One linear layer that gives its loss, as the Trainer wants it."""

    def __init__(self, before=None):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.before = before
        self.calls = 0

    def forward(self, x, labels=None):
        self.calls += 1
        if self.before is not None:
            self.before(self)
        out = self.layer(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


def profiler(folder, schedule, **options):
    """A callback that writes to a folder, at once, and only step tables unless told otherwise."""
    usual = {"on_trace_ready": ["steps"], "out": folder / "perf", "run": "run", "background": False}
    return ProfilerCallback(schedule, **usual | options)


def trainer(folder, *callbacks, model=None, steps=8, kind=Trainer, **options):
    """A quiet Trainer on the CPU, with batches of two."""
    accumulate = options.get("gradient_accumulation_steps", 1)
    usual = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "max_steps": steps,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "dataloader_pin_memory": False,
    }
    return kind(
        model=model or Tiny(),
        args=TrainingArguments(**usual | options),
        train_dataset=Numbers(2 * steps * accumulate),
        eval_dataset=Numbers(10),
        callbacks=list(callbacks),
    )


def read(path):
    """A step table, numbers as numbers."""
    with path.open(encoding="utf-8") as file:
        return [
            {name: float(value) if value and name != "stage" else value for name, value in row.items()}
            for row in csv.DictReader(file)
        ]


def tables(folder, run="run"):
    """The step table of each window of a run, by the name of its folder."""
    return {path.parent.name: read(path) for path in sorted((folder / "perf" / run).glob("*/rank0.steps.csv"))}


def windows(folder, run="run"):
    """The steps in the table of each window of a run, by the name of its folder."""
    return {name: [int(row["step"]) for row in rows] for name, rows in tables(folder, run).items()}


def capture(folder, window, run="run"):
    """The facts of a window."""
    return json.loads((folder / "perf" / run / window / "rank0.capture.json").read_text(encoding="utf-8"))


def events(folder, window, run="run"):
    """The events of a window's trace."""
    with gzip.open(folder / "perf" / run / window / "rank0.pt.trace.json.gz") as file:
        return json.load(file)["traceEvents"]


def parts(row):
    """The parts of a step that took time."""
    names = ("data", "transfer", "forward", "backward", "optimizer", "validation", "checkpoint")
    return {name for name in names if row[f"{name}_ms"]}
