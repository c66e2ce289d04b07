"""The steps of several ranks: what each did itself, what it only waited for, and what it did longer than the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from perfhooks.ranks.chance import certain

if TYPE_CHECKING:
    from perfhooks.ranks.chance import Matrix

PARTS: Final = ("data", "compute", "communication", "other")
"""What a rank may be slow in; ``other`` is what is left of the host's time where devices were traced."""

SLOW: Final = 0.1
"""A rank is slow in a step if its own work takes this much of the step longer than that of the others."""
MANY: Final = 8
"""From so many ranks on, it is enough to stand out: to take `MANY_SLOW` of the step and `FAR` longer."""
MANY_SLOW: Final = 0.02
FAR: Final = 6.0
"""Median deviations of all ranks from the others; about four standard deviations."""

_TIMES: Final = ("wall_ms", "wait_ms", "own_ms", *(f"{part}_ms" for part in PARTS))


def parts(steps: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Split each step of each rank; one row each.

    All ranks of a job take equally long, as the fast ones wait: so ``wait_ms``, the time in which a rank only waited
    for others inside collectives, is not its own. ``own_ms`` = ``wall_ms`` - ``wait_ms`` = data + compute +
    communication + other, with

    * ``communication_ms``: communication that no computation hid, less ``wait_ms``;
    * where a device was traced, ``compute_ms`` = |kernels that compute|, ``data_ms`` the wait for data, of which no
      more counts than the device was idle, and ``other_ms`` the rest: launches, copies, the host's own work;
    * elsewhere ``compute_ms`` is the rest, and ``other_ms`` is null.

    Args:
        steps: ``steps.csv`` of all ranks, one below the other.
        waits: what `collectives.of_steps` says.
    """
    known = steps.join(waits, on=["rank", "step"], how="left", nulls_equal=True)
    on_device = pl.col("busy_ms").is_not_null()
    communication = pl.when(on_device).then("exposed_comm_ms").otherwise("host_comm_ms").fill_null(0.0)
    data = pl.when(on_device).then(pl.min_horizontal("data_ms", "idle_ms")).otherwise("data_ms")
    whole = known.with_columns(
        wait_ms=pl.min_horizontal(pl.col("wait_ms").fill_null(0.0), communication, "wall_ms"),
        busy_comm_ms=pl.when(on_device).then("comm_ms").otherwise("host_comm_ms"),
    ).with_columns(
        own_ms=pl.col("wall_ms") - pl.col("wait_ms"),
        data_ms=data,
        communication_ms=pl.min_horizontal(communication, "wall_ms") - pl.col("wait_ms"),
    )
    told = pl.col("data_ms").fill_null(0.0) + pl.col("communication_ms")
    rest = pl.col("own_ms") - told
    return whole.with_columns(
        compute_ms=pl.when(on_device).then("compute_ms").otherwise(rest),
        other_ms=pl.when(on_device).then(rest - pl.col("compute_ms")),
    ).select("rank", "step", *_TIMES, "busy_comm_ms", "exposed_comm_ms")


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


def of_ranks(split: pl.DataFrame) -> pl.DataFrame:
    """One row for each rank: the means of what `parts` says, and how much longer its own work takes.

    ``excess_ms`` is the median over the steps of what its own work takes longer than the median of the other ranks' in
    the same step; ``data_excess_ms`` and so on are those of the parts. ``slow_percent`` are the steps in which the
    excess is `SLOW` of the step or more; among `MANY` ranks, `MANY_SLOW` of it and `FAR` more than is usual.
    ``certain`` says whether the excess is more than chance makes of equal work, see `chance.certain`.

    Args:
        split: what `parts` gives.
    """
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
    excess = {name: beyond_others(_spread(split[name], row, column, shape)) for name in _TIMES[2:]}
    limit = _limit(excess["own_ms"], float(np.nanmedian(split["wall_ms"].to_numpy())))
    counted = np.isfinite(excess["own_ms"]).sum(axis=1)
    slow = np.divide(
        (excess["own_ms"] >= limit).sum(axis=1) * 100.0, counted, where=counted > 0, out=np.full(len(ranks), np.nan)
    )
    found = {f"{name.removesuffix('_ms')}_excess_ms": _medians(values) for name, values in excess.items()}
    return means.with_columns(
        pl.Series("excess_ms", found.pop("own_excess_ms"), nan_to_null=True),
        *(pl.Series(name, values, nan_to_null=True) for name, values in found.items()),
        pl.Series("slow_percent", slow, nan_to_null=True),
        # of one step of many ranks, how they differ among each other is in the limit
        pl.Series("certain", certain(excess["own_ms"], alone=len(ranks) >= MANY), dtype=pl.Boolean),
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


def beyond_others(values: Matrix) -> Matrix:
    """What each value of a column has more than the median of the other values in it; NaN where there is no other."""
    order = np.argsort(values, axis=0)  # NaN come last
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(values))[:, None], axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    others = np.isfinite(values).sum(axis=0) - 1
    low, high = np.maximum(others - 1, 0) // 2, np.maximum(others, 0) // 2
    # the value itself is left out of those that are ordered
    low, high = (np.minimum(each + (each >= place), len(values) - 1) for each in (low, high))
    middle = (np.take_along_axis(ordered, low, axis=0) + np.take_along_axis(ordered, high, axis=0)) / 2
    found: Matrix = np.where(others > 0, values - middle, np.nan)
    return found


def _limit(excess: Matrix, wall: float) -> float:
    """From how many milliseconds on a rank is slow."""
    if len(excess) < MANY or not np.isfinite(excess).any():
        return SLOW * wall
    return max(MANY_SLOW * wall, FAR * float(np.nanmedian(np.abs(excess))))


def _spread(column: pl.Series, row: Any, step: Any, shape: tuple[int, int]) -> Matrix:
    matrix = np.full(shape, np.nan)
    matrix[row, step] = column.cast(pl.Float64).to_numpy()
    return matrix


def _medians(values: Matrix) -> Any:
    known = np.isfinite(values).any(axis=1)
    found = np.full(len(values), np.nan)
    if known.any():
        found[known] = np.nanmedian(values[known], axis=1)
    return found
