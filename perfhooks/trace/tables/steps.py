"""The table of steps: where the time of each went, on the host and on its devices."""

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
from perfhooks.trace.tables import device_time
from perfhooks.trace.tables.step_columns import where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.trace.model import Column, Ints, Trace
    from perfhooks.trace.nesting.intervals import Intervals

_MB: Final = 1 << 20
_HOST_PARTS: Final = tuple(f"{part}_ms" for part in labels.PARTS)
_DEVICE_TIMES: Final = tuple(f"{name}_ms" for name in (*device_time.Span._fields, "device_busy", "device_idle"))
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
    """Say for every step where its time went.

    A step is a ``ProfilerStep#N`` mark on the host; without any, the whole trace is one step whose number is null. All
    times are milliseconds, computed in whole nanoseconds; |X| is the length of a union of intervals. Null is what
    the trace cannot tell: a part of which it shows no sign anywhere, device columns if it shows no device, or if work
    of the step is missing or has wrong times (`perfhooks.trace.nesting.missing_work.unknown`).

    Host, on the step's own thread, without overlap; the parts and ``other_ms`` sum to ``wall_ms``. A moment belongs to
    the innermost label among `perfhooks.core.labels.PARTS` that somebody wrote, else to what
    `perfhooks.trace.nesting.parts` tells: PyTorch's DataLoader, what perfhooks labelled while it recorded, what
    autograd left in the trace; else to ``other``.

    Device, over the union of all devices, for work that was launched inside the step, on any thread. Work that was
    launched before recording began (`device.before_window`) belongs to no step; other work whose launch is not in the
    trace counts where it ran. ``device_span_ms`` from first start to last end, ``busy_ms`` = |the step's work|,
    ``compute_ms`` = |kernels that do not communicate|, ``comm_ms`` = |kernels that do|, ``exposed_comm_ms`` =
    |comm - compute|, ``exposed_copy_ms`` = |copies and memsets - compute - comm|. Within the span, ``other_work_ms`` =
    |work of other steps and of none - the step's work| and ``idle_ms`` = |span - all work of anybody|. So
    compute + exposed_comm + exposed_copy = busy, and busy + other_work + idle = span, to the nanosecond::

        compute           |--kernel--|               |--kernel--|
        communication           |---nccl---|
        another step's                         |--|
        busy              |................|         |..........|
        exposed_comm                 |.....|
        other_work                             |..|
        idle                               |...|  |..|
        device_span       |.....................................|

    Over the step's own wall, ``device_busy_ms`` = |work of anybody| and ``device_idle_ms`` = the rest; why it was idle
    is in the table of idle time (`perfhooks.trace.tables.idle`).

    Counts, for what begins inside the step on any thread: ``ops``, ``launches`` (calls that launch kernels or graphs,
    less what was captured into a graph; null for a backend that has none), ``kernels`` (launched by them), ``syncs``
    (calls that synchronise with the device). ``sync_ms`` is how long the host waited for the device, on any thread:
    |those calls, and copies that block, beyond the cost of their call (`waits.blocking`)|. Memory (of
    the devices if any was traced, otherwise of the host): ``allocated_peak_mb`` (MiB) over the step, ``alloc_count``.
    Operations (if shapes were recorded): ``tflop``, ``mfu_percent``, ``hfu_percent``, ``known_percent``, see
    `utilisation.of_steps`.

    Args:
        trace: any trace.
        rank: the rank of the process, for traces that do not know it.
        stage: train, validate, test or predict, as recorded; None for what the trace shows, see `stages.shown`.
        own_work: When perfhooks itself kept the thread of the steps waiting, in seconds since 1970. It is left out.
    """
    steps = step_marks.find(trace)
    count = len(steps.number)
    own = own_moments(trace, own_work)
    wall: Ints = steps.end - steps.start - intervals.within(own, steps.start, steps.end)
    columns: dict[str, Any] = {
        "rank": [rank if trace.rank is None else trace.rank] * count,
        "stage": [stages.shown(trace) if stage is None else stage] * count,
        "step": steps.number,
        **_milliseconds(_host(trace, steps, wall, own)),
        **_device(trace, steps),
        **_counts(trace, steps),
        **_memory(trace, steps),
        **_computed(trace, steps, wall),
    }
    unknown = [None] * count
    known = {name: unknown if values is None else values for name, values in columns.items()}
    return pl.DataFrame([pl.Series(name, known.get(name, unknown), dtype=kind) for name, kind in _SCHEMA.items()])


def _milliseconds(nanos: dict[str, Ints | None]) -> dict[str, Column | None]:
    return {name: None if values is None else values * intervals.MS for name, values in nanos.items()}


def own_moments(trace: Trace, own_work: Sequence[tuple[float, float]]) -> Intervals:
    """Return the moments of a trace for times in seconds since 1970."""
    if not own_work:
        return intervals.nothing()
    begins, ends = (
        (np.array(column) * 1e9).astype(np.int64) - epoch(trace.metadata) for column in zip(*own_work, strict=True)
    )
    return intervals.union(begins, ends)


