from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from perfhooks.analysis.ranks.clocks import Clocks, align

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOST_BACKENDS: Final = ("gloo", "mpi", "ucc")
"""Backends that communicate on the CPU. Host ranges of other backends only launch device work."""
_SYNCHRONIZING: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collective operations that end on all ranks at the same time."""
_EQUAL_SIZE: Final = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather")
BETWEEN_TWO: Final = ("send", "recv", "send_recv")


@dataclass(frozen=True)
class Matched:
    rows: pl.DataFrame
    """One row per rank and collective. ``match`` is the index of the collective, ``ranks`` the number of participating
    ranks.
    """
    clocks: Clocks
    unmatched: int
    unsure: frozenset[int]
    """Steps with unmatched rows. The waits in these steps are unknown."""
    on_host: pl.DataFrame
    """Communication on the CPU: ``rank step start_ms duration_ms``."""


def match(table: pl.DataFrame, clocks: Mapping[int, str] | None = None) -> Matched:
    """Match rows of several ranks that describe the same collective.

    Rows match if they have the same step, process group, operation, type and position in time order. Sizes are compared
    only for operations with equal sizes on all ranks. If a rank has more or fewer rows of one kind in a step than most
    ranks, the rows of this rank are skipped. A collective is also skipped if, by aligned clocks, one rank ended it
    before another rank began it. Sends and receives are not matched.

    ``wait_ms`` is the duration minus the shortest duration in the same collective.
    """
    return _match_rows(table, clocks) if table.height else _match_empty(tuple(table.schema.items()))


@functools.cache
def _match_empty(columns: tuple[tuple[str, pl.DataType], ...]) -> Matched:
    return _match_rows(pl.DataFrame(schema=dict(columns)), None)


def _match_rows(table: pl.DataFrame, clocks: Mapping[int, str] | None) -> Matched:
    on_device = pl.col("device").is_not_null()
    all_rows = table.filter((on_device | pl.col("backend").is_in(_HOST_BACKENDS)) & pl.col("operation").is_not_null())
    host = all_rows.filter(~on_device & pl.col("start_ns").is_not_null() & pl.col("duration_ms").is_finite())
    on_host = host.select("rank", "step", _start_ms(host["start_ns"].min()).alias("start_ms"), "duration_ms")
    moving = all_rows.filter(~pl.col("operation").is_in(BETWEEN_TWO)).drop("backend")
    rows = _number_matches(moving.filter(pl.col("start_ns").is_not_null() & pl.col("duration_ms").is_finite()))
    rows = _select_met(rows, align(_find_ends(rows), clocks))
    aligned = align(_find_ends(rows), clocks)
    rows = _add_waits(rows.with_columns(start_ms=_aligned_starts(aligned)))
    unmatched = moving.height - rows.height
    return Matched(rows, aligned, unmatched, _find_unsure(moving, rows) if unmatched else frozenset(), on_host)


def _start_ms(first: Any) -> pl.Expr:
    since: pl.Expr = pl.col("start_ns") - first
    return since * 1e-6


def _find_unsure(moving: pl.DataFrame, rows: pl.DataFrame) -> frozenset[int]:
    matched = rows.group_by("step").agg(known=pl.len())
    counts = moving.group_by("step").len().join(matched, on="step", how="left")
    return frozenset(counts.filter(pl.col("len") > pl.col("known").fill_null(0))["step"].drop_nulls())


def _number_matches(moving: pl.DataFrame) -> pl.DataFrame:
    size = pl.when(pl.col("operation").is_in(_EQUAL_SIZE)).then("bytes")
    key = pl.struct("step", "group", "group_size", "operation", "dtype", size.alias("size")).hash()
    rows = moving.select(pl.exclude("start_ns"), start_ms=_start_ms(moving["start_ns"].min()), key=key)
    rows = rows.with_columns(index=pl.int_range(pl.len()).over("rank", "key"), count=pl.len().over("rank", "key"))
    rows = rows.filter(pl.col("count") == pl.col("count").mode().max().over("key"))
    rows = rows.with_columns(match=pl.struct("key", "index").hash())
    rows = rows.with_columns(ranks=pl.len().over("match").cast(pl.Int64))
    # more ranks than the group size: the rows belong to several unnamed groups
    return rows.filter(
        (pl.col("ranks") > 1) & (pl.col("ranks") <= pl.col("group_size").fill_null(pl.col("ranks")))
    ).drop("key", "count")


def _find_ends(rows: pl.DataFrame) -> pl.DataFrame:
    together = rows.filter(pl.col("operation").is_in(_SYNCHRONIZING))
    return together.select("match", "rank", end_ms=pl.col("start_ms") + pl.col("duration_ms"))


def _select_met(rows: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    start = _aligned_starts(clocks)
    apart = start.max().over("match") - (start + pl.col("duration_ms")).min().over("match")
    slack = 10 * (clocks.error_ms or 0.0) + 0.05
    return rows.filter((apart <= slack) | ~pl.col("operation").is_in(_SYNCHRONIZING))


def _aligned_starts(clocks: Clocks) -> pl.Expr:
    offset = pl.col("rank").replace_strict(clocks.offset_ms, default=0.0, return_dtype=pl.Float64)
    return pl.col("start_ms") + offset


def _add_waits(rows: pl.DataFrame) -> pl.DataFrame:
    shortest = pl.col("duration_ms").min().over("match")
    return rows.with_columns(wait_ms=pl.col("duration_ms") - shortest)


def by_collective(matched: Matched) -> pl.DataFrame:
    """Return one row per collective.

    ``spread_ms`` is the time from the first to the last start, by aligned clocks. ``wait_ms`` is the longest wait of a
    rank. ``last_rank``, the rank with the shortest duration, is null if no rank waited.
    """
    last = pl.col("duration_ms").arg_min()
    start = pl.col("start_ms")
    return (
        matched.rows.group_by("match", maintain_order=True)
        .agg(
            pl.col("step", "operation", "group", "group_size", "dtype").first(),
            pl.col("bytes").max(),
            pl.col("index", "ranks").first(),
            spread_ms=start.max() - start.min(),
            mean_wait_ms=pl.col("wait_ms").mean(),
            duration_ms=pl.col("duration_ms").min(),
            last_rank=pl.when(pl.col("wait_ms").max() > 0).then(pl.col("rank").get(last)),
            bus_gb_per_s=pl.col("bus_gb_per_s").get(last),
            wait_ms=pl.col("wait_ms").max(),
            first_ms=start.min(),
        )
        .sort("first_ms")
        .drop("match", "first_ms")
    )


def kinds(collectives: pl.DataFrame) -> pl.DataFrame:
    """Summarize `by_collective` for each operation, group size, type and message size, by decreasing total time.

    Times and bandwidth are medians, except ``longest_wait_ms``.
    """
    keys = ("operation", "group_size", "dtype", "bytes")
    last = pl.col("last_rank").mode().min()
    return (
        collectives.group_by(*keys, maintain_order=True)
        .agg(
            groups=pl.col("group").n_unique(),
            count=pl.len(),
            total_ms=(pl.col("duration_ms") + pl.col("wait_ms")).sum(),
            duration_ms=pl.col("duration_ms").median(),
            spread_ms=pl.col("spread_ms").median(),
            wait_ms=pl.col("wait_ms").median(),
            longest_wait_ms=pl.col("wait_ms").max(),
            bus_gb_per_s=pl.col("bus_gb_per_s").median(),
            last_rank=last,
            last_percent=(pl.col("last_rank") == last).mean() * 100,
        )
        .sort("total_ms", descending=True)
    )


def large(matched: Matched) -> pl.DataFrame:
    """Return the rows of large collectives: ``rank step ranks is_last bytes``.

    A large collective synchronizes all ranks and moves at least 10% of the bytes of the largest collective. Small
    collectives, for example of a loss, are not related to the work of a rank. ``is_last`` is true if the other ranks
    waited for this rank.
    """
    rows = matched.rows.filter(pl.col("operation").is_in(_SYNCHRONIZING) & (pl.col("bytes") > 0))
    size = pl.col("bytes").max().over("match")
    is_last = (pl.col("wait_ms") == 0) & (pl.col("wait_ms").max().over("match") > 0)
    rows = rows.select("rank", "step", "ranks", is_last=is_last, bytes=size)
    return rows.filter(pl.col("bytes") >= 0.1 * pl.col("bytes").max())


def of_steps(matched: Matched) -> pl.DataFrame:
    """Return the wait in collectives and the communication time on the CPU, for each rank and step.

    Overlapping intervals count once. Waits in sends and receives are unknown.
    """
    on_device = pl.col("device").is_not_null()
    wait = pl.min_horizontal("wait_ms", pl.when(on_device).then("exposed_ms"))
    waits = _union_length(matched.rows.select("rank", "step", "start_ms", wait_ms=wait))
    host_comm = _union_length(matched.on_host.select("rank", "step", "start_ms", host_comm_ms="duration_ms"))
    return waits.join(host_comm, on=["rank", "step"], how="full", coalesce=True, nulls_equal=True)


def _union_length(rows: pl.DataFrame) -> pl.DataFrame:
    length = rows.columns[-1]
    rows = rows.sort("rank", "start_ms").with_columns(_added_length(length))
    return rows.group_by("rank", "step", maintain_order=True).agg(pl.col(length).sum())


def _added_length(length: str) -> pl.Expr:
    end = pl.col("start_ms") + pl.col(length)
    before = end.cum_max().forward_fill().shift(1)
    return (end - pl.max_horizontal("start_ms", before)).clip(lower_bound=0.0).over("rank", "step").alias(length)
