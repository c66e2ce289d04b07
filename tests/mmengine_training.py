"""A model, a dataset and a runner so small that a training takes a tenth of a second."""

import csv
import itertools
import json
import logging
from pathlib import Path

import pytest
import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.logging import MMLogger
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader, Dataset, TensorDataset

from perfhooks.core import options
from perfhooks_mmengine import ProfilerHook

_NUMBERS = itertools.count()

EPOCHS = {"by_epoch": True, "max_epochs": 2}
"""Two epochs of eight iterations."""
ITERATIONS = {"by_epoch": False, "max_iters": 16}
"""The same number of iterations as one stretch."""

LOADING = (
    "ignore:.*TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD.*:UserWarning",
    "ignore:.*torch.load.*weights_only=False.*:FutureWarning",
)
"""What torch says when mmengine loads its own checkpoints."""


class Tiny(BaseModel):
    """One linear layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, inputs, labels, mode="loss"):
        scores = self.layer(inputs)
        return {"loss": torch.nn.functional.cross_entropy(scores, labels)} if mode == "loss" else list(scores)


class Samples(Dataset):
    """Sixteen samples."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 2


class Count(BaseMetric):
    """The number of samples."""

    def process(self, data_batch, data_samples):
        self.results += [1] * len(data_samples)

    def compute_metrics(self, results):
        return {"count": len(results)}


def batches(count, *, dataset=None, **more):
    """A loader of ``count`` batches."""
    samples = TensorDataset(torch.randn(2 * count, 4), torch.zeros(2 * count, dtype=torch.long))
    return DataLoader(dataset or samples, batch_size=2, **more)


def settings(work_dir, *hooks, train_cfg=EPOCHS, length=None, **more):
    """What a runner takes, with some hooks as mmengine's ``custom_hooks`` takes them."""
    # an iteration-based loop sleeps for two seconds where its data begin again
    length = length or (8 if train_cfg["by_epoch"] else train_cfg["max_iters"])
    return {
        "model": Tiny(),
        "work_dir": str(work_dir),
        "train_dataloader": batches(length),
        "train_cfg": dict(train_cfg),
        "optim_wrapper": {"optimizer": {"type": "SGD", "lr": 0.01}},
        "custom_hooks": list(hooks),
        "default_hooks": {"checkpoint": None},
        "experiment_name": f"test{next(_NUMBERS)}",
        "log_level": "WARNING",
        **more,
    }


def validation(length=5):
    """What a runner takes to validate."""
    return {"val_dataloader": batches(length), "val_cfg": {}, "val_evaluator": Evaluator(Count())}


def on_test(length=5):
    """What a runner takes to test."""
    return {"test_dataloader": batches(length), "test_cfg": {}, "test_evaluator": Evaluator(Count())}


def runner(work_dir, *hooks, **more):
    """A runner with some hooks."""
    return Runner(**settings(work_dir, *hooks, **more))


def trained(work_dir, *hooks, **more):
    """A runner that has trained."""
    made = runner(work_dir, *hooks, **more)
    made.train()
    return made


def windows(runner, *, stage=""):
    """The folders of the windows that a runner recorded, in order."""
    run = Path(runner.log_dir) / "perf" / runner.timestamp
    for hook in runner.hooks:
        for profiler in hook.profilers.values() if isinstance(hook, ProfilerHook) else ():
            assert profiler.wait(250)
    return sorted(folder for folder in run.iterdir() if folder.is_dir() and folder.name.startswith(stage))


def names(runner, **more):
    return [folder.name for folder in windows(runner, **more)]


def rows(window, rank=0):
    """The step table of a window, numbers as numbers."""
    with (window / f"rank{rank}.steps.csv").open() as file:
        return [
            {name: float(value) if value and name != "stage" else value for name, value in row.items()}
            for row in csv.DictReader(file)
        ]


def steps(runner, **more):
    """The steps that all windows recorded."""
    return [int(row["step"]) for window in windows(runner, **more) for row in rows(window)]


def capture(window, rank=0):
    """The facts of a window."""
    return json.loads((window / f"rank{rank}.capture.json").read_text())


@pytest.fixture
def tidy(monkeypatch):
    """Files are made at once, and mmengine's loggers, which leave their files open, are closed."""
    monkeypatch.setitem(options.DEFAULTS, "background", False)
    yield
    for logger in list(MMLogger._instance_dict.values()):
        for handler in list(logger.handlers):
            if isinstance(handler, logging.FileHandler):
                handler.close()
                logger.removeHandler(handler)
