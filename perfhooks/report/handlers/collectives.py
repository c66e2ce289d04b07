"""The table of collectives, as CSV: what the ranks of a job are compared by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from perfhooks.report.handlers.tables import csv
from perfhooks.run.layout import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from perfhooks.report.handlers.artifact import Artifact
    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace

_KEPT: Final = (
    *("operation", "backend", "group", "group_size", "dtype", "bytes"),
    *("duration_ms", "exposed_ms", "bus_gb_per_s", "device", "stream"),
)
"""Names of kernels are in the table of kernels: here they would be half of the file."""


@dataclass(frozen=True, kw_only=True)
class CollectiveTable:
    """What a rank said to the others: ``rank0.collectives.csv``, a row each by time; no file where there is none."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file."""
        found = rows(capture, trace)
        if found.height:
            yield csv(COLLECTIVES, found)


def rows(capture: Capture, trace: Trace) -> pl.DataFrame:
    """The collectives of a window, as `trace.tables.collectives` defines them, less those launched before it.

    ``rank`` comes first, and ``start_ns`` takes the place of ``start_ms``: nanoseconds since 1970 by the clock of the
    host, so that those of several ranks can be compared.
    """
    import polars as pl

    from perfhooks.trace.model import epoch
    from perfhooks.trace.tables.collectives import of_window

    table = capture.tables(trace).collectives.filter(of_window(trace))
    begin = epoch(trace.metadata) + (int(trace.start.min()) if len(trace) else 0)
    start = (table["start_ms"] * 1e6).round().cast(pl.Int64) + begin
    return table.select(pl.lit(capture.rank, pl.Int64).alias("rank"), "step", pl.Series("start_ns", start), *_KEPT)
