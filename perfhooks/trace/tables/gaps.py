from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.trace.nesting.grouping import Groups, groups
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.tables import idle
from perfhooks.trace.tables.device_time import Idle
from perfhooks.trace.tables.step_columns import since_start, step_numbers

if TYPE_CHECKING:
    from perfhooks.trace.model import Flags, Trace
    from perfhooks.trace.names.origins import Owners

_SCHEMA: Final = {
    "step": pl.Int64,
    **dict.fromkeys(("start_ms", "gap_ms"), pl.Float64),
    "cause": pl.String,
    "cause_ms": pl.Float64,
    **dict.fromkeys(("name", "line"), pl.String),
}


def table(trace: Trace, selected: Flags, *, owners: Owners = ()) -> pl.DataFrame:
    """List the longest intervals without device work in the selected steps: at most ten, the longest first.

    A gap ends when work begins, or at the end of the steps. ``cause_ms`` is the time of the main cause of the gap. For
    the columns of causes, see `perfhooks.trace.tables.idle`.
    """
    intervals = idle.of_steps(trace, selected)
    if not len(intervals.start):
        return pl.DataFrame(schema=_SCHEMA)
    gap, first = by_gap(intervals)
    length = np.add.reduceat(intervals.length, first)
    longest = np.argsort(-length, kind="stable")[:10]
    inside = np.isin(gap, longest)
    explained, gap = idle.explain(trace, Idle(*(column[inside] for column in intervals)), owners), gap[inside]
    by_cause = groups(gap, explained.idle.cause, explained.name + 1, explained.line + 1)
    nanos = by_cause.summed(explained.idle.length)
    order = np.lexsort((-nanos, gap[by_cause.first]))
    order = order[np.searchsorted(gap[by_cause.first][order], longest)]
    begin = intervals.start[first[longest]]
    columns = {
        "step": step_numbers(trace, begin),
        "start_ms": since_start(trace, begin),
        "gap_ms": length[longest] * MS,
        "cause_ms": nanos[order] * MS,
        **explained.columns_of(trace, by_cause.first[order]),
    }
    return pl.DataFrame(columns, schema_overrides=_SCHEMA, strict=False).select(*_SCHEMA)


def by_gap(idle_intervals: Idle) -> Groups:
    """Group adjacent idle intervals, sorted by time, into gaps without device work."""
    begins = np.append(True, idle_intervals.start[1:] > idle_intervals.end[:-1])[: len(idle_intervals.start)]
    return Groups(np.cumsum(begins) - 1, np.flatnonzero(begins))
