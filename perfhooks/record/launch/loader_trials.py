"""Measures the loader of a training inside its script, and then ends the script.

The first loader that is iterated with gradients enabled is measured, because a validation disables gradients.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfhooks.core.clocks import time
from perfhooks.core.guard import cause_of, logger
from perfhooks.run.job import current_job
from perfhooks.run.publishing import publish_json

if TYPE_CHECKING:
    from perfhooks.record.launch.command_line import Request


def listen(module: Any, request: Request) -> None:
    begin, owner = module.DataLoader.__iter__, os.getpid()

    @functools.wraps(begin)
    def begin_or_try(self: Any) -> Any:
        # a forked worker inherits the wrapper, and a dataset may iterate its own loader
        is_here = os.getpid() == owner and multiprocessing.parent_process() is None
        if is_here and sys.modules["torch"].is_grad_enabled():
            module.DataLoader.__iter__ = begin
            _end_with(self, request)
        return begin(self)

    module.DataLoader.__iter__ = begin_or_try


def stop_file(result: Path) -> Path:
    """Return the file whose creation ends the trial early. A signal would also end the loader workers."""
    return result.with_suffix(".stop")


def _end_with(loader: Any, request: Request) -> None:
    try:
        if current_job().rank == 0:
            file, kind = Path(request.trial), type(loader).__name__
            publish_json(file, {"name": kind, "problem": f"the process was ended while its {kind} was measured"})
            try:
                from perfhooks.trials.loader_trial import measure_loader

                measure_loader(
                    loader,
                    0.9 * max(request.trial_ends - time.monotonic(), 0.1),
                    publish=functools.partial(publish_json, file),
                    is_stopped=stop_file(file).exists,
                )
            except Exception as error:
                logger.debug("trying the loader failed", exc_info=True)
                publish_json(file, {"name": kind, "problem": f"the measurement failed ({cause_of(error)})"})
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)  # skip exit handlers of the script: no training took place
