"""Subscribes to events of the program when it imports modules of torch.

This module runs inside ``import torch``, so it imports neither torch nor modules that import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from perfhooks.record.launch import frameworks, loader_trials, loaders, step_signal
from perfhooks.record.launch.command_line import Request

if TYPE_CHECKING:
    from collections.abc import Callable


def imported(name: str, module: Any, began: int) -> None:
    request = Request.current()
    if request is not None and request.trial:
        if name == "torch.utils.data.dataloader":
            loader_trials.listen(module, request)
        return
    if name == "torch" and request is not None and request.changes is not None:
        importlib.import_module("perfhooks.record.launch.changes").listen(request)
    signal = step_signal.current(began)
    if signal is None:
        return
    actions: dict[str, Callable[[], object]] = {
        "torch": signal.listen,
        "torch._dynamo is coming": signal.before_dynamo,
        "torch._dynamo": signal.exclude_from_compile,
        "torch.optim.optimizer": lambda: signal.keep(module.register_optimizer_step_post_hook(signal.hook()).remove),
        "torch.utils.data.dataloader": lambda: signal.keep(loaders.listen(module, signal)),
        "mmengine.runner.runner": lambda: frameworks.hook_mmengine(module.Runner, signal),
        "transformers.trainer": lambda: frameworks.hook_transformers(module.Trainer, signal),
    }
    if name in actions:
        actions[name]()
