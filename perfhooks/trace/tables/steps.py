from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from perfhooks.core import labels
from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import utilisation
from perfhooks.trace.model import epoch
from perfhooks.trace.names import stages
from perfhooks.trace.nesting import device, intervals, missing_work, parts, step_marks, waits
from perfhooks.trace.tables import device_span, device_time
from perfhooks.trace.tables.step_columns import where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.trace.model import Column, Ints, Trace
    from perfhooks.trace.nesting.intervals import Intervals

_HOST_PARTS: Final = tuple(f"{part}_ms" for part in labels.PARTS)
_DEVICE_TIMES: Final = tuple(f"{name}_ms" for name in (*device_span.Span._fields, "device_busy", "device_idle"))
_SCHEMA: Final = {
    "rank": pl.Int64,
    "stage": pl.String,
    "step": pl.Int64,
    "wall_ms": pl.Float64,
    **dict.fromkeys((*_HOST_PARTS, "other_ms", *_DEVICE_TIMES), pl.Float64),
    **dict.fromkeys(("ops", "launches", "kernels", "syncs"), pl.Int64),
    "sync_ms": pl.Float64,
    "allocated_peak_mb": pl.Float64,
    "alloc_count": pl.Int64,
    **dict.fromkeys(("tflop", "mfu_percent", "hfu_percent", "known_percent"), pl.Float64),
}


def table(
    trace: Trace,
    *,
    rank: int | None = None,
    stage: str | None = None,
    own_work: Sequence[tuple[float, float]] = (),
) -> pl.DataFrame:
    """Return the time of each step, split into its parts.

    A step is a ``ProfilerStep#N`` mark on the host; in a trace without marks, the whole trace. Device columns are null
    if no device was traced, or if device work is missing or wrong (`perfhooks.trace.nesting.missing_work.unknown`).

    Host times are times of the thread that runs the step; the parts (`perfhooks.trace.nesting.parts`) and ``other_ms``
    sum to ``wall_ms``. Device times count work of all devices that any thread launched during the step. Work without a
    recorded launch counts in the step in which it ran, unless the launch was before the recording. |X| is the length of
    the union of the intervals X.

    * ``device_span_ms``: from the first start to the last end of the step's work
    * ``busy_ms`` = |the step's work|
    * ``compute_ms`` = |kernels that do not communicate|
    * ``comm_ms`` = |kernels that communicate|
    * ``exposed_comm_ms`` = |comm - compute|
    * ``exposed_copy_ms`` = |copies and memsets - compute - comm|
    * ``other_work_ms``, within the span = |work of other steps or of no step - the step's work|
    * ``idle_ms``, within the span = |span - all work|

    So compute + exposed_comm + exposed_copy = busy, and busy + other_work + idle = span, to the nanosecond::

        compute           |--kernel--|               |--kernel--|
        communication           |---nccl---|
        another step's                         |--|
        busy              |................|         |..........|
        exposed_comm                 |.....|
        other_work                             |..|
        idle                               |...|  |..|
        device_span       |.....................................|

    Within the wall time, ``device_busy_ms`` = |all work|; ``device_idle_ms`` is the remaining time. Counts include
    records that begin inside the step on any thread. Memory is device memory if a device was traced.

    Time in ``own_work`` (see `perfhooks.trace.window.Tables`) is excluded.
    """
    steps = step_marks.find(trace)
    count = len(steps.number)
    own = own_moments(trace, own_work)
    wall: Ints = steps.end - steps.start - intervals.within(own, steps.start, steps.end)
    columns: dict[str, Any] = {
        "rank": [rank if trace.rank is None else trace.rank] * count,
        "stage": [stages.shown(trace) if stage is None else stage] * count,
        "step": steps.number,
        **_milliseconds(_host_columns(trace, steps, wall, own)),
        **_device_columns(trace, steps, wall, own),
        **_count_columns(trace, steps),
        **_memory_columns(trace, steps),
        **_operation_columns(trace, steps, wall),
    }
    absent = [None] * count
    filled = {name: absent if values is None else values for name, values in columns.items()}
    return pl.DataFrame([pl.Series(name, filled.get(name, absent), dtype=kind) for name, kind in _SCHEMA.items()])


def _milliseconds(nanos: dict[str, Ints | None]) -> dict[str, Column | None]:
    return {name: None if values is None else values * intervals.MS for name, values in nanos.items()}


def own_moments(trace: Trace, own_work: Sequence[tuple[float, float]]) -> Intervals:
    """Convert intervals in seconds since 1970 to ns of the trace's clock."""
    if not own_work:
        return intervals.nothing()
    begins, ends = (
        (np.array(column) * 1e9).astype(np.int64) - epoch(trace.metadata) for column in zip(*own_work, strict=True)
    )
    return intervals.union(begins, ends)


