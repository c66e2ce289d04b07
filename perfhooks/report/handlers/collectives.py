"""The table of collectives, for the comparison of ranks."""

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

_COLUMNS: Final = (
    *("operation", "backend", "group", "group_size", "dtype", "bytes"),
    *("duration_ms", "exposed_ms", "bus_gb_per_s", "device", "stream"),
)
"""Columns of the file. The names of kernels are omitted, because they would double its size."""


@dataclass(frozen=True, kw_only=True)
class CollectiveTable:
    """The collectives of a rank, earliest first: ``rank0.collectives.csv``.

    Windows without collectives have no file.
    """

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Return one file."""
        table = rows(capture, trace)
        if table.height:
            yield csv(COLLECTIVES, table)


def rows(capture: Capture, trace: Trace) -> pl.DataFrame:
    """Return the collectives of the window.

    ``start_ns`` (since 1970, by the clock of the host) replaces ``start_ms``, so that ranks can be compared.
    """
    import polars as pl

    from perfhooks.trace.model import epoch
    from perfhooks.trace.tables.collectives import of_window

    table = capture.tables(trace).collectives.filter(of_window(trace))
    begin = epoch(trace.metadata) + (int(trace.start.min()) if len(trace) else 0)
    start = (table["start_ms"] * 1e6).round().cast(pl.Int64) + begin
    return table.select(pl.lit(capture.rank, pl.Int64).alias("rank"), "step", pl.Series("start_ns", start), *_COLUMNS)
