"""The modules of one window, as CSV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from perfhooks.handlers.tables import csv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.handlers.artifact import Artifact
    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Modules:
    """What each ``nn.Module`` cost, forward and backward: ``rank0.modules.csv``; it needs ``with_stack``."""

    needs: ClassVar[str] = "with_stack"
    """The recording option without which there is nothing to make."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file, in the order of the tree of modules."""
        yield csv("modules.csv", capture.tables(trace).modules)