def _host_columns(trace: Trace, steps: step_marks.MarkedSteps, wall: Ints, own: Intervals) -> dict[str, Ints | None]:
    by_part = {part: np.zeros(len(steps.thread), np.int64) for part in labels.PARTS}
    found_parts: set[str] = set()
    by_thread = np.argsort(steps.thread, kind="stable")
    threads, first = np.unique(steps.thread[by_thread], return_index=True)
    for thread, thread_steps in zip(threads.tolist(), np.split(by_thread, first[1:]), strict=False):
        for part, moments in parts.of_thread(trace, thread).items():
            own_less = intervals.subtract(moments, own) if len(own) else moments
            by_part[part][thread_steps] = intervals.within(own_less, steps.start[thread_steps], steps.end[thread_steps])
            found_parts |= {part} if len(moments) else set()
    other: Ints = wall - sum(by_part.values())
    shown = {f"{part}_ms": values if part in found_parts else None for part, values in by_part.items()}
    return {"wall_ms": wall, **shown, "other_ms": other}


def _device_columns(trace: Trace, steps: step_marks.MarkedSteps, wall: Ints, own: Intervals) -> dict[str, object]:
    if not trace.is_device_traced:
        return {}
    busy_in_own_work = intervals.within(intervals.intersect(device.busy(trace), own), steps.start, steps.end)
    busy = device_time.work(trace).sum(axis=1) - busy_in_own_work
    times = device_span.span(trace)._asdict() | {"device_busy": busy, "device_idle": wall - busy}
    kernels = trace.kind[trace.device_rows] == Kind.KERNEL
    launched = device.launch_times(trace)[kernels]
    shown: dict[str, Column] = {f"{name}_ms": nanos * intervals.MS for name, nanos in times.items()}
    shown["kernels"] = step_marks.per_step(steps, launched)
    unknown = missing_work.unknown(trace)
    empty = dict.fromkeys(shown, unknown.work) | dict.fromkeys(("device_busy_ms", "device_idle_ms"), unknown.wall)
    empty["comm_ms"] = unknown.communication
    return {name: where(~empty[name], values) for name, values in shown.items()}


def _count_columns(trace: Trace, steps: step_marks.MarkedSteps) -> dict[str, object]:
    counts: dict[str, object] = {}
    ops = trace.rows(Kind.OP)
    if len(ops):
        counts["ops"] = step_marks.per_step(steps, trace.start[ops])
    if len(trace.rows(Kind.RUNTIME)):
        calls, copies, launches = device.outermost_waits(trace), waits.blocking(trace), device.launch_calls(trace)
        counts["launches"] = step_marks.per_step(steps, trace.start[launches]) if device.has_launches(trace) else None
        counts["syncs"] = step_marks.per_step(steps, trace.start[calls])
        wait_intervals = intervals.joined(intervals.of_slices(trace, calls), intervals.union(copies.start, copies.end))
        counts["sync_ms"] = intervals.within(wait_intervals, steps.start, steps.end) * intervals.MS
    return counts


def _operation_columns(trace: Trace, steps: step_marks.MarkedSteps, wall: Ints) -> dict[str, object]:
    starts = trace.start[utilisation.computed(trace).row]
    work = step_marks.step_of(steps, device.launch_times(trace))
    columns = utilisation.of_steps(trace, step_marks.step_of(steps, starts), work, wall)
    is_complete = ~missing_work.unknown(trace).work
    of_device = ("mfu_percent", "hfu_percent", "known_percent")
    return {
        name: pl.Series(np.where(is_complete, values, np.nan) if name in of_device else values, nan_to_null=True)
        for name, values in columns.items()
    }


def _memory_columns(trace: Trace, steps: step_marks.MarkedSteps) -> dict[str, object]:
    events = trace.instants
    if not len(events.time):
        return {}
    on_device = events.device_type > 0
    selected = on_device if on_device.any() else ~on_device
    time, size = events.time[selected], events.size[selected]
    columns: dict[str, object] = {"alloc_count": step_marks.per_step(steps, time[size > 0])}
    has_total = selected & (events.allocated >= 0)
    if has_total.any():
        level = _total_level(events.device[has_total], events.allocated[has_total])
        columns["allocated_peak_mb"] = _peaks_mb(events.time[has_total], level, steps)
    return columns


def _total_level(owner: Ints, allocated: Ints) -> Ints:
    change = np.empty(len(owner), np.int64)
    order = np.argsort(owner, kind="stable")
    is_same_device = np.diff(owner[order], prepend=owner[order][:1] - 1) == 0
    before = np.where(is_same_device, np.roll(allocated[order], 1), 0)
    change[order] = allocated[order] - before
    return np.cumsum(change)


def _peaks_mb(time: Ints, level: Ints, steps: step_marks.MarkedSteps) -> list[float | None]:
    first = np.maximum(np.searchsorted(time, steps.start, "right") - 1, 0)
    last = np.searchsorted(time, steps.end, "left")
    highest = intervals.highest(level, first, last)
    has_events = (last > first).tolist()
    return [
        level_bytes / 2**20 if is_covered else None
        for level_bytes, is_covered in zip(highest.tolist(), has_events, strict=True)
    ]
