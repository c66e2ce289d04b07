"""Memory of one window, as CSV."""

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
class Memory:
    """Memory over time, ``rank0.memory.csv``, and who had allocated what lived at the peak, ``rank0.memory.peak.csv``.

    It needs ``profile_memory``, without which there are no files; with ``with_stack`` the second one tells the source.
    """

    rows: int = 2000
    """About how many rows each device has in the first file; the peak is one of them, exactly."""

    def __post_init__(self) -> None:
        if not isinstance(self.rows, int) or isinstance(self.rows, bool) or self.rows < 1:
            raise OptionError(f"rows must be an integer >= 1, got {self.rows!r}")

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:  # noqa: ARG002 -- the form of a handler
        """Two files."""
        from perfhooks.trace import memory

        if len(trace.instants.time):
            yield csv("memory.csv", memory.thinned(memory.over_time(trace), self.rows))
            yield csv("memory.peak.csv", memory.alive_at_peak(trace))
