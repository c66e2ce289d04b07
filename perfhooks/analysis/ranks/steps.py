from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from perfhooks.core.statistics import beyond_others, compare_ranks, medians

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.core.statistics import Matrix

PARTS: Final = ("data", "compute", "communication", "other")
"""Parts in which a rank may be slow; ``other`` is the remaining host time if devices were traced."""

_TIMES: Final = ("wall_ms", "wait_ms", "own_ms", *(f"{part}_ms" for part in PARTS))


def parts(steps: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Split each step of each rank into parts; one row per rank and step.

    Fast ranks wait inside collectives, so all ranks have equal step times. ``own_ms`` = ``wall_ms`` - ``wait_ms`` =
    data + compute + communication + other, with

    * ``communication_ms``: communication that no computation hides, minus ``wait_ms``;
    * if devices were traced: ``compute_ms`` = |compute kernels|, ``data_ms`` the wait for data, limited to the idle
      time of the device, and ``other_ms`` the rest: launches, copies, host work;
    * otherwise ``compute_ms`` is the rest, and ``other_ms`` is null.

    ``data_ms`` is null without a loader. Without the device times of a step, all other parts are null, and so is
    ``own_ms``. If the hosts run ahead of the devices, ``wall_ms`` is the median device time of the step.
    """
    joined = steps.join(waits, on=["rank", "step"], how="left", nulls_equal=True)
    on_device = pl.lit(steps["busy_ms"].is_not_null().any())
    if _is_host_ahead(steps):
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


def _is_host_ahead(steps: pl.DataFrame) -> bool:
    """Return whether the devices need more time for the steps than the hosts."""
    device_steps = steps.filter(pl.col("busy_ms").is_not_null())
    return float(device_steps["busy_ms"].sum()) > float(device_steps["wall_ms"].sum())


def complete_steps(split: pl.DataFrame, unsure: frozenset[int]) -> pl.DataFrame:
    """Return the steps with reliable waits, without incomplete steps at the ends of the window.

    A collective that is running when recording starts or ends is recorded on some ranks only. Such first and last steps
    are skipped, if others remain. Unmatched collectives in the middle have another cause; then all steps are kept.
    """
    unsure_steps = unsure & {*split["step"]}
    if not unsure_steps or not unsure_steps <= {split["step"].min(), split["step"].max()}:
        return split
    remaining = split.filter(~pl.col("step").is_in(list(unsure_steps)).fill_null(False))
    return remaining if remaining.height else split


def of_ranks(split: pl.DataFrame, roles: Mapping[int, int]) -> pl.DataFrame:
    """Return one row per rank: the means of the parts, and the excess of its own work.

    ``excess_ms``, ``slow_percent`` and ``certain`` are about own work, see `perfhooks.core.statistics.RankDelays`.
    ``data_excess_ms`` and so on are about the parts. Ranks are compared with ranks of the same ``role``, a column that
    exists if there are several roles.

    Args:
        split: Result of `parts`.
        roles: See `roles.of_ranks`.
    """
    if len({*roles.values()}) <= 1 or not split.height:
        return _compare_role(split)
    role = pl.col("rank").replace_strict(roles, return_dtype=pl.Int64)
    by_role = split.with_columns(role=role).partition_by("role", include_key=False)
    return pl.concat(map(_compare_role, by_role), how="diagonal").sort("rank").with_columns(role=role)


def _compare_role(split: pl.DataFrame) -> pl.DataFrame:
    means = (
        split.group_by("rank")
        .agg(pl.len().alias("steps"), pl.col(*_TIMES, "busy_comm_ms", "exposed_comm_ms").mean())
        .sort("rank")
    )
    ranks, row = np.unique(split["rank"].to_numpy(), return_inverse=True)
    column = split["step"].rank("dense").fill_null(0).to_numpy().astype(np.int64)
    if not len(ranks):
        return means
    shape = (len(ranks), int(column.max()) + 1)
    matrices = {name: _to_matrix(split[name], row, column, shape) for name in _TIMES[2:]}
    delays = compare_ranks(matrices["own_ms"], float(np.nanmedian(split["wall_ms"].to_numpy())))
    parts = {f"{part}_excess_ms": medians(beyond_others(matrices[f"{part}_ms"])) for part in PARTS}
    return means.with_columns(
        pl.Series("excess_ms", delays.excess, nan_to_null=True),
        *(pl.Series(name, values, nan_to_null=True) for name, values in parts.items()),
        pl.Series("slow_percent", delays.slow_percent, nan_to_null=True),
        pl.Series("certain", delays.certain, dtype=pl.Boolean),
    )


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


def _to_matrix(column: pl.Series, row: Any, step: Any, shape: tuple[int, int]) -> Matrix:
    matrix = np.full(shape, np.nan)
    matrix[row, step] = column.cast(pl.Float64).to_numpy()
    return matrix
