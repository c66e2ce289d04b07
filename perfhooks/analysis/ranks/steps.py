from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.core.statistics import (
    CHANCE,
    are_late,
    beyond_others,
    chance_of,
    fewer_than_others,
    least_delay,
    means_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.core.statistics import Flags, Matrix

PARTS: Final = ("data", "compute", "communication", "other")
"""Parts of the own work of a rank. ``other`` is host time, and null if no device was traced."""

_TIMES: Final = ("wall_ms", "wait_ms", "own_ms", *(f"{part}_ms" for part in PARTS))


def parts(steps: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Split each step of each rank into `PARTS`: return one row per rank and step.

    Fast ranks wait inside collectives, so all ranks have equal step times. ``own_ms`` = ``wall_ms`` - ``wait_ms`` =
    data + compute + communication + other, with

    * ``communication_ms``: communication without concurrent computation, minus ``wait_ms``;
    * if devices were traced: ``compute_ms``, the time with a compute kernel; ``data_ms``, the wait for data, limited to
      the idle time of the device; and ``other_ms``, the remaining time: launches, copies, host work;
    * if no device was traced: ``compute_ms`` is the remaining time, and ``other_ms`` is null.

    Without a loader, ``data_ms`` is null. If the device times of a step are unknown, ``own_ms`` and all parts except
    ``data_ms`` are null. If the hosts run ahead of the devices, ``wall_ms`` is the median device time of the step.
    """
    joined = steps.join(waits, on=["rank", "step"], how="left", nulls_equal=True)
    on_device = pl.lit(steps["busy_ms"].is_not_null().any())
    if is_host_ahead(steps):
        joined = joined.with_columns(wall_ms=pl.max_horizontal("wall_ms", "busy_ms").median().over("step"))
    communication = pl.when(on_device).then("exposed_comm_ms").otherwise(pl.col("host_comm_ms").fill_null(0.0))
    is_limited = on_device & pl.col("data_ms").is_not_null()
    data = pl.when(is_limited).then(pl.min_horizontal("data_ms", "device_idle_ms")).otherwise("data_ms")
    is_known = communication.is_not_null()
    wait = pl.when(is_known).then(pl.min_horizontal(pl.col("wait_ms").fill_null(0.0), communication, "wall_ms"))
    with_own = joined.with_columns(
        wait_ms=wait, busy_comm_ms=pl.when(on_device).then("comm_ms").otherwise("host_comm_ms")
    ).with_columns(
        own_ms=pl.col("wall_ms") - pl.col("wait_ms"),
        data_ms=data,
        communication_ms=pl.when(is_known).then(pl.min_horizontal(communication, "wall_ms")) - pl.col("wait_ms"),
    )
    data_and_comm = pl.col("data_ms").fill_null(0.0) + pl.col("communication_ms")
    remaining = pl.col("own_ms") - data_and_comm
    return with_own.with_columns(
        compute_ms=pl.when(on_device).then("compute_ms").otherwise(remaining),
        other_ms=pl.when(on_device).then(remaining - pl.col("compute_ms")),
    ).select("rank", "step", *_TIMES, "busy_comm_ms", "exposed_comm_ms")


def is_host_ahead(steps: pl.DataFrame) -> bool:
    """Return whether the devices need more time for the steps than the hosts."""
    device_steps = steps.filter(pl.col("busy_ms").is_not_null())
    return float(device_steps["busy_ms"].sum()) > float(device_steps["wall_ms"].sum())


def complete_steps(split: pl.DataFrame, unsure: frozenset[int]) -> pl.DataFrame:
    """Return the steps with reliable waits, without incomplete steps at the start and end of the window.

    A collective that is running when recording starts or ends is recorded on some ranks only. First and last steps with
    unmatched collectives are skipped, unless no other steps remain or middle steps have unmatched collectives too.
    """
    unsure_steps = unsure & {*split["step"]}
    if not unsure_steps or not unsure_steps <= {split["step"].min(), split["step"].max()}:
        return split
    remaining = split.filter(~pl.col("step").is_in(list(unsure_steps)).fill_null(False))
    return remaining if remaining.height else split


def of_ranks(
    split: pl.DataFrame, large: pl.DataFrame, roles: Mapping[int, int], *, knows_waits: bool = True
) -> pl.DataFrame:
    """Return one row per rank: the means of the parts, and whether the other ranks wait for the rank.

    ``excess_ms`` is the mean over the steps of own work minus the median of the other ranks of the same ``role``.
    ``last`` is the number of ``large`` collectives in which the rank arrived last. ``is_straggler`` is whether
    `perfhooks.core.statistics.are_late` finds the excess significant: over the steps, or over the large collectives if
    the rank is last in most of them. If the waits are unknown, and own work shows no straggler, ranks are compared by
    ``compute_ms``. ``by`` names the compared time: ``own`` or ``compute``.
    """
    large = large.join(split.select("rank", "step"), on=["rank", "step"], how="semi", nulls_equal=True)
    if len({*roles.values()}) <= 1 or not split.height:
        return _compare_role(split, large, knows_waits=knows_waits)
    role = pl.col("rank").replace_strict(roles, return_dtype=pl.Int64)
    by_role = split.with_columns(role=role).partition_by("role", include_key=False)
    tables = [_compare_role(each, large.join(each, on="rank", how="semi"), knows_waits=knows_waits) for each in by_role]
    return pl.concat(tables, how="diagonal").sort("rank").with_columns(role=role)


def _compare_role(split: pl.DataFrame, large: pl.DataFrame, *, knows_waits: bool) -> pl.DataFrame:
    counts = large.group_by("rank").agg(
        pl.col("is_last").sum().alias("last"), pl.len().alias("large"), group_ranks=pl.col("ranks").min()
    )
    means = (
        split.group_by("rank")
        .agg(pl.len().alias("steps"), pl.col(*_TIMES, "busy_comm_ms", "exposed_comm_ms").mean())
        .join(counts, on="rank", how="left")
        .sort("rank")
    )
    if not means.height:
        return means
    excess = {name: beyond_others(_to_matrix(split, f"{name}_ms", means["rank"])) for name in ("own", *PARTS)}
    step = float(np.nanmedian(split["wall_ms"].to_numpy()))
    by, late = "own", _find_late("own", excess["own"], means, step)
    if not knows_waits and not late.any():
        by, late = "compute", _find_late("compute", excess["compute"], means, step)
    return means.drop("group_ranks").with_columns(
        pl.Series("excess_ms", means_of(excess[by]), nan_to_null=True),
        *(pl.Series(f"{part}_excess_ms", means_of(excess[part]), nan_to_null=True) for part in PARTS),
        pl.Series("is_straggler", fewer_than_others(late)),
        by=pl.lit(by),
    )


def _find_late(name: str, excess: Matrix, means: pl.DataFrame, step: float) -> Flags:
    least = least_delay(means[f"{name}_ms"].cast(pl.Float64).to_numpy(), step)
    late = are_late(excess, step, least, CHANCE / means.height)
    is_last: Flags = late | ((means_of(np.clip(excess, -step, step)) >= least) & _are_last(means))
    return is_last


def _are_last(means: pl.DataFrame) -> Flags:
    rows = means.select(pl.col("last", "large", "group_ranks").fill_null(0)).iter_rows()
    chance = CHANCE / means.height
    return np.array([2 * last > large and chance_of(last, large, 1 / ranks) < chance for last, large, ranks in rows])


def of_steps(split: pl.DataFrame) -> pl.DataFrame:
    wall, own = pl.col("wall_ms"), pl.col("own_ms")
    return (
        split.group_by("step")
        .agg(
            ranks=pl.len(),
            wall_ms=wall.median(),
            shortest_ms=wall.min(),
            longest_ms=wall.max(),
            own_ms=own.median(),
            longest_own_ms=own.max(),
            slowest_rank=pl.col("rank").get(own.arg_max()),
        )
        .sort("step")
    )


def _to_matrix(table: pl.DataFrame, values: str, ranks: pl.Series) -> Matrix:
    step_of = table["step"].rank("dense").fill_null(0).to_numpy().astype(np.int64)
    matrix = np.full((len(ranks), int(step_of.max()) + 1), np.nan)
    matrix[np.searchsorted(ranks.to_numpy(), table["rank"].to_numpy()), step_of] = (
        table[values].cast(pl.Float64).to_numpy()
    )
    return matrix
