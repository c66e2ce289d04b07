"""The table of counters: what power, clocks and the like were during each step, or while each kernel ran."""

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
"""``Power (W)``, as torch's next recorder and rocprof write it."""
_ENOUGH: Final = 0.999
"""Of a step that samples cover: what is left may be a sample that came a little late."""

ACTIVITY: Final = {"SM Active (%)": "SM active", "DRAM BW (%)": "DRAM", "HBM BW (%)": "DRAM"}
"""What torch's next recorder calls its samples of how much of a device worked, in percent of what it can."""

_SCHEMA: Final = {
    **dict.fromkeys(("counter", "unit"), pl.String),
    **dict.fromkeys(("device", "step"), pl.Int64),
    "kernel": pl.String,
    "samples": pl.Int64,
    **dict.fromkeys(("mean", "min", "max", "integral", "covered_ms"), pl.Float64),
}


class _Series(NamedTuple):
    """One counter of one device: a number that holds from each sample to the next."""

    name: str
    device: int
    time: Ints
    value: Floats

    @property
    def ends(self) -> Ints:
        """Until when each sample holds; the last one as long as they do in the middle."""
        usual = int(np.median(np.diff(self.time))) if len(self.time) > 1 else 0
        return np.append(self.time[1:], self.time[-1] + usual)

    def until(self, moment: Ints) -> tuple[Floats, Floats]:
        """Up to each moment: the integral, in the counter's unit times nanoseconds, and the nanoseconds covered."""
        # from the first sample on: a double does not hold nanoseconds since 1970
        ends = self.ends - self.time[0]
        edges = np.concatenate(([0], ends))
        area = np.concatenate(([0.0], np.cumsum(self.value * np.diff(edges))))
        return np.interp(moment - self.time[0], edges, area), np.interp(moment - self.time[0], edges, edges)


class CounterMeans(NamedTuple):
    """One counter of one device over time."""

    counter: str
    device: int | None
    mean: list[float | None]
    """In each part of `OverTime`; None where no sample covers any of it."""


class OverTime(NamedTuple):
    """Counters over parts of the steps."""

    step: list[int | None]
    begin_ms: list[float]
    end_ms: list[float]
    lanes: list[CounterMeans]
    """Those that have a sample in the steps."""


def table(trace: Trace) -> pl.DataFrame:
    """Say what each counter was during each step: one row for each counter, device and step, by time.

    Counters are the rows of a trace whose phase is ``C``, whoever wrote them: what torch's next recorder samples
    (power, clocks, temperature, SM active, DRAM), Kineto's, rocprof's. ``unit`` is what the name has in parentheses.

    A sample holds until the next one, the last one for the median distance of samples::

        samples    70 W        90 W   90 W
                   |-----------|------|......|
        step               |=========|            integral 70 W * 4 ms + 90 W * 5 ms = 0.73 J

    ``mean`` is over what samples cover of the step, ``covered_ms``; ``min`` and ``max`` are of the samples that hold in
    it, ``samples`` how many they are. ``integral`` is in the unit times seconds: of power in W it is the step's energy
    in joules. It is null where samples do not cover the whole step (`_ENOUGH`).

    Args:
        trace: any trace.
    """
    found = step_marks.find(trace)
    rows = [
        row | {"step": number}
        for series in _series(trace)
        for number, row in zip(found.number, _over(series, found.start, found.end), strict=True)
        if row["samples"]
    ]
    return pl.DataFrame(rows, schema=_SCHEMA)


def by_kernel(trace: Trace) -> pl.DataFrame:
    """The same for the time in which each kernel, copy or memset ran on the counter's device, summed over its calls.

    Work that runs side by side counts each moment for each of them. Most integral first.

    Args:
        trace: any trace.
    """
    work = trace.device_rows
    on, rows = device.devices(trace, work), []
    for series in _series(trace):
        mine = work[on == series.device]
        for name in np.unique(trace.name[mine]).tolist():
            calls = mine[trace.name[mine] == name]
            held = pl.DataFrame([*_over(series, trace.start[calls], trace.end[calls])], schema=_SCHEMA)
            known = held.filter(pl.col("samples") > 0)
            if known.height:
                weights = pl.col("covered_ms")
                whole = pl.col("integral").sum() if not held["integral"].null_count() else pl.lit(None, pl.Float64)
                sums = known.select(
                    *("counter", "unit", "device", "step"),
                    pl.lit(trace.names[name]).alias("kernel"),
                    pl.col("samples").sum(),
                    ((pl.col("mean") * weights).sum() / weights.sum()).alias("mean"),
                    pl.col("min").min(),
                    pl.col("max").max(),
                    whole.alias("integral"),
                    weights.sum(),
                )
                rows.append(sums.head(1))
    if not rows:
        return pl.DataFrame(schema=_SCHEMA)
    return pl.concat(rows).sort("counter", "device", "integral", descending=[False, False, True], nulls_last=True)


