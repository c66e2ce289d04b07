"""What the tests of the Lightning callback share: a tiny module, a quiet trainer, and the files that a run left."""

import csv
import gzip
import json

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, Dataset

from perfhooks_lightning import ProfilerCallback

QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Numbers(Dataset):
    """As many random vectors as are asked for."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.full((4,), float(index))


def batches(count):
    """A loader of so many batches of two."""
    return DataLoader(Numbers(2 * count), batch_size=2)


class Tiny(pl.LightningModule):
    """One linear layer, and a hook before each training batch."""

    def __init__(self, before_step=None):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.before_step = before_step

    def loss(self, batch):
        return self.layer(batch).square().mean()

    def training_step(self, batch, batch_idx):
        if self.before_step is not None:
            self.before_step(self, batch_idx)
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        return self.loss(batch)

    def test_step(self, batch, batch_idx):
        return self.loss(batch)

    def predict_step(self, batch, batch_idx):
        return self.layer(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def profiler(folder, schedule, **options):
    """A callback that writes to a folder, at once, and only step tables unless told otherwise."""
    usual = {"on_trace_ready": ["steps"], "out": folder / "perf", "run": "run", "background": False}
    return ProfilerCallback(schedule, **usual | options)


def trainer(folder, *callbacks, **options):
    """A quiet trainer on one CPU."""
    options = {"logger": False, "enable_checkpointing": False, "default_root_dir": folder, "max_epochs": 1} | options
    return pl.Trainer(callbacks=list(callbacks), **QUIET, **options)


def fit(folder, callback, *, steps=8, module=None, val=None, ckpt_path=None, **options):
    """Train for a number of batches an epoch; give the trainer."""
    made = trainer(folder, callback, **options)
    made.fit(module or Tiny(), batches(steps), batches(val) if val else None, ckpt_path=ckpt_path)
    return made


def windows(callback, folder, run="run"):
    """The steps in the table of each window of a run, by the name of its folder, when all files are there."""
    return {name: [int(row["step"]) for row in rows] for name, rows in tables(callback, folder, run).items()}


def tables(callback, folder, run="run"):
    """The step table of each window of a run, by the name of its folder."""
    for each in callback.profilers.values():
        each.wait()
    return {path.parent.name: read(path) for path in sorted((folder / "perf" / run).glob("*/rank0.steps.csv"))}


def read(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def capture(folder, window, run="run"):
    """The facts of a window."""
    return json.loads((folder / "perf" / run / window / "rank0.capture.json").read_text(encoding="utf-8"))


def events(folder, window, run="run"):
    """The events of a window's trace."""
    with gzip.open(folder / "perf" / run / window / "rank0.pt.trace.json.gz") as file:
        return json.load(file)["traceEvents"]
