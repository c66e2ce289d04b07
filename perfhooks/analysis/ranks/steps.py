"""The steps of several ranks: what each did itself, what it only waited for, and what it did longer than the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from perfhooks.core.statistics import behind, beyond_others, medians

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.core.statistics import Matrix

PARTS: Final = ("data", "compute", "communication", "other")
"""What a rank may be slow in; ``other`` is what is left of the host's time where devices were traced."""

_TIMES: Final = ("wall_ms", "wait_ms", "own_ms", *(f"{part}_ms" for part in PARTS))


def parts(steps: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Split each step of each rank; one row each.

    All ranks of a job take equally long, as the fast ones wait: so ``wait_ms``, the time in which a rank only waited
    for others inside collectives, is not its own. ``own_ms`` = ``wall_ms`` - ``wait_ms`` = data + compute +
    communication + other, with

    * ``communication_ms``: communication that no computation hid, less ``wait_ms``;
    * if devices were traced, ``compute_ms`` = |kernels that compute|, ``data_ms`` the wait for data, of which no
      more counts than the device was idle, and ``other_ms`` the rest: launches, copies, the host's own work;
    * else ``compute_ms`` is the rest, and ``other_ms`` is null.

    ``data_ms`` is null without a loader. If the device times of a step are unknown, so are all parts but the data, the
    wait, and the rank's own work.

    If the hosts run ahead of the devices, a step on the host says nothing of the others: collectives wait on the
    devices. ``wall_ms`` is then the time for which the devices work on the step, the median of all ranks. The rank
    that arrives last in the collectives waits least, so it has most work of its own.

    Args:
        steps: ``steps.csv`` of all ranks, one below the other.
        waits: what `collectives.of_steps` says.
    """
    known = steps.join(waits, on=["rank", "step"], how="left", nulls_equal=True)
    on_device = pl.lit(steps["busy_ms"].is_not_null().any())
    if _is_host_ahead(steps):
        known = known.with_columns(wall_ms=pl.max_horizontal("wall_ms", "busy_ms").median().over("step"))
    communication = pl.when(on_device).then("exposed_comm_ms").otherwise(pl.col("host_comm_ms").fill_null(0.0))
    is_limited = on_device & pl.col("data_ms").is_not_null()
    data = pl.when(is_limited).then(pl.min_horizontal("data_ms", "device_idle_ms")).otherwise("data_ms")
    is_known = communication.is_not_null()
    wait = pl.when(is_known).then(pl.min_horizontal(pl.col("wait_ms").fill_null(0.0), communication, "wall_ms"))
    whole = known.with_columns(
        wait_ms=wait, busy_comm_ms=pl.when(on_device).then("comm_ms").otherwise("host_comm_ms")
    ).with_columns(
        own_ms=pl.col("wall_ms") - pl.col("wait_ms"),
        data_ms=data,
        communication_ms=pl.when(is_known).then(pl.min_horizontal(communication, "wall_ms")) - pl.col("wait_ms"),
    )
    told = pl.col("data_ms").fill_null(0.0) + pl.col("communication_ms")
    rest = pl.col("own_ms") - told
    return whole.with_columns(
        compute_ms=pl.when(on_device).then("compute_ms").otherwise(rest),
        other_ms=pl.when(on_device).then(rest - pl.col("compute_ms")),
    ).select("rank", "step", *_TIMES, "busy_comm_ms", "exposed_comm_ms")


def _is_host_ahead(steps: pl.DataFrame) -> bool:
    """Return whether the devices work longer on the steps than these last on the hosts."""
    known = steps.filter(pl.col("busy_ms").is_not_null())
    return float(known["busy_ms"].sum()) > float(known["wall_ms"].sum())


def whole(split: pl.DataFrame, unsure: frozenset[int]) -> pl.DataFrame:
    """The steps in which it is known who waited for whom, as far as the window's ends decide that.

    A collective that goes on when recording begins or ends is recorded on some ranks only, so that those that waited in
    it seem to have worked. A first or last step that has one is left out, if others remain. Where steps between them
    have such collectives too, it is another reason that they are not matched, and all steps are kept.

    Args:
        split: What `parts` gives.
        unsure: The steps of which some collectives have no partner, see `collectives.Matched`.
    """
    mine = unsure & {*split["step"]}
    if not mine or not mine <= {split["step"].min(), split["step"].max()}:
        return split
    kept = split.filter(~pl.col("step").is_in(list(mine)).fill_null(False))
    return kept if kept.height else split


def of_ranks(split: pl.DataFrame, roles: Mapping[int, int]) -> pl.DataFrame:
    """One row for each rank: the means of what `parts` says, and how much longer its own work takes.

    ``excess_ms``, ``slow_percent`` and ``certain`` are those of its own work, see `perfhooks.core.statistics.Behind`;
    ``data_excess_ms`` and so on are those of the parts; all beside ranks of the same ``role``, which is told where
    there are several.

    Args:
        split: what `parts` gives.
        roles: See `roles.of_ranks`.
    """
    if len({*roles.values()}) <= 1 or not split.height:
        return _of_one_role(split)
    role = pl.col("rank").replace_strict(roles, return_dtype=pl.Int64)
    alike = split.with_columns(role=role).partition_by("role", include_key=False)
    return pl.concat(map(_of_one_role, alike), how="diagonal").sort("rank").with_columns(role=role)


def _of_one_role(split: pl.DataFrame) -> pl.DataFrame:
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
    matrices = {name: _spread(split[name], row, column, shape) for name in _TIMES[2:]}
    found = behind(matrices["own_ms"], float(np.nanmedian(split["wall_ms"].to_numpy())))
    parts = {f"{part}_excess_ms": medians(beyond_others(matrices[f"{part}_ms"])) for part in PARTS}
    return means.with_columns(
        pl.Series("excess_ms", found.excess, nan_to_null=True),
        *(pl.Series(name, values, nan_to_null=True) for name, values in parts.items()),
        pl.Series("slow_percent", found.slow_percent, nan_to_null=True),
        pl.Series("certain", found.certain, dtype=pl.Boolean),
    )


def of_steps(split: pl.DataFrame) -> pl.DataFrame:
    """One row for each step: how long it took on how many ranks, and which had most to do itself."""
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


def _spread(column: pl.Series, row: Any, step: Any, shape: tuple[int, int]) -> Matrix:
    matrix = np.full(shape, np.nan)
    matrix[row, step] = column.cast(pl.Float64).to_numpy()
    return matrix