def _host(trace: Trace, steps: step_marks.MarkedSteps, wall: Ints, own: Intervals) -> dict[str, Ints | None]:
    """The parts of each step, in nanoseconds, for each thread that has steps."""
    spent = {part: np.zeros(len(steps.thread), np.int64) for part in labels.PARTS}
    seen: set[str] = set()
    by_thread = np.argsort(steps.thread, kind="stable")
    threads, first = np.unique(steps.thread[by_thread], return_index=True)
    for thread, mine in zip(threads.tolist(), np.split(by_thread, first[1:]), strict=False):
        for part, moments in parts.of_thread(trace, thread).items():
            own_less = intervals.subtract(moments, own) if len(own) else moments
            spent[part][mine] = intervals.within(own_less, steps.start[mine], steps.end[mine])
            seen |= {part} if len(moments) else set()
    other: Ints = wall - sum(spent.values())
    shown = {f"{part}_ms": values if part in seen else None for part, values in spent.items()}
    return {"wall_ms": wall, **shown, "other_ms": other}


def _device(trace: Trace, steps: step_marks.MarkedSteps) -> dict[str, object]:
    if not trace.is_device_traced:
        return {}
    over_span, busy = device_time.span(trace)._asdict(), device_time.work(trace).sum(axis=1)
    times = over_span | {"device_busy": busy, "device_idle": steps.end - steps.start - busy}
    kernels = trace.kind[trace.device_rows] == Kind.KERNEL
    launched = device.launch_times(trace)[kernels]
    shown: dict[str, Column] = {f"{name}_ms": nanos * intervals.MS for name, nanos in times.items()}
    shown["kernels"] = step_marks.per_step(steps, launched)
    unknown = missing_work.unknown(trace)
    empty = dict.fromkeys(shown, unknown.work) | dict.fromkeys(("device_busy_ms", "device_idle_ms"), unknown.wall)
    empty["comm_ms"] = unknown.communication
    return {name: where(~empty[name], values) for name, values in shown.items()}


def _counts(trace: Trace, steps: step_marks.MarkedSteps) -> dict[str, object]:
    counts: dict[str, object] = {}
    ops = trace.rows(Kind.OP)
    if len(ops):
        counts["ops"] = step_marks.per_step(steps, trace.start[ops])
    if len(trace.rows(Kind.RUNTIME)):
        calls, held, launches = device.outermost_waits(trace), waits.blocking(trace), device.launch_calls(trace)
        counts["launches"] = step_marks.per_step(steps, trace.start[launches]) if device.has_launches(trace) else None
        counts["syncs"] = step_marks.per_step(steps, trace.start[calls])
        waited = intervals.joined(intervals.of_slices(trace, calls), intervals.union(held.start, held.end))
        counts["sync_ms"] = intervals.within(waited, steps.start, steps.end) * intervals.MS
    return counts


def _computed(trace: Trace, steps: step_marks.MarkedSteps, wall: Ints) -> dict[str, object]:
    begun = trace.start[utilisation.computed(trace).row]
    work = step_marks.step_of(steps, device.launch_times(trace))
    found = utilisation.of_steps(trace, step_marks.step_of(steps, begun), work, wall)
    kept = ~missing_work.unknown(trace).work
    of_device = ("mfu_percent", "hfu_percent", "known_percent")
    return {
        name: pl.Series(np.where(kept, values, np.nan) if name in of_device else values, nan_to_null=True)
        for name, values in found.items()
    }


def _memory(trace: Trace, steps: step_marks.MarkedSteps) -> dict[str, object]:
    events = trace.instants
    if not len(events.time):
        return {}
    on_device = events.device_type > 0
    chosen = on_device if on_device.any() else ~on_device
    time, size = events.time[chosen], events.size[chosen]
    measured: dict[str, object] = {"alloc_count": step_marks.per_step(steps, time[size > 0])}
    known = chosen & (events.allocated >= 0)
    if known.any():
        level = _level(events.device[known], events.allocated[known])
        measured["allocated_peak_mb"] = _peaks(events.time[known], level, steps)
    return measured


def _level(owner: Ints, allocated: Ints) -> Ints:
    """The bytes allocated on all devices together after each event."""
    change = np.empty(len(owner), np.int64)
    order = np.argsort(owner, kind="stable")
    same = np.diff(owner[order], prepend=owner[order][:1] - 1) == 0
    before = np.where(same, np.roll(allocated[order], 1), 0)
    change[order] = allocated[order] - before
    return np.cumsum(change)


def _peaks(time: Ints, level: Ints, steps: step_marks.MarkedSteps) -> list[float | None]:
    """The highest level during each step in MiB, what was allocated before it included; None before the first event."""
    first = np.maximum(np.searchsorted(time, steps.start, "right") - 1, 0)
    last = np.searchsorted(time, steps.end, "left")
    highest = intervals.highest(level, first, last)
    known = (last > first).tolist()
    return [each / _MB if here else None for each, here in zip(highest.tolist(), known, strict=True)]
