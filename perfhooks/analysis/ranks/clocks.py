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
"""Ends of collectives that are enough: an offset is a median, and clocks drift little in a window."""


@dataclass(frozen=True)
class Clocks:
    """How the clocks of some ranks differ."""

    offset_ms: Mapping[int, float] = field(default_factory=dict)
    """What to add to the times of a rank, to have them by the clock of the lowest rank that it can be compared with."""
    error_ms: float | None = None
    """After that, half of all ends are this close to the middle of those of their collective."""
    error_95_ms: float | None = None
    """The error that 95 of 100 stay below."""


def align(ends: pl.DataFrame, clocks: Mapping[int, str] | None = None) -> Clocks:
    """Find the offsets with which collectives that all wait for end on all ranks at once.

    The end of a collective is the median of its ends on all ranks, each by the rank's own clock plus its offset; the
    offset of a clock is the median of what the ends of its ranks lack to these. Both are taken in turn until nothing
    moves, which is least squares over all ends, but with medians, so that a few odd ends count for nothing. It reaches
    ranks that share a collective only by way of others; those that share none are not compared. An offset no larger
    than the errors of both clocks' ends (95 of 100) together is taken for none.

    Args:
        ends: ``match`` (which collective), ``rank`` and ``end_ms``; a row for each rank of each.
        clocks: The name of each rank's clock, where it is known; ranks with one clock differ by nothing, however late
            some of them leave every collective.
    """
    if not ends.height:
        return Clocks()
    end = pl.col("end_ms") - pl.col("end_ms").min()
    rows = _thinned(ends).select("match", "rank", clock=_numbered(clocks or {}), own=end, end=end).sort("clock", "rank")
    rows = rows.with_columns(island=_islands(rows))
    for _ in range(_ROUNDS):
        rows = _late(rows).with_columns(move=-pl.col("late").median().over("clock"))
        # the first clock of an island stays where it is
        rows = rows.with_columns(move=pl.col("move") - pl.col("move").first().over("island"))
        rows = rows.with_columns(end=pl.col("end") + pl.col("move"))
        if rows.select(pl.col("move").abs().max()).item() < _STILL_MS:
            break
    rows = _late(rows)
    late = pl.col("late").abs()
    found = rows.group_by("clock", maintain_order=True).agg(
        pl.col("rank").unique(),
        island=pl.col("island").first(),
        offset=(pl.col("end") - pl.col("own")).first(),
        error=late.quantile(0.95),
    )
    # of two, either has half of what their ends differ by
    error = pl.col("error") + pl.col("error").first().over("island")
    found = found.with_columns(offset=pl.when(pl.col("offset").abs() > error).then("offset").otherwise(0.0))
    offsets = dict(found.explode("rank").sort("rank").select("rank", "offset").iter_rows())
    return Clocks(offsets, *rows.select(late.median(), late.quantile(0.95).alias("95")).row(0))


def _numbered(clocks: Mapping[int, str]) -> pl.Expr:
    """The clock of each rank, as the lowest rank that is known to have it."""
    first: dict[str, int] = {}
    lowest = {rank: first.setdefault(name, rank) for rank, name in sorted(clocks.items())}
    return pl.col("rank").replace(lowest) if lowest else pl.col("rank")


def _late(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(late=pl.col("end") - pl.col("end").median().over("match"))


def _thinned(ends: pl.DataFrame) -> pl.DataFrame:
    """Some of the collectives, all ranks of each."""
    every = -(-ends.height // _ROWS)
    return ends if every == 1 else ends.filter(pl.col("match").rank("dense") % every == 0)


def _islands(rows: pl.DataFrame) -> pl.Series:
    """For each row the lowest clock that its clock can be compared with, over any number of others."""
    island = rows.select("match", "clock", island=pl.col("clock"))
    while True:
        step = island.with_columns(island=pl.col("island").min().over("match"))
        step = step.with_columns(island=pl.col("island").min().over("clock"))
        if step["island"].equals(island["island"]):
            return step["island"]
        island = step
