"""Memory of one window, as CSV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

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

    needs: ClassVar[str] = "profile_memory"
    """The recording option without which there is nothing to make."""

    rows: int = 2000
    """About how many rows each device has in the first file; the peak is one of them, exactly."""

    def __post_init__(self) -> None:
        if not isinstance(self.rows, int) or isinstance(self.rows, bool) or self.rows < 1:
            raise OptionError(f"rows must be an integer >= 1, got {self.rows!r}")

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Two files."""
        from perfhooks.trace.tables import memory

        if len(trace.instants.time):
            tables = capture.tables(trace)
            yield csv("memory.csv", memory.thinned(tables.memory, self.rows))
            yield csv("memory.peak.csv", tables.alive_at_peak)
