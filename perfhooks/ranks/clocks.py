"""The clocks of several ranks, brought together at the ends of collectives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROUNDS: Final = 50
_STILL_MS: Final = 1e-4
_ROWS: Final = 1 << 18
"""So many ends are enough: an offset is a median, and clocks drift little in a window."""


@dataclass(frozen=True)
class Clocks:
    """How the clocks of some ranks differ."""

    offset_ms: Mapping[int, float] = field(default_factory=dict)
    """What to add to the times of a rank, to have them by the clock of the lowest rank that it can be compared with."""
    error_ms: float | None = None
    """After that, half of all ends are this close to the middle of those of their collective."""
    error_95_ms: float | None = None
    """So close are 95 of 100."""


def align(ends: pl.DataFrame) -> Clocks:
    """Find the offsets with which collectives that all wait for end on all ranks at once.

    The end of a collective is the median of its ends on all ranks, each by the rank's own clock plus its offset; the
    offset of a rank is the median of what its ends lack to these. Both are taken in turn until nothing moves, which is
    least squares over all ends, but with medians, so that a few odd ends count for nothing. It reaches ranks that share
    a collective only by way of others; those that share none are not compared. An offset no larger than the
    errors of both ranks' ends (95 of 100) together is taken for none: ranks of one node have one clock.

    Args:
        ends: ``match`` (which collective), ``rank`` and ``end_ms``; a row for each rank of each.
    """
    if not ends.height:
        return Clocks()
    rows = _thinned(ends).select("match", "rank", end=pl.col("end_ms") - pl.col("end_ms").min())
    rows = rows.with_columns(own=pl.col("end"))
    for _ in range(_ROUNDS):
        rows = _late(rows).with_columns(move=-pl.col("late").median().over("rank"))
        rows = rows.with_columns(end=pl.col("end") + pl.col("move"))
        if rows.select(pl.col("move").abs().max()).item() < _STILL_MS:
            break
    rows = _late(rows).with_columns(island=_islands(rows))
    late = pl.col("late").abs()
    found = rows.group_by("rank").agg(
        island=pl.col("island").first(),
        offset=(pl.col("end") - pl.col("own")).first(),
        error=late.quantile(0.95),
    )
    origin = {name: pl.col(name).sort_by("rank").first().over("island") for name in ("offset", "error")}
    # of two ranks, either has half of what their ends differ by
    found = found.with_columns(offset=pl.col("offset") - origin["offset"], error=pl.col("error") + origin["error"])
    found = found.with_columns(offset=pl.when(pl.col("offset").abs() > pl.col("error")).then("offset").otherwise(0.0))
    error, error_95 = rows.select(late.median(), late.quantile(0.95).alias("95")).row(0)
    return Clocks(dict(found.sort("rank").select("rank", "offset").iter_rows()), error, error_95)


def _late(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(late=pl.col("end") - pl.col("end").median().over("match"))


def _thinned(ends: pl.DataFrame) -> pl.DataFrame:
    """Some of the collectives, all ranks of each."""
    every = -(-ends.height // _ROWS)
    return ends if every == 1 else ends.filter(pl.col("match").rank("dense") % every == 0)


def _islands(rows: pl.DataFrame) -> pl.Series:
    """For each row the lowest rank that its rank can be compared with, over any number of others."""
    island = rows.select("match", "rank", island=pl.col("rank"))
    while True:
        step = island.with_columns(island=pl.col("island").min().over("match"))
        step = step.with_columns(island=pl.col("island").min().over("rank"))
        if step["island"].equals(island["island"]):
            return step["island"]
        island = step
