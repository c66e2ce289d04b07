"""Align the clocks of several ranks at the ends of collectives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONVERGED_MS: Final = 1e-4
"""Maximum correction of a clock, in ms, after which the iteration stops."""


@dataclass(frozen=True)
class Clocks:
    offset_ms: Mapping[int, float] = field(default_factory=dict)
    """Offset to add to the times of each rank, in ms; 0 for the lowest rank of each group that common collectives
    connect.
    """
    error_ms: float | None = None
    error_95_ms: float | None = None


def align(ends: pl.DataFrame, clocks: Mapping[int, str] | None = None) -> Clocks:
    """Find the clock offsets for which synchronizing collectives end on all ranks at the same time.

    The end of a collective is the median of the aligned ends on all ranks. The offset of a clock is the median
    difference between ends on this clock and the ends of the collectives. Ends and offsets are updated alternately
    until they converge. An offset smaller than the sum of the errors of both clocks is set to 0.
    """
    if not ends.height:
        return Clocks()
    end = pl.col("end_ms") - pl.col("end_ms").min()
    rows = (
        _thin(ends).select("match", "rank", clock=_clock_numbers(clocks or {}), own=end, end=end).sort("clock", "rank")
    )
    rows = rows.with_columns(island=_find_islands(rows))
    for _ in range(50):
        rows = _with_lateness(rows).with_columns(move=-pl.col("late").median().over("clock"))
        # the first clock of each group of connected clocks is the reference
        rows = rows.with_columns(move=pl.col("move") - pl.col("move").first().over("island"))
        rows = rows.with_columns(end=pl.col("end") + pl.col("move"))
        if rows.select(pl.col("move").abs().max()).item() < _CONVERGED_MS:
            break
    rows = _with_lateness(rows)
    late = pl.col("late").abs()
    by_clock = rows.group_by("clock", maintain_order=True).agg(
        pl.col("rank").unique(),
        island=pl.col("island").first(),
        offset=(pl.col("end") - pl.col("own")).first(),
        error=late.quantile(0.95),
    )
    # with two clocks, the error of each clock is half of the difference
    error = pl.col("error") + pl.col("error").first().over("island")
    by_clock = by_clock.with_columns(offset=pl.when(pl.col("offset").abs() > error).then("offset").otherwise(0.0))
    offsets = dict(by_clock.explode("rank").sort("rank").select("rank", "offset").iter_rows())
    return Clocks(offsets, *rows.select(late.median(), late.quantile(0.95).alias("95")).row(0))


def _clock_numbers(clocks: Mapping[int, str]) -> pl.Expr:
    first: dict[str, int] = {}
    lowest = {rank: first.setdefault(name, rank) for rank, name in sorted(clocks.items())}
    return pl.col("rank").replace(lowest) if lowest else pl.col("rank")


def _with_lateness(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(late=pl.col("end") - pl.col("end").median().over("match"))


def _thin(ends: pl.DataFrame) -> pl.DataFrame:
    stride = -(-ends.height // 2**18)
    return ends if stride == 1 else ends.filter(pl.col("match").rank("dense") % stride == 0)


def _find_islands(rows: pl.DataFrame) -> pl.Series:
    island = rows.select("match", "clock", island=pl.col("clock"))
    while True:
        step = island.with_columns(island=pl.col("island").min().over("match"))
        step = step.with_columns(island=pl.col("island").min().over("clock"))
        if step["island"].equals(island["island"]):
            return step["island"]
        island = step
