from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.trace.limits import rates
from perfhooks.trace.nesting import device, intervals, missing_work
from perfhooks.trace.nesting.intervals import MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.trace.model import Ints, Trace

BEFORE: Final = "(launched before the window)"

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
    """Return the cost of each kernel, copy and memset: one row for each device, name and class, most time first.

    Simultaneous kernels of several streams all count in full. Nested work of one stream counts once
    (`device.own_times`), so the kernels of a stream sum to its busy time.

    ``occupancy_percent`` is Kineto's ``est. achieved occupancy %``, weighted by time. Kineto rounds the occupancy to
    whole percents, and writes 0 for many large kernels. ``gap_before_ms`` and ``gap_after_ms`` are the mean idle times
    of the stream before and after the work, without gaps in which unrecorded work may have run. ``operators`` names up
    to three launching operators (`device.owners`), or the region in a CUDA graph.
    """
    if not trace.is_device_traced:
        return pl.DataFrame(schema=_SCHEMA)
    work = _work_rows(trace)
    keys = ("device", "name", "class")
    named = (
        work.filter(pl.col("operator").is_not_null())
        .group_by(*keys, "operator", maintain_order=True)
        .agg(pl.col("span").sum())
        .sort("span", descending=True, maintain_order=True)
        .group_by(*keys, maintain_order=True)
        .agg(pl.col("operator").head(3).str.join(", ").alias("operators"))
    )
    return _sort_and_cast(_aggregate(work, keys).join(named, on=keys, how="left"), _SCHEMA)


def by_launch(trace: Trace) -> pl.DataFrame:
    """Return the cost of device work: one row for each launching operator, device, name and class."""
    if not trace.is_device_traced:
        return pl.DataFrame(schema=_BY_LAUNCH)
    return _sort_and_cast(_aggregate(_work_rows(trace), ("operator", "device", "name", "class")), _BY_LAUNCH)


def _work_rows(trace: Trace) -> pl.DataFrame:
    rows = trace.device_rows
    names = pl.Series([*trace.names, BEFORE, None], dtype=pl.String)
    before_window, without_name = len(trace.names), len(trace.names) + 1
    owner = device.owners(trace)
    unknown = np.where(device.before_window(trace), before_window, without_name)
    work = pl.DataFrame(
        {
            "device": device.devices(trace, rows),
            "name": names[trace.name[rows].astype(np.int64)],
            "class": pl.Series(device.CLASSES, dtype=pl.String)[device.classes(trace)],
            "operator": _with_region_names(
                trace, names[np.where(owner >= 0, np.append(trace.name, without_name)[owner], unknown)]
            ),
            "stream": trace.thread[rows],
            "start": trace.start[rows],
            "end": trace.end[rows],
            "span": device.own_times(trace),
            "occupancy": _occupancy(trace, rows),
            **rates.of_work(trace),
        }
    ).with_columns(_gap_before().alias("before"))
    after = pl.col("before").shift(-1).over("stream").alias("after")
    return _with_known_gaps(trace, work).with_columns(after)


def _with_region_names(trace: Trace, operators: pl.Series) -> pl.Series:
    regions = device.regions(trace)
    if not regions.names:
        return operators
    region_names = pl.Series([*regions.names, None], dtype=pl.String)[regions.place % (len(regions.names) + 1)]
    with_regions: pl.Series = region_names.zip_with(region_names.is_not_null(), operators)
    return with_regions


def _occupancy(trace: Trace, rows: Ints) -> pl.Series:
    if "occupancy" not in trace.arguments:
        return pl.repeat(None, len(rows), dtype=pl.Float64, eager=True)
    return pl.Series(trace.argument("occupancy")[rows], nan_to_null=True)


def _gap_before() -> pl.Expr:
    latest_end = pl.col("end").cum_max().shift(1).over("stream")
    return (pl.col("start") - latest_end).clip(lower_bound=0)


def _with_known_gaps(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    lost = missing_work.lost_times(trace)
    start = work["start"].to_numpy()
    is_known = intervals.within(lost, start - work["before"].fill_null(0).to_numpy(), start) == 0
    return work.with_columns(pl.when(pl.Series(is_known)).then("before")) if len(lost) else work


def _aggregate(work: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    span, occupancy = pl.col("span"), pl.col("occupancy")
    time = span.filter(occupancy.is_not_null()).sum()
    grouped = work.group_by(*keys, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("count"),
        (span.sum() * MS).alias("total_ms"),
        (span.mean() * MS).alias("mean_ms"),
        (span.min() * MS).alias("min_ms"),
        (span.max() * MS).alias("max_ms"),
        pl.when(time > 0).then((occupancy * span).sum() / time).alias("occupancy_percent"),
        (pl.col("before").mean() * MS).alias("gap_before_ms"),
        (pl.col("after").mean() * MS).alias("gap_after_ms"),
        pl.col(rates.SUMS).sum(),
    )
    return grouped.with_columns(**rates.columns({name: grouped[name].to_numpy() for name in rates.SUMS}))


def _sort_and_cast(table: pl.DataFrame, schema: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    by = [name for name in ("device", "name", "class", "operator") if name in schema]
    return (
        table.sort("total_ms", *by, descending=[True, *(False for _ in by)], nulls_last=True)
        .with_columns(pl.when(pl.col("device") >= 0).then(pl.col("device")).alias("device"))
        .select(pl.col(name).cast(kind) for name, kind in schema.items())
    )
