"""Another number of threads on a CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from perfhooks.run.circumstances import Circumstances
from perfhooks.trying.variants.variant import EXACT, on_cuda

if TYPE_CHECKING:
    from perfhooks.trying.ready import Ready


class Threads:
    """One thread where there are several; all processors where there is one."""

    name = "threads"
    summary = "one thread, or all of them where there was one"
    tolerance = EXACT

    def suits(self, call: Ready) -> bool:
        """Whatever runs on a CPU."""
        return not on_cuda(call)

    def changed(self, call: Ready) -> Ready | None:
        """The same call; None on a device, and where there is but one processor."""
        given = call.threads or torch.get_num_threads()
        wanted = 1 if given > 1 else Circumstances.current().cores
        return None if on_cuda(call) or wanted in (given, None) else replace(call, threads=wanted)
