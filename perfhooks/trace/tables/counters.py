from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.trace.nesting import device, step_marks
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.once import cached_per_trace
from perfhooks.trace.tables.step_columns import since_start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from perfhooks.trace.model import Floats, Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags

_UNIT: Final = re.compile(r"\s*\(([^()]{1,12})\)$")

ACTIVITY: Final = {"SM Active (%)": "SM active", "DRAM BW (%)": "DRAM", "HBM BW (%)": "DRAM"}
"""Short names for the activity counters (percent) of cuspy, the second recorder of torch."""

_SCHEMA: Final = {
    **dict.fromkeys(("counter", "unit"), pl.String),
    **dict.fromkeys(("device", "step"), pl.Int64),
    "kernel": pl.String,
    "samples": pl.Int64,
    **dict.fromkeys(("mean", "min", "max", "integral", "covered_ms"), pl.Float64),
}


class _Series(NamedTuple):
    name: str
    device: int
    time: Ints
    value: Floats

    @property
    def ends(self) -> Ints:
        usual = int(np.median(np.diff(self.time))) if len(self.time) > 1 else 0
        return np.append(self.time[1:], self.time[-1] + usual)

    def until(self, moment: Ints) -> tuple[Floats, Floats]:
        """Return the integral up to each time, in counter unit x ns, and the time covered by samples, in ns."""
        # a double cannot represent ns since 1970 exactly
        ends = self.ends - self.time[0]
        edges = np.concatenate(([0], ends))
        area = np.concatenate(([0.0], np.cumsum(self.value * np.diff(edges))))
        return np.interp(moment - self.time[0], edges, area), np.interp(moment - self.time[0], edges, edges)


class CounterMeans(NamedTuple):
    counter: str
    device: int | None
    mean: list[float | None]


class OverTime(NamedTuple):
    step: list[int | None]
    begin_ms: list[float]
    end_ms: list[float]
    lanes: list[CounterMeans]


def table(trace: Trace) -> pl.DataFrame:
    """Return the values of each counter during each step: one row for each counter, device and step.

    A sample is valid until the next sample, and the last one for the median distance between samples.

    ``mean`` is the mean over ``covered_ms``, the time of the step with valid samples. ``integral`` is in counter unit x
    seconds (joules for power), and null if samples do not cover the whole step.
    """
    marks = step_marks.find(trace)
    rows = [
        row | {"step": number}
        for series in _series(trace)
        for number, row in zip(marks.number, _values_in(series, marks.start, marks.end), strict=True)
        if row["samples"]
    ]
    return pl.DataFrame(rows, schema=_SCHEMA)


def by_kernel(trace: Trace) -> pl.DataFrame:
    """Return the values of each counter during each kernel, copy and memset on its device.

    If kernels overlap, samples count for each of these kernels.
    """
    work = trace.device_rows
    device_of_work, rows = device.devices(trace, work), []
    for series in _series(trace):
        device_work = work[device_of_work == series.device]
        for name in np.unique(trace.name[device_work]).tolist():
            calls = device_work[trace.name[device_work] == name]
            values = pl.DataFrame([*_values_in(series, trace.start[calls], trace.end[calls])], schema=_SCHEMA)
            sampled = values.filter(pl.col("samples") > 0)
            if sampled.height:
                weights = pl.col("covered_ms")
                integral = pl.col("integral").sum() if not values["integral"].null_count() else pl.lit(None, pl.Float64)
                sums = sampled.select(
                    *("counter", "unit", "device", "step"),
                    pl.lit(trace.names[name]).alias("kernel"),
                    pl.col("samples").sum(),
                    ((pl.col("mean") * weights).sum() / weights.sum()).alias("mean"),
                    pl.col("min").min(),
                    pl.col("max").max(),
                    integral.alias("integral"),
                    weights.sum(),
                )
                rows.append(sums.head(1))
    if not rows:
        return pl.DataFrame(schema=_SCHEMA)
    return pl.concat(rows).sort("counter", "device", "integral", descending=[False, False, True], nulls_last=True)


def activity(counter_table: pl.DataFrame, steps: pl.Series) -> dict[str, float]:
    """Return the mean of each `ACTIVITY` counter in percent, if samples cover all ``steps`` on each sampled device."""
    is_in_steps = pl.col("step").fill_null(-1).is_in(steps.fill_null(-1).to_list())
    selected = counter_table.filter(pl.col("counter").is_in([*ACTIVITY]), is_in_steps)
    percentages = {}
    for (counter,), rows in selected.group_by("counter", maintain_order=True):
        samples = rows.drop_nulls("integral")
        if samples.height == rows["device"].n_unique() * len(steps):
            percentages[ACTIVITY[str(counter)]] = float((samples["mean"] * samples["covered_ms"]).sum()) / float(
                samples["covered_ms"].sum()
            )
    return percentages


def over_time(trace: Trace, counting: Flags, points: int) -> OverTime:
    """Return the mean of each counter over at most ``points`` equal sections of the complete steps."""
    marks, shown = step_marks.find(trace), np.flatnonzero(counting)[:points]
    sections = max(points // max(len(shown), 1), 1)
    start, wall = marks.start[shown, None], (marks.end - marks.start)[shown, None]
    edges = start + wall * np.arange(sections + 1) // sections
    begin, end = edges[:, :-1].ravel(), edges[:, 1:].ravel()
    lanes = [
        CounterMeans(
            series.name,
            None if series.device < 0 else series.device,
            [row["mean"] for row in _values_in(series, begin, end)],
        )
        for series in _series(trace)
    ]
    return OverTime(
        [marks.number[index] for index in shown.tolist() for _ in range(sections)],
        since_start(trace, begin).tolist(),
        since_start(trace, end).tolist(),
        [lane for lane in lanes if any(mean is not None for mean in lane.mean)],
    )


@cached_per_trace
def _series(trace: Trace) -> list[_Series]:
    samples = trace.counters
    edges = np.searchsorted(samples.series, np.arange(len(samples.names) + 1))
    return [
        _Series(name, number, samples.time[first:last], samples.value[first:last])
        for name, number, first, last in zip(samples.names, samples.device.tolist(), edges[:-1], edges[1:], strict=True)
    ]


def _values_in(series: _Series, start: Ints, end: Ints) -> Iterator[dict[str, Any]]:
    areas, covers = (after - before for before, after in zip(series.until(start), series.until(end), strict=True))
    first = np.searchsorted(series.ends, start, "right")
    last = np.searchsorted(series.time, end, "left")
    unit = _UNIT.search(series.name)
    index = {"counter": series.name, "unit": unit and unit[1], "device": None if series.device < 0 else series.device}
    spans = zip(areas.tolist(), covers.tolist(), (end - start).tolist(), first.tolist(), last.tolist(), strict=True)
    for area, covered, span, begin, finish in spans:
        values = series.value[begin:finish]
        yield index | {
            "kernel": None,
            "samples": len(values) if covered > 0 else 0,
            "mean": area / covered if covered > 0 else None,
            "min": values.min() if len(values) else None,
            "max": values.max() if len(values) else None,
            "integral": area * 1e-9 if covered >= 0.999 * span else None,
            "covered_ms": covered * MS,
        }
