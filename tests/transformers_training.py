"""What the tests of the transformers callback share: a tiny model and a quiet Trainer."""

import torch
from face_files import at_once
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
    return ProfilerCallback(schedule, **at_once(folder) | options)


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
