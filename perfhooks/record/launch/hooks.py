"""What happens once torch's modules have been imported: the program is listened to from then on.

Runs in the middle of ``import torch``, so it imports nothing of torch and nothing that does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfhooks.record.launch import frameworks, loader_trials, loaders, step_signal
from perfhooks.record.launch.command_line import Request

if TYPE_CHECKING:
    from collections.abc import Callable


def imported(name: str, module: Any, began: int) -> None:
    """Take note of a module that has been imported, or, of torch itself, that is about to be.

    Args:
        name: One of those that `site` watches, or what it says of one that is about to be imported.
        module: What was imported.
        began: When this Python began to run our code, in nanoseconds of the monotonic clock.
    """
    asked = Request.current()
    if asked is not None and asked.trial:
        if name == "torch.utils.data.dataloader":
            loader_trials.listen(module, asked)
        return
    signal = step_signal.current(began)
    if signal is None:
        return
    act: dict[str, Callable[[], object]] = {
        "torch": signal.listen,
        "torch._dynamo is coming": signal.make_way_for_dynamo,
        "torch._dynamo": signal.keep_from_compiling,
        "torch.optim.optimizer": lambda: signal.keep(module.register_optimizer_step_post_hook(signal.hook()).remove),
        "torch.utils.data.dataloader": lambda: signal.keep(loaders.listen(module, signal)),
        "mmengine.runner.runner": lambda: frameworks.give_mmengine_its_hook(module.Runner, signal),
        "transformers.trainer": lambda: frameworks.give_transformers_its_callback(module.Trainer, signal),
    }
    if name in act:
        act[name]()
