"""``perfhooks try --loader``: the training's own loader is tried in the place of the training, and the script is ended.

The script runs as ever until it iterates a loader with gradients on, which is what feeds a training: not a validation
before it. There the loader is tried, what came of it is written down, and the process ends at once. Of several ranks
the first one tries its own, and the others end there.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core.guard import cause_of, logger
from perfhooks.run.job import current_job
from perfhooks.run.publishing import publish_json

if TYPE_CHECKING:
    from perfhooks.record.launch.command_line import Request


_LEAST_S: Final = 0.1
"""Minimum time of a trial: one batch of each setting."""
_OF_TIME: Final = 0.9
"""Share of the time for the trial. The end of its workers takes the other tenth."""


def listen(module: Any, asked: Request) -> None:
    """Have the first loader of a training tried.

    Args:
        module: ``torch.utils.data.dataloader``.
        asked: Says where to write, and how long it may take.
    """
    begin, owner = module.DataLoader.__iter__, os.getpid()

    @functools.wraps(begin)
    def begin_or_try(self: Any) -> Any:
        # a worker that was forked has this too, and a dataset may iterate a loader of its own
        is_here = os.getpid() == owner and multiprocessing.parent_process() is None
        if is_here and sys.modules["torch"].is_grad_enabled():
            module.DataLoader.__iter__ = begin
            _end_with(self, asked)
        return begin(self)

    module.DataLoader.__iter__ = begin_or_try


def _end_with(loader: Any, asked: Request) -> None:
    """Try a loader, write down what came of it, and end this process."""
    try:
        if current_job().rank == 0:
            file, kind = Path(asked.trial), type(loader).__name__
            publish_json(file, {"name": kind, "problem": f"the process was ended while its {kind} was tried"})
            try:
                from perfhooks.trials.loader_trial import try_loader  # torch is being imported when this module is

                left = max(asked.trial_ends - time.monotonic(), _LEAST_S)
                publish_json(file, try_loader(loader, seconds=_OF_TIME * left))
            except Exception as error:  # the command that waits for this process says it, in one line
                logger.debug("trying the loader failed", exc_info=True)
                publish_json(file, {"name": kind, "problem": f"trying it failed ({cause_of(error)})"})
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)  # what the script does at its end is about a training that was none
