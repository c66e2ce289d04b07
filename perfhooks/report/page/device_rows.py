from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from perfhooks.core import json_values
from perfhooks.trace.nesting import device, missing_work
from perfhooks.trace.nesting.grouping import summed
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.tables import device_time, idle

if TYPE_CHECKING:
    from perfhooks.trace.window import Tables

_PARTS: Final = ("compute", "exposed communication", "exposed copies", "exposed memsets", "other steps' work")


def of_window(tables: Tables) -> dict[str, Any]:
    """Return the time of all devices together; empty if no device was traced.

    ``parts`` sum to the wall time of a usual step. ``queue`` has the fraction of the step for each number of
    launches in the queue.
    """
    trace = tables.trace
    if not tables.is_device_known:
        return {}
    work, marks = device_time.work(trace), tables.marks
    wall, usual = marks.end - marks.start, tables.usual
    is_known = ~missing_work.unknown(trace).wall
    compute, comm, copy, sets, other = work.T
    columns = {
        "step": marks.number,
        "compute_ms": compute * MS,
        "exposed_comm_ms": comm * MS,
        "exposed_copy_ms": (copy + sets) * MS,
        "other_work_ms": other * MS,
        "idle_ms": (wall - work.sum(axis=1)) * MS,
    }
    count = int(usual.sum())
    intervals = idle.of_steps(trace, usual)
    causes = summed(intervals.cause, intervals.length, len(device_time.CAUSES))
    order = np.argsort(-causes, kind="stable")
    order = order[causes[order] > 0]
    parts = {
        "part": [*_PARTS, *(device_time.CAUSES[cause] for cause in order.tolist())],
        "kind": [*device.CLASSES, "other", *["idle"] * len(order)],
        "ms": [*(work[usual].sum(axis=0) * MS / count).tolist(), *(causes[order] * MS / count).tolist()],
    }
    table = idle.table(trace, usual, owners=tables.owners)
    table = table.with_columns(pl.col("idle_ms") / count)
    if table["device"].null_count() == table.height:
        table = table.drop("device")
    queue = device_time.queue(trace)[usual].sum(axis=0) / max(int(wall[usual].sum()), 1)
    return {
        "steps": json_values.columns(pl.DataFrame(columns).filter(pl.Series(tables.counting & is_known)), 240),
        "parts": json_values.columns(pl.DataFrame(parts).filter(pl.col("ms") > 0)),
        "idle": json_values.columns(table, 60),
        "queue": dict(zip(device_time.QUEUE, map(json_values.number, queue.tolist()), strict=True)),
    }