def activity(found: pl.DataFrame, steps: pl.Series) -> dict[str, float]:
    """How much of the devices worked in some steps, as sampled: percent of the time and of all of them, by `ACTIVITY`.

    Args:
        found: what `table` says.
        steps: their numbers; null for a recording without steps.

    Returns:
        What was sampled throughout all of these steps, on each device that was sampled at all.
    """
    is_wanted = pl.col("step").fill_null(-1).is_in(steps.fill_null(-1).implode())
    wanted = found.filter(pl.col("counter").is_in([*ACTIVITY]), is_wanted)
    told = {}
    for (counter,), rows in wanted.group_by("counter", maintain_order=True):
        samples = rows.drop_nulls("integral")
        if samples.height == rows["device"].n_unique() * len(steps):
            told[ACTIVITY[str(counter)]] = float((samples["mean"] * samples["covered_ms"]).sum()) / float(
                samples["covered_ms"].sum()
            )
    return told


def over_time(trace: Trace, counting: Flags, points: int) -> OverTime:
    """What each counter was in turn during the steps that count: its mean over equal parts of each.

    Args:
        trace: any trace.
        counting: which of the marks of steps count.
        points: how many parts at most; of more steps than that, the first ones are shown, one part each.
    """
    found, shown = step_marks.find(trace), np.flatnonzero(counting)[:points]
    each = max(points // max(len(shown), 1), 1)
    start, wall = found.start[shown, None], (found.end - found.start)[shown, None]
    edges = start + wall * np.arange(each + 1) // each
    begin, end = edges[:, :-1].ravel(), edges[:, 1:].ravel()
    lanes = [
        CounterMeans(
            series.name,
            None if series.device < 0 else series.device,
            [row["mean"] for row in _over(series, begin, end)],
        )
        for series in _series(trace)
    ]
    return OverTime(
        [found.number[place] for place in shown.tolist() for _ in range(each)],
        since_start(trace, begin).tolist(),
        since_start(trace, end).tolist(),
        [lane for lane in lanes if any(mean is not None for mean in lane.mean)],
    )


@cached_per_trace
def _series(trace: Trace) -> list[_Series]:
    found = trace.counters
    edges = np.searchsorted(found.series, np.arange(len(found.names) + 1))
    return [
        _Series(name, number, found.time[first:last], found.value[first:last])
        for name, number, first, last in zip(found.names, found.device.tolist(), edges[:-1], edges[1:], strict=True)
    ]


def _over(series: _Series, start: Ints, end: Ints) -> Iterator[dict[str, Any]]:
    """What a counter was in each of some spans of time."""
    areas, covers = (after - before for before, after in zip(series.until(start), series.until(end), strict=True))
    first = np.searchsorted(series.ends, start, "right")
    last = np.searchsorted(series.time, end, "left")
    unit = _UNIT.search(series.name)
    place = {"counter": series.name, "unit": unit and unit[1], "device": None if series.device < 0 else series.device}
    spans = zip(areas.tolist(), covers.tolist(), (end - start).tolist(), first.tolist(), last.tolist(), strict=True)
    for area, covered, span, begin, finish in spans:
        held = series.value[begin:finish]
        yield place | {
            "kernel": None,
            "samples": len(held) if covered > 0 else 0,
            "mean": area / covered if covered > 0 else None,
            "min": held.min() if len(held) else None,
            "max": held.max() if len(held) else None,
            "integral": area * 1e-9 if covered >= _ENOUGH * span else None,
            "covered_ms": covered * MS,
        }
