"""The table of gaps: when the devices had nothing to do for longest, and what the host did meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks import labels
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import whose
from perfhooks.trace.nesting import device
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.tables import steps
from perfhooks.trace.tables.step_columns import since_start, step_numbers

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.names.whose import Owners
    from perfhooks.trace.nesting.intervals import Intervals

MOST: Final = 10
"""Rows of the table."""
HALF: Final = 0.5
"""Of a gap: what lasts at least so long of it is what the host did; of several, the innermost."""

_HOST: Final = ("line", "label", "operator", "call")
_SCHEMA: Final = {
    "step": pl.Int64,
    **dict.fromkeys(("start_ms", "gap_ms"), pl.Float64),
    **dict.fromkeys(_HOST, pl.String),
}


def table(trace: Trace, *, owners: Owners = ()) -> pl.DataFrame:
    """List the longest times in which no device worked, between the first and the last of their work: ten at most.

    ::

        device 0   |--kernel--|               |--kernel--|
        device 1       |--kernel--|                |--kernel--|
        gap                       |-----------|
        host            |------ line that lasts for half of it, or more ------|

    ``step`` is that in which the gap began; ``start_ms`` counts from the first slice of the trace; ``gap_ms`` is its
    length. What the thread of the steps did in it: ``line`` is the innermost line of the user that lasted for half of
    the gap or more, with the line of an installed package in which it did so (see `perfhooks.trace.names.whose`),
    ``label``, ``operator`` and ``call`` are the innermost label, operator and call of the runtime that did; null where
    none did.

    Args:
        trace: any trace; without device work there are no rows.
        owners: whose code is whose.
    """
    found = longest(trace)
    if not len(found):
        return pl.DataFrame(schema=_SCHEMA)
    length = int((found[:, 1] - found[:, 0]).min())
    long = np.flatnonzero(trace.end - trace.start >= HALF * length)  # what is shorter lasts for half of none
    host = [_host(trace, gap, long, owners) for gap in found]
    columns = {
        "step": step_numbers(trace, found[:, 0]),
        "start_ms": since_start(trace, found[:, 0]),
        "gap_ms": (found[:, 1] - found[:, 0]) * MS,
        **{name: [each[name] for each in host] for name in _HOST},
    }
    return pl.DataFrame(columns, schema=_SCHEMA, strict=False)


def longest(trace: Trace) -> Intervals:
    """The longest gaps, longest first."""
    busy = device.busy(trace)
    between = np.stack([busy[:-1, 1], busy[1:, 0]], axis=1)
    order = np.argsort(between[:, 0] - between[:, 1], kind="stable")
    return between[order[:MOST]]


def _host(trace: Trace, gap: Ints, rows: Ints, owners: Owners) -> dict[str, str | None]:
    """What the thread of the steps did for half of a gap or more, among some slices."""
    begin, end = int(gap[0]), int(gap[1])
    open_for = np.minimum(trace.end[rows], end) - np.maximum(trace.start[rows], begin)
    rows = rows[(open_for >= HALF * (end - begin)) & (trace.thread[rows] == _thread(trace, begin))]
    name, kind = trace.name[rows], trace.kind[rows]
    is_mark = np.array([each.startswith(labels.STEP_MARK) for each in trace.names] or [False])[name]
    frames = kind == Kind.PYTHON
    user, library = (
        _innermost(rows[frames & whose.names_of(trace, origins, owners)[name]]) for origins in whose.PREFERENCE[:2]
    )
    return {
        "line": whose.spoken(trace, user, library),
        **{
            column: trace.name_of(_innermost(rows[(kind == each) & ~is_mark]))
            for column, each in (("label", Kind.ANNOTATION), ("operator", Kind.OP), ("call", Kind.RUNTIME))
        },
    }


def _thread(trace: Trace, time: int) -> int:
    """The thread of the step in which a moment lies, else of the first step."""
    marks = steps.find(trace)
    place = int(steps.step_of(marks, np.array([time]))[0])
    return int(marks.thread[max(place, 0)]) if len(marks.thread) else -1


def _innermost(rows: Ints) -> int:
    """The innermost of some slices of one thread that all lie around one moment, or -1: the last of them."""
    return int(rows[-1]) if len(rows) else -1
