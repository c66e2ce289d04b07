"""The same collective on several ranks: who came last, how long the others waited, how fast it was then."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from perfhooks.analysis.ranks.clocks import Clocks, align

if TYPE_CHECKING:
    from collections.abc import Mapping

_ON_HOST: Final = ("gloo", "mpi", "ucc")
"""Backends that do on the host what others have a device do; ranges of the others on the host only ask for it."""
_TOGETHER: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Nobody is through with one of these before all have come: they end at once."""
_OF_ONE_SIZE: Final = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather")
"""The message of these is of one size on all ranks."""
BETWEEN_TWO: Final = ("send", "recv", "send_recv")
_NS: Final = 1e-6
"""Milliseconds in a nanosecond."""
_SLACK: Final = 10
"""Maximum apparent distance between two ranks in one collective, in multiples of the clocks' error."""
_TICK_MS: Final = 0.05
"""Milliseconds that are added to that distance, as the clocks' error may be almost nothing."""


@dataclass(frozen=True)
class Matched:
    """The collectives of a window that several ranks are known to have taken part in."""

    rows: pl.DataFrame
    """A row for each rank of each: the columns of the table, and ``match``, ``ranks`` (how many), ``wait_ms``."""
    clocks: Clocks
    unmatched: int
    """Rows that have no partner, or not for certain."""
    unsure: frozenset[int]
    """The steps that have such rows: how long a rank waited in them is not known."""
    on_host: pl.DataFrame
    """``rank step start_ms duration_ms`` of all that ran on a host, messages between two ranks too."""


def match(table: pl.DataFrame, clocks: Mapping[int, str] | None = None) -> Matched:
    """Find out which rows of several ranks are the same collective.

    It is the same if it has the same step, process group, operation, type and size (where all ranks have one size), and
    is the same one of these by time. Where a rank has more or fewer of a kind in a step than most, as some were not
    recorded, its rows of this kind are left out; so is all of a collective in which, by clocks that were brought
    together, one rank was through before another came. Messages between two are not matched.

    ``wait_ms``, the time that a rank waited for the last one, is its duration less the shortest of all ranks' in the
    same collective: the last to come waits for nobody. No two clocks are compared for that.

    Args:
        table: ``collectives.csv`` of all ranks, one below the other, each in the order of time.
        clocks: The name of each rank's clock, where it is known.
    """
    return _matched(table, clocks) if table.height else _of_nothing(tuple(table.schema.items()))


@functools.cache
def _of_nothing(columns: tuple[tuple[str, pl.DataType], ...]) -> Matched:
    """What becomes of a table without rows: most trainings have one process, and no collectives."""
    return _matched(pl.DataFrame(schema=dict(columns)), None)


def _matched(table: pl.DataFrame, clocks: Mapping[int, str] | None) -> Matched:
    on_device = pl.col("device").is_not_null()
    every = table.filter((on_device | pl.col("backend").is_in(_ON_HOST)) & pl.col("operation").is_not_null())
    host = every.filter(~on_device & pl.col("start_ns").is_not_null() & pl.col("duration_ms").is_finite())
    on_host = host.select("rank", "step", _ms(host["start_ns"].min()).alias("start_ms"), "duration_ms")
    moving = every.filter(~pl.col("operation").is_in(BETWEEN_TWO)).drop("backend")
    rows = _numbered(moving.filter(pl.col("start_ns").is_not_null() & pl.col("duration_ms").is_finite()))
    rows = _met(rows, align(_ends(rows), clocks))
    aligned = align(_ends(rows), clocks)
    rows = _waits(rows.with_columns(start_ms=_by(aligned)))
    left = moving.height - rows.height
    return Matched(rows, aligned, left, _unsure(moving, rows) if left else frozenset(), on_host)


def _ms(first: Any) -> pl.Expr:
    """When rows start, in milliseconds after the first one: nanoseconds since 1970 are too many for a float."""
    since: pl.Expr = pl.col("start_ns") - first
    return since * _NS


def _unsure(moving: pl.DataFrame, rows: pl.DataFrame) -> frozenset[int]:
    known = rows.group_by("step").agg(known=pl.len())
    counted = moving.group_by("step").len().join(known, on="step", how="left")
    return frozenset(counted.filter(pl.col("len") > pl.col("known").fill_null(0))["step"].drop_nulls())


