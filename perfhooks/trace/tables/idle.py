"""The table of idle time: why the devices had nothing to do, by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import attribution
from perfhooks.trace.names.origins import PREFERENCE
from perfhooks.trace.nesting import host, intervals, missing_work, step_marks
from perfhooks.trace.nesting.grouping import groups
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.tables import device_time
from perfhooks.trace.tables.step_columns import where

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Flags, Ints, Trace
    from perfhooks.trace.names.origins import Owners

_NAMED: Final = (
    *(device_time.SYNC, device_time.MEMORY, device_time.OPERATORS, device_time.CALLS),
    *(device_time.LAUNCHING, device_time.FULL, device_time.DEPENDENCY),
)
"""Causes that are told by what was called."""
_WORK: Final = (device_time.PENDING, device_time.UNKNOWN)
"""Those that are told by the work that did not begin."""
_LINED: Final = (*range(device_time.NOTHING), device_time.FULL, device_time.DEPENDENCY)
"""Those that have a line."""
DONE: Final = (device_time.OPERATORS, device_time.CODE, device_time.CALLS)
"""Those that a function of somebody's is."""
MOST: Final = 0.9
"""Smallest share of idle time for which a line or a kernel is named."""

_SCHEMA: Final = {
    "device": pl.Int64,
    "step": pl.Int64,
    **dict.fromkeys(("cause", "place", "name", "line"), pl.String),
    **dict.fromkeys(("idle_ms", "percent"), pl.Float64),
    "count": pl.Int64,
}


def table(trace: Trace, chosen: Flags, *, by_step: bool = False, owners: Owners = ()) -> pl.DataFrame:
    """Say why no device worked, in the walls of some steps: most time first.

    ``device`` is null where all devices are looked at together: a moment is idle if none works. Where several worked,
    each has rows of its own besides. ``cause`` is one of `device_time.CAUSES`, ``place`` where in its step the time
    lay: before its first work, after its last, or between. ``name`` is what the host was in, or the launch, or the work
    that did not begin; ``line`` the innermost line of the user there (`perfhooks.trace.names.attribution`), null where
    stacks were not recorded. ``idle_ms`` is the time, which sums to all idle time of these steps, ``percent`` its share
    of their walls, and ``count`` in how many stretches it came. ``step`` is there by step only.

    Args:
        trace: any trace; without work of devices there are no rows.
        chosen: which of the marked steps.
        by_step: whether to tell steps apart.
        owners: whose code is whose.
    """
    numbers = device_time.numbers(trace)
    asked = [device_time.ALL, *(numbers if len(numbers) > 1 else [])] if len(numbers) else []
    tables = [_of_device(trace, each, chosen, by_step, owners) for each in asked]
    found = pl.concat([pl.DataFrame(schema=_SCHEMA), *tables])
    return found if by_step else found.drop("step")


class Spoken(NamedTuple):
    """Idle stretches with what tells why."""

    idle: device_time.Idle
    name: Column
    """An index into `Trace.names`, or -1."""
    line: Ints
    """An index into `lines`, or -1."""
    lines: list[str]

    def words(self, trace: Trace, place: Ints) -> dict[str, pl.Series]:
        """The columns ``cause``, ``name`` and ``line`` of some of the stretches."""
        name, line = self.name[place], self.line[place]
        return {
            "cause": pl.Series(np.array(device_time.CAUSES)[self.idle.cause[place]], dtype=pl.String),
            "name": where(name >= 0, [[*trace.names, ""][each] for each in name.tolist()]),
            "line": where(line >= 0, [[*self.lines, ""][each] for each in line.tolist()]),
        }


def told(trace: Trace, found: device_time.Idle, owners: Owners) -> Spoken:
    """Say of idle stretches what was called in them, and where.

    Args:
        trace: any trace.
        found: some of its idle stretches.
        owners: whose code is whose.
    """
    lined = np.where(np.isin(found.cause, _LINED), found.row, -1)
    asked = np.zeros(len(trace) + 1, np.bool_)
    asked[lined] = True
    rows = np.flatnonzero(asked[:-1])
    place = np.full(len(trace) + 1, -1, np.int64)
    lines, place[rows] = attribution.at_rows(trace, rows, owners)
    line = place[lined]
    is_named = np.isin(found.cause, _NAMED) | (np.isin(found.cause, _LINED) & (line < 0))
    row = np.where(is_named, found.row, -1)
    row = np.where(np.isin(found.cause, _WORK), np.append(trace.device_rows, -1)[found.work], row)
    return Spoken(found, np.append(trace.name.astype(np.int64), -1)[row], line, lines)


