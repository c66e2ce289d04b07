from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from perfhooks.core.errors import OptionError
from perfhooks.core.guard import enable_console_log, guard
from perfhooks.core.labels import DEVICE_STOPPED
from perfhooks.core.schedule import Planned
from perfhooks.record.loop.handover import Handover
from perfhooks.record.loop.like_torch.results import RecordedWindow
from perfhooks.report.handlers import Handler
from perfhooks.run.folder import Run
from perfhooks.run.job import current_job
from perfhooks.run.remote import check_out

if TYPE_CHECKING:
    from pathlib import Path


def on_trace_ready(
    *wanted: str | Mapping[str, Any] | Handler,
    out: str | os.PathLike[str] = "perf",
    run: str | None = None,
    stage: str = "train",
) -> Callable[[Any], None]:
    """Make a trace handler for a plain ``torch.profiler.profile``.

    Args:
        *wanted: Handlers as names, mappings or objects. Without any, the default handlers are used.
        out: Folder of runs.
        run: Name of the run; None uses the job id of torchrun or SLURM, else time and process id.
        stage: Name of the loop in file names and tables.

    Returns:
        A function for ``on_trace_ready``. After the function has saved the trace, the profile's own
        ``export_chrome_trace`` raises an error; ``perfhooks.Profiler`` can still export the trace.

    Raises:
        OptionError: A handler is invalid, or ``out`` cannot be written.
    """
    for handler in wanted:
        if callable(handler) or not isinstance(handler, str | Mapping | Handler):
            raise OptionError(
                "on_trace_ready() accepts only handlers that read the saved trace (a name, a mapping or a Handler), "
                f"got {handler!r}"
            )
    check_out(out)
    enable_console_log()
    runs: list[Run] = []
    handovers: list[Handover] = []

    def handle(profile: Any) -> None:
        with guard("handling the trace"):
            if not runs:
                runs.append(Run.open(out, run, current_job(), {}))
                handovers.append(Handover(list(wanted) or None, _options(profile), stage=stage))
                handovers[0].open(runs[0])
            handovers[0].save(_Foreign(profile), release=None)

    return handle


def _options(profile: Any) -> dict[str, bool]:
    return {name: bool(getattr(profile, name, False)) for name in ("record_shapes", "profile_memory", "with_stack")}


class _Foreign(RecordedWindow):
    def __init__(self, profile: Any) -> None:
        self._profile = profile
        self.ready = True
        ended = profile.step_num
        # torch increments its count before it calls the handler, except at the end of the `with`
        is_complete = ended > 0 and _action(profile, ended - 1) == "RECORD_AND_SAVE"
        self.reached = ended
        self.partial = None if is_complete or not profile.record_steps else "stopped before its last step"
        stopped = profile.current_action.name == "DEVICE_STOPPED"
        self.notes = [DEVICE_STOPPED] if stopped else []
        last = ended - 1 if is_complete else ended
        self.first = last
        while self.first > 0 and _action(profile, self.first - 1) == "RECORD":
            self.first -= 1
        self.planned = Planned(self.first, self.first, last) if is_complete else None

    def save(self, path: Path) -> None:
        self._profile.export_chrome_trace(os.fspath(path))


def _action(profile: Any, step: int) -> str:
    return str(profile.schedule(step).name)