def _numbered(moving: pl.DataFrame) -> pl.DataFrame:
    """The rows that have partners, with the number of their collective; times in ms from the first start."""
    size = pl.when(pl.col("operation").is_in(_OF_ONE_SIZE)).then("bytes")
    # one number stands for the whole key: keys are compared many times
    key = pl.struct("step", "group", "group_size", "operation", "dtype", size.alias("size")).hash()
    rows = moving.select(pl.exclude("start_ns"), start_ms=_ms(moving["start_ns"].min()), key=key)
    rows = rows.with_columns(index=pl.int_range(pl.len()).over("rank", "key"), count=pl.len().over("rank", "key"))
    rows = rows.filter(pl.col("count") == pl.col("count").mode().max().over("key"))
    rows = rows.with_columns(match=pl.struct("key", "index").hash())
    rows = rows.with_columns(ranks=pl.len().over("match").cast(pl.Int64))
    # more ranks than a group has: several groups that do not tell their names
    return rows.filter(
        (pl.col("ranks") > 1) & (pl.col("ranks") <= pl.col("group_size").fill_null(pl.col("ranks")))
    ).drop("key", "count")


def _ends(rows: pl.DataFrame) -> pl.DataFrame:
    together = rows.filter(pl.col("operation").is_in(_TOGETHER))
    return together.select("match", "rank", end_ms=pl.col("start_ms") + pl.col("duration_ms"))


def _met(rows: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    """Those in which every rank came before any was through."""
    start = _by(clocks)
    apart = start.max().over("match") - (start + pl.col("duration_ms")).min().over("match")
    slack = _SLACK * (clocks.error_ms or 0.0) + _TICK_MS
    return rows.filter((apart <= slack) | ~pl.col("operation").is_in(_TOGETHER))


def _by(clocks: Clocks) -> pl.Expr:
    """The starts, by clocks that were brought together."""
    offset = pl.col("rank").replace_strict(clocks.offset_ms, default=0.0, return_dtype=pl.Float64)
    return pl.col("start_ms") + offset


def _waits(rows: pl.DataFrame) -> pl.DataFrame:
    shortest = pl.col("duration_ms").min().over("match")
    return rows.with_columns(wait_ms=pl.col("duration_ms") - shortest)


def by_collective(matched: Matched) -> pl.DataFrame:
    """One row for each collective.

    ``ranks`` that were compared; ``spread_ms`` from the first start to the last, by clocks that were brought together;
    ``wait_ms`` that of the rank that waited longest, ``mean_wait_ms`` that of all; ``duration_ms`` the shortest, which
    is that of ``last_rank``, null if none waited; ``bus_gb_per_s`` during that.
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
    """What `by_collective` says, a row for each operation, group size, type and message size; longest in all first.

    ``groups`` counts process groups; times and bandwidth are medians, ``longest_wait_ms`` is not; ``last_rank`` is the
    one that came last most often, in ``last_percent`` of all.
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


def of_steps(matched: Matched) -> pl.DataFrame:
    """For each rank and step, the time in which it only waited for others, and on a host that of all communication.

    Unions of intervals: several at once count once. ``wait_ms`` = |first ``wait_ms`` of each|, of which no more counts
    than was exposed, where that is known; ``host_comm_ms`` = |collectives and messages that run on the host|. How long
    a rank waits in a message is not known.
    """
    on_device = pl.col("device").is_not_null()
    wait = pl.min_horizontal("wait_ms", pl.when(on_device).then("exposed_ms"))
    waits = _union(matched.rows.select("rank", "step", "start_ms", wait_ms=wait))
    whole = _union(matched.on_host.select("rank", "step", "start_ms", host_comm_ms="duration_ms"))
    return waits.join(whole, on=["rank", "step"], how="full", coalesce=True, nulls_equal=True)


def _union(rows: pl.DataFrame) -> pl.DataFrame:
    """The union of intervals of each rank and step, whose lengths are in the last column."""
    length = rows.columns[-1]
    rows = rows.sort("rank", "start_ms").with_columns(_new(length))
    return rows.group_by("rank", "step", maintain_order=True).agg(pl.col(length).sum())


def _new(length: str) -> pl.Expr:
    """What each interval adds to the union of those before it, of the same rank and step."""
    end = pl.col("start_ms") + pl.col(length)
    before = end.cum_max().forward_fill().shift(1)
    return (end - pl.max_horizontal("start_ms", before)).clip(lower_bound=0.0).over("rank", "step").alias(length)
