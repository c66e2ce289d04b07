"""What the training had to work with: processors, threads, libraries; advice depends on it, and no trace says it."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import Any


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

    @classmethod
    def current(cls) -> Circumstances:
        """Of this process; torch is asked only where it is there already."""
        torch: Any = sys.modules.get("torch")
        settings: dict[str, Any] = {}
        if torch is not None:
            with contextlib.suppress(Exception):  # torch built without one of them
                settings["threads"] = torch.get_num_threads()
                for name, backend in (("onednn", torch.backends.mkldnn), ("cudnn", torch.backends.cudnn)):
                    settings[name] = bool(backend.is_available() and backend.enabled)
        return cls(cores=_cores(), ranks=_ranks(), **settings)

    @property
    def spare(self) -> int | None:
        """Processors for each rank that its operators leave free."""
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
