from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from perfhooks.analysis.ranks import roles
from perfhooks.core import words
from perfhooks.trace.nesting.intervals import MOST

if TYPE_CHECKING:
    from perfhooks.analysis.ranks.files import RankedWindow

_DEVICE_COLUMNS: Final = ("busy_ms", "device_idle_ms", "compute_ms", "exposed_comm_ms")
_NO_TIMES: Final = "has no device times: the trace lacks work of the device"


def find(window: RankedWindow) -> dict[int, str]:
    """Return the ranks with unknown device times, each with the reason.

    The profiler can lose the events of a CUDA stream. A rank with lost events has far fewer kernels, but as many
    operators, as other ranks with the same work.
    """
    if not window.steps["busy_ms"].is_not_null().any():
        return {}
    means = window.steps.group_by("rank").agg(
        pl.col("ops", "kernels").mean(), is_empty=pl.col("compute_ms").is_null().all()
    )
    rows = {row["rank"]: row for row in means.iter_rows(named=True)}
    role_of = roles.of_ranks(rows, window.collectives)
    lost = {rank: _NO_TIMES for rank, row in rows.items() if row["is_empty"]}
    counts = means.filter(pl.col("ops").is_not_null() & pl.col("kernels").is_not_null())
    for rank, ops, kernels in counts.select("rank", "ops", "kernels").iter_rows():
        is_other = pl.col("rank").is_in([other for other, role in role_of.items() if role == role_of[rank]])
        other_counts = counts.filter(is_other & (pl.col("rank") != rank))
        usual = other_counts.select(pl.col("ops", "kernels").median()).row(0) if other_counts.height else (0.0, 0.0)
        if ops >= MOST * usual[0] and kernels < MOST * usual[1]:
            few = f"{words.count(kernels, 'kernel')} per step, but {usual[1]:.0f} on other ranks"
            lost[rank] = (
                f"lacks kernels in the trace ({few} with about as many operators): the device times are unknown"
            )
    return lost


def without(window: RankedWindow) -> pl.DataFrame:
    is_lost = pl.col("rank").is_in(list(find(window)))
    return window.steps.with_columns(pl.when(~is_lost).then(pl.col(name)).alias(name) for name in _DEVICE_COLUMNS)
