from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import attribution
from perfhooks.trace.names.origins import PREFERENCE
from perfhooks.trace.nesting import device, host, intervals, missing_work, step_marks
from perfhooks.trace.nesting.grouping import groups
from perfhooks.trace.nesting.intervals import MS, NEARLY_ALL
from perfhooks.trace.tables import device_time
from perfhooks.trace.tables.step_columns import where

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Flags, Ints, Trace
    from perfhooks.trace.names.origins import Owners

_CALL_CAUSES: Final = (
    *(device_time.SYNC, device_time.MEMORY, device_time.OPERATORS, device_time.CALLS),
    *(device_time.LAUNCHING, device_time.FULL, device_time.DEPENDENCY),
)
_WORK_CAUSES: Final = (device_time.PENDING, device_time.UNKNOWN)
_LINE_CAUSES: Final = (*range(device_time.NOTHING), device_time.FULL, device_time.DEPENDENCY)
DONE: Final = (device_time.OPERATORS, device_time.CODE, device_time.CALLS)

_SCHEMA: Final = {
    "device": pl.Int64,
    "step": pl.Int64,
    **dict.fromkeys(("cause", "place", "name", "line"), pl.String),
    **dict.fromkeys(("idle_ms", "percent"), pl.Float64),
    "count": pl.Int64,
}


def table(trace: Trace, selected: Flags, *, by_step: bool = False, owners: Owners = ()) -> pl.DataFrame:
    """Return the causes of device idle time in the selected steps, most time first.

    ``device`` is null for time in which all devices are idle. ``cause`` is one of `device_time.CAUSES`, ``place`` one
    of `device_time.PLACES`. ``name`` is the host slice, launch or device work that explains the cause. ``percent`` is
    relative to the wall time of the steps.
    """
    numbers = device.numbers(trace)
    device_choices = [None, *(numbers if len(numbers) > 1 else [])] if len(numbers) else []
    tables = [_of_device(trace, device_choice, selected, by_step, owners) for device_choice in device_choices]
    rows = pl.concat([pl.DataFrame(schema=_SCHEMA), *tables])
    return rows if by_step else rows.drop("step")


class ExplainedIdle(NamedTuple):
    idle: device_time.Idle
    name: Column
    """Index into `Trace.names`, or -1."""
    line: Ints
    lines: list[str]

    def columns_of(self, trace: Trace, index: Ints) -> dict[str, pl.Series]:
        name, line = self.name[index], self.line[index]
        return {
            "cause": pl.Series(np.array(device_time.CAUSES)[self.idle.cause[index]], dtype=pl.String),
            "name": where(name >= 0, [[*trace.names, ""][number] for number in name.tolist()]),
            "line": where(line >= 0, [[*self.lines, ""][number] for number in line.tolist()]),
        }


def explain(trace: Trace, idle: device_time.Idle, owners: Owners) -> ExplainedIdle:
    lined = np.where(np.isin(idle.cause, _LINE_CAUSES), idle.row, -1)
    has_line = np.zeros(len(trace) + 1, np.bool_)
    has_line[lined] = True
    rows = np.flatnonzero(has_line[:-1])
    index = np.full(len(trace) + 1, -1, np.int64)
    lines, index[rows] = attribution.at_rows(trace, rows, owners)
    line = index[lined]
    is_named = np.isin(idle.cause, _CALL_CAUSES) | (np.isin(idle.cause, _LINE_CAUSES) & (line < 0))
    row = np.where(is_named, idle.row, -1)
    row = np.where(np.isin(idle.cause, _WORK_CAUSES), np.append(trace.device_rows, -1)[idle.work], row)
    return ExplainedIdle(idle, np.append(trace.name.astype(np.int64), -1)[row], line, lines)


def of_steps(trace: Trace, selected: Flags, number: int | None = None) -> device_time.Idle:
    """Return the idle time of each step and cause, except for steps whose device times are unknown."""
    idle = device_time.idle(trace, number)
    is_kept = np.append(selected & ~missing_work.unknown(trace).wall, False)[idle.step]
    return device_time.Idle(*(column[is_kept] for column in idle))


def _of_device(trace: Trace, number: int | None, selected: Flags, by_step: bool, owners: Owners) -> pl.DataFrame:
    idle = of_steps(trace, selected, number)
    explained, marks = explain(trace, idle, owners), step_marks.find(trace)
    step = idle.step if by_step else np.zeros(len(idle.start), np.int64)
    grouped = groups(step, idle.cause, idle.place + 1, explained.name + 1, explained.line + 1)
    first, nanos = grouped.first, grouped.summed(idle.length)
    wall, selected = marks.end - marks.start, selected & ~missing_work.unknown(trace).wall
    columns = {
        "device": [number] * len(first),
        "step": pl.Series([*marks.number, None], dtype=pl.Int64)[idle.step[first]],
        **explained.columns_of(trace, first),
        "place": where(idle.place[first] >= 0, [device_time.PLACES[index] for index in idle.place[first].tolist()]),
        "idle_ms": nanos * MS,
        "percent": 100 * nanos / np.maximum(wall[idle.step[first]] if by_step else wall[selected].sum(), 1),
        "count": grouped.summed(np.ones(len(step), np.int64)),
    }
    return pl.DataFrame(columns, schema_overrides=_SCHEMA, strict=False).select(*_SCHEMA)[
        np.lexsort((-nanos, step[first]))
    ]


def holder(trace: Trace, idle: device_time.Idle, owners: Owners = ()) -> tuple[str, int] | None:
    """Return the innermost function with 90% of the host activity in device idle time, and the covered time in ns."""
    tree, marks = host.tree(trace), step_marks.find(trace)
    is_activity = np.isin(idle.cause, DONE) & (idle.row >= 0)
    frames = trace.rows(Kind.PYTHON)
    lines = attribution.names_of(trace, (*PREFERENCE[0], *PREFERENCE[1]), owners)
    frames = frames[lines[trace.name[frames]]]
    step = step_marks.step_of(marks, trace.start[frames])
    frames = frames[(step >= 0) & (marks.end[step] >= trace.end[frames]) & (trace.thread[frames] == marks.thread[step])]
    if not is_activity.any() or not len(frames):
        return None
    before = np.zeros(len(tree.row) + 1, np.int64)
    np.add.at(before, tree.entry[idle.row[is_activity]] + 1, idle.length[is_activity])
    before = np.cumsum(before)
    entry = tree.entry[frames]
    by_name = groups(trace.name[frames])
    idle_in_function = by_name.summed(before[host.after(trace)[entry]] - before[entry])
    depth = by_name.summed(tree.nesting.depth[entry]) / by_name.summed(np.ones(len(entry), np.int64))
    idle_intervals = intervals.union(idle.start[is_activity], idle.end[is_activity])
    threshold = NEARLY_ALL * intervals.total(idle_intervals)
    for index in sorted(np.flatnonzero(idle_in_function >= threshold).tolist(), key=lambda index: -depth[index]):
        inside = intervals.total(
            intervals.intersect(intervals.of_slices(trace, frames[by_name.of == index]), idle_intervals)
        )
        if inside >= threshold:
            return attribution.frame_name(trace, int(frames[by_name.first[index]])) or "", inside
    return None
