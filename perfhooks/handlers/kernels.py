"""The table of kernels, as CSV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfhooks.errors import OptionError
from perfhooks.handlers.tables import csv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.handlers.artifact import Artifact
    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace


@dataclass(frozen=True, kw_only=True)
class KernelTable:
    """What the devices ran: ``rank0.kernels.csv``; no file where no device was traced."""

    by_launch: bool = False
    """One row for each launching operator and kernel, rather than for each kernel."""
    row_limit: int | None = None
    """Keep this many rows, those with the most time; None keeps all."""

    def __post_init__(self) -> None:
        if not isinstance(self.by_launch, bool):
            raise OptionError(f"by_launch must be true or false, got {self.by_launch!r}")
        if self.row_limit is not None and (not isinstance(self.row_limit, int) or self.row_limit < 1):
            raise OptionError(f"row_limit must be an integer >= 1 or None, got {self.row_limit!r}")

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file, most time first."""
        if trace.is_device_traced:
            tables = capture.tables(trace)
            table = tables.kernels_by_launch if self.by_launch else tables.kernels
            yield csv("kernels.csv", table if self.row_limit is None else table.head(self.row_limit))