def of_steps(trace: Trace, chosen: Flags, number: int = device_time.ALL) -> device_time.Idle:
    """Return the idle stretches of some steps; none of steps whose device times are unknown."""
    found = device_time.idle(trace, number)
    kept = np.append(chosen & ~missing_work.unknown(trace).wall, False)[found.step]
    return device_time.Idle(*(each[kept] for each in found))


def _of_device(trace: Trace, number: int, chosen: Flags, by_step: bool, owners: Owners) -> pl.DataFrame:
    found = of_steps(trace, chosen, number)
    known, marks = told(trace, found, owners), step_marks.find(trace)
    step = found.step if by_step else np.zeros(len(found.start), np.int64)
    each = groups(step, found.cause, found.place + 1, known.name + 1, known.line + 1)
    first, nanos = each.first, each.summed(found.length)
    wall, chosen = marks.end - marks.start, chosen & ~missing_work.unknown(trace).wall
    columns = {
        "device": [None if number == device_time.ALL else number] * len(first),
        "step": pl.Series([*marks.number, None], dtype=pl.Int64).gather(found.step[first]),
        **known.words(trace, first),
        "place": where(found.place[first] >= 0, [device_time.PLACES[place] for place in found.place[first].tolist()]),
        "idle_ms": nanos * MS,
        "percent": 100 * nanos / np.maximum(wall[found.step[first]] if by_step else wall[chosen].sum(), 1),
        "count": each.summed(np.ones(len(step), np.int64)),
    }
    return pl.DataFrame(columns, schema_overrides=_SCHEMA, strict=False).select(*_SCHEMA)[
        np.lexsort((-nanos, step[first]))
    ]


def holder(trace: Trace, found: device_time.Idle, owners: Owners = ()) -> tuple[str, int] | None:
    """The innermost function, called in the steps, in which nine tenths of what the host did in idle time lie.

    Args:
        trace: any trace; without Python frames there is none.
        found: some of its idle stretches.
        owners: whose code is whose.

    Returns:
        The line of the user's, or of an installed package, and the nanoseconds of idle time in it.
    """
    tree, marks = host.tree(trace), step_marks.find(trace)
    mine = np.isin(found.cause, DONE) & (found.row >= 0)
    frames = trace.rows(Kind.PYTHON)
    lines = attribution.names_of(trace, (*PREFERENCE[0], *PREFERENCE[1]), owners)
    frames = frames[lines[trace.name[frames]]]
    step = step_marks.step_of(marks, trace.start[frames])
    frames = frames[(step >= 0) & (marks.end[step] >= trace.end[frames]) & (trace.thread[frames] == marks.thread[step])]
    if not mine.any() or not len(frames):
        return None
    before = np.zeros(len(tree.row) + 1, np.int64)
    np.add.at(before, tree.entry[found.row[mine]] + 1, found.length[mine])
    before = np.cumsum(before)
    entry = tree.entry[frames]
    by_name = groups(trace.name[frames])
    spent = by_name.summed(before[host.after(trace)[entry]] - before[entry])
    depth = by_name.summed(tree.nesting.depth[entry]) / by_name.summed(np.ones(len(entry), np.int64))
    idle = intervals.union(found.start[mine], found.end[mine])
    least = MOST * intervals.total(idle)
    for place in sorted(np.flatnonzero(spent >= least).tolist(), key=lambda place: -depth[place]):
        inside = intervals.total(intervals.intersect(intervals.of_slices(trace, frames[by_name.of == place]), idle))
        if inside >= least:  # a function that calls itself was counted more than once
            return trace.names[trace.name[frames[by_name.first[place]]]], inside
    return None
