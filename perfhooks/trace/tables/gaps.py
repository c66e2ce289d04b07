"""The table of gaps: when the devices had nothing to do for longest, and why."""

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

MOST: Final = 10
"""Rows of the table."""

_SCHEMA: Final = {
    "step": pl.Int64,
    **dict.fromkeys(("start_ms", "gap_ms"), pl.Float64),
    "cause": pl.String,
    "cause_ms": pl.Float64,
    **dict.fromkeys(("name", "line"), pl.String),
}


def table(trace: Trace, chosen: Flags, *, owners: Owners = ()) -> pl.DataFrame:
    """List the longest times in which no device worked, in some steps: ten at most, the longest first.

    A gap ends where work begins, or where the steps end. ``step`` is that in which it began; ``start_ms`` counts from
    the first slice of the trace; ``gap_ms`` is its length. ``cause``, ``name`` and ``line`` are those of the table of
    idle time (`perfhooks.trace.tables.idle`) that took most of it, for ``cause_ms``.

    Args:
        trace: any trace; without device work there are no rows.
        chosen: which of the marked steps.
        owners: whose code is whose.
    """
    found = idle.of_steps(trace, chosen)
    if not len(found.start):
        return pl.DataFrame(schema=_SCHEMA)
    gap, first = together(found)
    length = np.add.reduceat(found.length, first)
    longest = np.argsort(-length, kind="stable")[:MOST]
    inside = np.isin(gap, longest)
    known, gap = idle.told(trace, Idle(*(each[inside] for each in found)), owners), gap[inside]
    each = groups(gap, known.idle.cause, known.name + 1, known.line + 1)
    nanos = each.summed(known.idle.length)
    order = np.lexsort((-nanos, gap[each.first]))
    order = order[np.searchsorted(gap[each.first][order], longest)]
    begin = found.start[first[longest]]
    columns = {
        "step": step_numbers(trace, begin),
        "start_ms": since_start(trace, begin),
        "gap_ms": length[longest] * MS,
        "cause_ms": nanos[order] * MS,
        **known.words(trace, each.first[order]),
    }
    return pl.DataFrame(columns, schema_overrides=_SCHEMA, strict=False).select(*_SCHEMA)


def together(found: Idle) -> Groups:
    """Which of some idle stretches, disjoint and by time, lie in one gap between works of devices."""
    begins = np.append(True, found.start[1:] > found.end[:-1])[: len(found.start)]
    return Groups(np.cumsum(begins) - 1, np.flatnonzero(begins))
