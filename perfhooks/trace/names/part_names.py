from __future__ import annotations

import re
from typing import Final

from perfhooks.core import labels
from perfhooks.trace.names import ranges

_NAMES: Final = {
    labels.DATA: (
        *("data", "data load", "data loading", "dataload", "dataloading", "dataloader", "load data", "load batch"),
        *("data fetch", "fetch data", "data io", "next batch", "get batch", "wait for batch"),
    ),
    labels.TRANSFER: (
        *("transfer", "data transfer", "to device", "to gpu", "move to device", "move to gpu", "data to device"),
        *("copy batch to gpu", "copy batch to device", "h2d"),
    ),
    labels.FORWARD: ("forward", "forward pass", "model forward", "forward and loss", "fwd"),
    labels.BACKWARD: ("backward", "backward pass", "model backward", "loss backward", "bwd"),
    labels.OPTIMIZER: ("optimizer", "optimizer step", "optim", "optim step", "opt step", "zero grad"),
    labels.VALIDATION: ("validation", "validate", "evaluation", "evaluate", "eval"),
    labels.CHECKPOINT: ("checkpoint", "checkpointing", "save checkpoint"),
    labels.COMMUNICATION: ("communication",),
}
"""Label names of each part of the step, in lower case and without punctuation: ``## forward ##`` is ``forward``."""

_PARTS: Final = {name: part for part, names in _NAMES.items() for name in names}

_HOOKS: Final = {
    **dict.fromkeys(("train_dataloader_next", "predict_next"), labels.DATA),
    "batch_to_device": labels.TRANSFER,
    "training_step": labels.FORWARD,
    "backward": labels.BACKWARD,
    **dict.fromkeys(("optimizer_step", "optimizer_zero_grad", "lr_scheduler_step"), labels.OPTIMIZER),
    **dict.fromkeys(("validation_step", "val_next", "on_validation_model_zero_grad"), labels.VALIDATION),
    "save_checkpoint": labels.CHECKPOINT,
}

SAVE: Final = r"(?:^|/)torch/serialization\.py\(\d+\): save$"
_FRAMES: Final = (
    (re.compile(r"torch/autograd/__init__\.py\(\d+\): (?:backward|grad)$"), labels.BACKWARD),
    (re.compile(SAVE), labels.CHECKPOINT),
    (re.compile(r"torch/distributed/checkpoint/state_dict_saver\.py\(\d+\): (?:async_)?save$"), labels.CHECKPOINT),
    (re.compile(f"^{re.escape(ranges.MODULE)}"), labels.FORWARD),
)

_RANGES: Final = (
    *((name, labels.OPTIMIZER) for name in (ranges.UPDATE, ranges.ZERO_GRAD)),
    *((name, labels.FORWARD) for name in ranges.WRAPPERS),
)
"""Prefixes of the ranges that torch writes around a part of the step."""

_AUTOMATIC: Final = {name: part for part, name in labels.AUTOMATIC.items()}


def readable(name: str) -> str:
    if name.startswith(ranges.LOADER):
        return "waiting for data"
    return "step" if name.startswith(labels.STEP_MARK[:-1]) else _AUTOMATIC.get(name, name)


def of_label(name: str) -> str | None:
    if name.startswith(ranges.LIGHTNING):
        return _HOOKS.get(re.split(r"[.\]]", name)[-1])
    return _PARTS.get(" ".join(re.findall(r"[a-z0-9]+", name.lower())))


def of_automatic(name: str) -> str | None:
    return _AUTOMATIC.get(name)


def of_range(name: str) -> str | None:
    return next((part for start, part in _RANGES if name.startswith(start)), None)


def of_frame(name: str) -> str | None:
    return next((part for pattern, part in _FRAMES if pattern.search(name)), None)
