"""The table of kernels: what a device ran, how long, and which operators asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.trace.limits import rates
from perfhooks.trace.nesting import device
from perfhooks.trace.nesting.intervals import MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.trace.model import Ints, Trace

BEFORE: Final = "(launched before the window)"
"""Stands for the operator that launched work before recording began."""
_NAMED: Final = 3
"""Operators that are named as those that launched a kernel."""

_MEASURES: Final = {
    "count": pl.Int64,
    **dict.fromkeys(("total_ms", "mean_ms", "min_ms", "max_ms"), pl.Float64),
    "occupancy_percent": pl.Float64,
    **dict.fromkeys(("gap_before_ms", "gap_after_ms"), pl.Float64),
}
_KEYS: Final = {"device": pl.Int64, "name": pl.String, "class": pl.String}
_SCHEMA: Final = {**_KEYS, **_MEASURES, "operators": pl.String, **rates.COLUMNS}
_BY_LAUNCH: Final = {"operator": pl.String, **_KEYS, **_MEASURES, **rates.COLUMNS}


def table(trace: Trace) -> pl.DataFrame:
    """Say what each kernel cost: one row for each device, name and class, most time first.

    Copies and memsets are rows too. ``class`` is ``communication`` for a kernel that has the arguments of a collective
    or a name of `communication.LIBRARIES`, ``copy``, ``set``, or ``compute`` for all others; as in the table of steps.
    ``count``; ``total_ms``, ``mean_ms``, ``min_ms``, ``max_ms`` of the durations, in milliseconds: the total is a plain
    sum, in which kernels that ran side by side count each. A kernel that holds others of its stream counts without
    them (`device.own_times`), so that those of a stream sum to the time in which any ran.

    ``occupancy_percent`` is Kineto's ``est. achieved occupancy %``, weighted by time over the work that has it; null
    where none does, as on ROCm. Kineto writes whole percents, and 0 for many large kernels.

    ``gap_before_ms`` and ``gap_after_ms`` are means of how long the stream had been idle when the work began, and was
    idle when it ended; null for what is alone on its stream.

    How fast it was, and how far from the limit, is told through the operator that launched it: `rates.of_work`,
    `rates.columns`.

    ``operators`` names those that launched it, up to three, most time first: see `device.owners`; work that somebody
    named as it was recorded into a CUDA graph has that name instead (`device.regions`). Work of before the
    window, which is in no step (`device.before_window`), is counted here, with ``(launched before the window)`` among
    its operators.

    Args:
        trace: any trace; without device work the table is empty.
    """
    if not trace.is_device_traced:
        return pl.DataFrame(schema=_SCHEMA)
    work = _work(trace)
    keys = ("device", "name", "class")
    named = (
        work.filter(pl.col("operator").is_not_null())
        .group_by(*keys, "operator", maintain_order=True)
        .agg(pl.col("span").sum())
        .sort("span", descending=True, maintain_order=True)
        .group_by(*keys, maintain_order=True)
        .agg(pl.col("operator").head(_NAMED).str.join(", ").alias("operators"))
    )
    return _finished(_measured(work, keys).join(named, on=keys, how="left"), _SCHEMA)


def by_launch(trace: Trace) -> pl.DataFrame:
    """Say what each operator had the device do: one row for each launching operator, device, name and class.

    ``operator`` is the operator or label that launched the work, ``(launched before the window)``, or null where the
    trace does not tell; the other columns are those of `table`. Every piece of work is in exactly one row of either.

    Args:
        trace: any trace; without device work the table is empty.
    """
    if not trace.is_device_traced:
        return pl.DataFrame(schema=_BY_LAUNCH)
    return _finished(_measured(_work(trace), ("operator", "device", "name", "class")), _BY_LAUNCH)


def _work(trace: Trace) -> pl.DataFrame:
    """One row for every piece of work of a device, by stream and start; times in nanoseconds."""
    rows = trace.device_rows
    names = pl.Series([*trace.names, BEFORE, None], dtype=pl.String)
    before, nobody = len(trace.names), len(trace.names) + 1
    owner = device.owners(trace)
    unknown = np.where(device.before_window(trace), before, nobody)
    return (
        pl.DataFrame(
            {
                "device": device.devices(trace, rows),
                "name": names.gather(trace.name[rows].astype(np.int64)),
                "class": pl.Series(device.CLASSES, dtype=pl.String).gather(device.classes(trace)),
                "operator": _named(
                    trace, names.gather(np.where(owner >= 0, np.append(trace.name, nobody)[owner], unknown))
                ),
                "stream": trace.thread[rows],
                "start": trace.start[rows],
                "end": trace.end[rows],
                "span": device.own_times(trace),
                "occupancy": _occupancy(trace, rows),
                **rates.of_work(trace),
            }
        )
        .with_columns(_gap().alias("before"))
        .with_columns(pl.col("before").shift(-1).over("stream").alias("after"))
    )


def _named(trace: Trace, operators: pl.Series) -> pl.Series:
    regions = device.regions(trace)
    if not regions.names:
        return operators
    called = pl.Series([*regions.names, None], dtype=pl.String).gather(regions.place % (len(regions.names) + 1))
    named: pl.Series = called.zip_with(called.is_not_null(), operators)
    return named


def _occupancy(trace: Trace, rows: Ints) -> pl.Series:
    if "occupancy" not in trace.arguments:
        return pl.repeat(None, len(rows), dtype=pl.Float64, eager=True)
    return pl.Series(trace.argument("occupancy")[rows], nan_to_null=True)


def _gap() -> pl.Expr:
    """How long the stream has been idle when work begins; null for the first."""
    reached = pl.col("end").cum_max().shift(1).over("stream")
    return (pl.col("start") - reached).clip(lower_bound=0)


def _measured(work: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    span, occupancy = pl.col("span"), pl.col("occupancy")
    time = span.filter(occupancy.is_not_null()).sum()
    found = work.group_by(*keys, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("count"),
        (span.sum() * MS).alias("total_ms"),
        (span.mean() * MS).alias("mean_ms"),
        (span.min() * MS).alias("min_ms"),
        (span.max() * MS).alias("max_ms"),
        # work without length weighs nothing, so nothing can be said of it alone
        pl.when(time > 0).then((occupancy * span).sum() / time).alias("occupancy_percent"),
        (pl.col("before").mean() * MS).alias("gap_before_ms"),
        (pl.col("after").mean() * MS).alias("gap_after_ms"),
        pl.col(rates.SUMS).sum(),
    )
    return found.with_columns(**rates.columns({name: found[name].to_numpy() for name in rates.SUMS}))


def _finished(table: pl.DataFrame, schema: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    by = [name for name in ("device", "name", "class", "operator") if name in schema]
    return (
        table.sort("total_ms", *by, descending=[True, *(False for _ in by)], nulls_last=True)
        .with_columns(pl.when(pl.col("device") >= 0).then(pl.col("device")).alias("device"))
        .select(pl.col(name).cast(kind) for name, kind in schema.items())
    )
