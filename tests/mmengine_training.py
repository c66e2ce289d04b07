"""A model, a dataset and a runner so small that a training takes a tenth of a second."""

import itertools
import logging

import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader, TensorDataset

_NUMBERS = itertools.count()


class Tiny(BaseModel):
    """One linear layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, inputs, labels, mode="loss"):
        scores = self.layer(inputs)
        return {"loss": torch.nn.functional.cross_entropy(scores, labels)} if mode == "loss" else list(scores)


def batches(count):
    """A loader of ``count`` batches."""
    return DataLoader(TensorDataset(torch.randn(2 * count, 4), torch.zeros(2 * count, dtype=torch.long)), batch_size=2)


EPOCHS = {"by_epoch": True, "max_epochs": 2}
"""Two epochs of eight iterations."""
ITERATIONS = {"by_epoch": False, "max_iters": 16}
"""The same number of iterations as one stretch."""


def runner(work_dir, *hooks, train_cfg=EPOCHS, length=8, **more):
    """A runner with some hooks, given as mmengine's ``custom_hooks`` takes them."""
    settings = {
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
    return Runner(**settings)


def close_logs():
    """Close the files of mmengine's loggers, which it leaves open."""
    from mmengine.logging import MMLogger

    for logger in list(MMLogger._instance_dict.values()):
        for handler in list(logger.handlers):
            if isinstance(handler, logging.FileHandler):
                handler.close()
                logger.removeHandler(handler)
