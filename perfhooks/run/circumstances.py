"""What the training had to work with: processors, threads, libraries; advice depends on it, and no trace says it."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import Any, Final

BUSY: Final = 0.05
"""From this share of its time on, that the thread which steps waited for a processor is said: on a machine with nothing
else to do it is below 1%, with one other busy program for two processors below 4%."""


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """Of one process, when a window was recorded; None is what could not be told."""

    cores: int | None = None
    """Processors that it may run on."""
    ranks: int = 1
    """Processes of its job that share them, as the launcher says."""
    threads: int | None = None
    """Threads that one operator of torch uses on the host."""
    onednn: bool | None = None
    """Whether torch may use oneDNN, and has it."""
    cudnn: bool | None = None
    """The same of cuDNN."""
    queued: float | None = None
    """What share of its time the thread that steps waited for a processor, since the window before this one,
    or since the process began."""

    @classmethod
    def current(cls, queued: float | None = None) -> Circumstances:
        """Of this process; torch is asked only where it is there already.

        Args:
            queued: See there.
        """
        torch: Any = sys.modules.get("torch")
        settings: dict[str, Any] = {}
        if torch is not None:
            with contextlib.suppress(Exception):  # torch built without one of them
                settings["threads"] = torch.get_num_threads()
                for name, backend in (("onednn", torch.backends.mkldnn), ("cudnn", torch.backends.cudnn)):
                    settings[name] = bool(backend.is_available() and backend.enabled)
        return cls(cores=_cores(), ranks=_ranks(), queued=queued, **settings)

    @property
    def is_busy(self) -> bool:
        """Whether the training had to wait for processors: what it took by the clock is then more than it needs."""
        return self.queued is not None and self.queued >= BUSY

    @property
    def spare(self) -> int | None:
        """Processors for each rank that its operators, and other programs, leave free."""
        if self.is_busy:
            return 0
        if self.cores is None or self.threads is None:
            return None
        return max(self.cores // self.ranks - self.threads, 0)


def _cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _ranks() -> int:
    said = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(int(said), 1) if said.isdigit() else 1
