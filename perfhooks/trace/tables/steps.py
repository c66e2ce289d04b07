"""The table of steps: where the time of each went, on the host and on its devices."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks import labels
from perfhooks.trace.kinds import DEVICE_WORK, HOST, Kind
from perfhooks.trace.limits import utilisation
from perfhooks.trace.names import stages
from perfhooks.trace.nesting import device, intervals, parts, waits
from perfhooks.trace.once import once

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Ints, Trace
    from perfhooks.trace.nesting.intervals import Intervals

_MB: Final = 1 << 20
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
"""Of a step's number that a column of 64 bits can hold."""
_COMPUTE, _COMM, _COPY = range(3)
_GROUPS: Final = 3

_HOST_PARTS: Final = tuple(f"{part}_ms" for part in labels.PARTS)
_DEVICE_TIMES: Final = (
    *("device_span_ms", "busy_ms", "idle_ms", "compute_ms", "comm_ms", "exposed_comm_ms", "exposed_copy_ms"),
    *("other_work_ms", "device_busy_ms", "device_idle_ms"),
)
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


class MarkedSteps(NamedTuple):
    """The steps of a trace, by time: one row for each mark."""

    number: list[int | None]
    thread: Ints
    start: Ints
    end: Ints


def table(trace: Trace, *, rank: int | None = None, stage: str | None = None) -> pl.DataFrame:
    """Say for every step where its time went.

    A step is a ``ProfilerStep#N`` mark on the host; without any, the whole trace is one step whose number is null. All
    times are milliseconds, computed in whole nanoseconds; |X| is the length of a union of intervals. Null is what
    the trace cannot tell: a part of which it shows no sign anywhere, device columns if it shows no device.

    Host, on the step's own thread, without overlap; the parts and ``other_ms`` sum to ``wall_ms``. A moment belongs to
    the innermost label among `perfhooks.labels.PARTS` that somebody wrote, else to what `perfhooks.trace.nesting.parts`
    tells: PyTorch's DataLoader, what perfhooks labelled while it recorded, what autograd left in the trace; else to
    ``other``.

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
    |those calls, and copies that block, beyond the cost of their call (`waits.held`)|. Memory, of the devices if any
    was traced, else of the host: ``allocated_peak_mb`` (MiB) over the step, ``alloc_count``. What it computed, where
    shapes were recorded: ``tflop``, ``mfu_percent``, ``hfu_percent``, ``known_percent``, see `utilisation.of_steps`.

    Args:
        trace: any trace.
        rank: the rank of the process, for traces that do not know it.
        stage: train, validate, test or predict, as recorded; None for what the trace shows, see `stages.shown`.
    """
    steps = find(trace)
    count = len(steps.number)
    columns: dict[str, Any] = {
        "rank": [rank if trace.rank is None else trace.rank] * count,
        "stage": [stages.shown(trace) if stage is None else stage] * count,
        "step": steps.number,
        **_milliseconds(_host(trace, steps)),
        **_device(trace, steps),
        **_counts(trace, steps),
        **_memory(trace, steps),
        **_computed(trace, steps),
    }
    unknown = [None] * count
    known = {name: unknown if values is None else values for name, values in columns.items()}
    return pl.DataFrame([pl.Series(name, known.get(name, unknown), dtype=kind) for name, kind in _SCHEMA.items()])


@once
def find(trace: Trace) -> MarkedSteps:
    """The steps of a trace: its marks on the host, else one for all of it."""
    marks = trace.named(Kind.ANNOTATION, prefix=labels.STEP_MARK)
    if not len(marks):
        marks = trace.named(Kind.OP, prefix=labels.STEP_MARK)  # torch before 1.10
    numbers = {row: _number(trace.names[trace.name[row]]) for row in marks.tolist()}
    marks = marks[[numbers[row] is not None for row in marks.tolist()]] if len(marks) else marks
    if not len(marks):
        return _whole(trace)
    marks = marks[np.argsort(trace.start[marks], kind="stable")]
    return MarkedSteps(
        [numbers[row] for row in marks.tolist()], trace.thread[marks], trace.start[marks], trace.end[marks]
    )


def _number(mark: str) -> int | None:
    digits = mark.removeprefix(labels.STEP_MARK)
    return int(digits) if _DIGITS.fullmatch(digits) else None


def _whole(trace: Trace) -> MarkedSteps:
    """One step over everything; its thread is the one that ran most operators, or labels, or calls."""
    rows = trace.rows(*HOST, *DEVICE_WORK)
    if not len(rows):
        none = np.empty(0, np.int64)
        return MarkedSteps([], none, none, none)
    calls = trace.rows(*HOST)
    thread = np.bincount(trace.thread[calls]).argmax() if len(calls) else -1
    return MarkedSteps(
        [None], np.array([thread]), trace.start[rows].min(keepdims=True), trace.end[rows].max(keepdims=True)
    )


def _milliseconds(nanos: dict[str, Ints | None]) -> dict[str, Column | None]:
    return {name: None if values is None else values * intervals.MS for name, values in nanos.items()}


def _host(trace: Trace, steps: MarkedSteps) -> dict[str, Ints | None]:
    """The parts of each step, in nanoseconds, for each thread that has steps."""
    spent = {part: np.zeros(len(steps.thread), np.int64) for part in labels.PARTS}
    seen: set[str] = set()
    by_thread = np.argsort(steps.thread, kind="stable")
    threads, first = np.unique(steps.thread[by_thread], return_index=True)
    for thread, mine in zip(threads.tolist(), np.split(by_thread, first[1:]), strict=False):
        for part, moments in parts.of_thread(trace, thread).items():
            spent[part][mine] = intervals.within(moments, steps.start[mine], steps.end[mine])
            seen |= {part} if len(moments) else set()
    wall: Ints = steps.end - steps.start
    other: Ints = wall - sum(spent.values())
    shown = {f"{part}_ms": values if part in seen else None for part, values in spent.items()}
    return {"wall_ms": wall, **shown, "other_ms": other}


def step_of(steps: MarkedSteps, time: Ints) -> Ints:
    """The step inside which each moment lies, or -1; of two that overlap, the later."""
    if not len(steps.start):
        return np.full(len(time), -1, np.int64)
    place = np.searchsorted(steps.start, time, "right") - 1
    return np.where((place >= 0) & (time < steps.end[place]), place, -1)


def per_step(steps: MarkedSteps, time: Ints) -> Ints:
    """How many of some moments lie inside each step."""
    step = step_of(steps, time)
    return np.bincount(step[step >= 0], minlength=len(steps.number))


def _device(trace: Trace, steps: MarkedSteps) -> dict[str, object]:
    if not trace.is_device_traced:
        return {}
    rows, count = trace.device_rows, len(steps.number)
    step = step_of(steps, device.launch_times(trace))
    kernel = trace.kind[rows] == Kind.KERNEL
    group = np.select([device.communicates(trace), kernel], [_COMM, _COMPUTE], _COPY)
    # sorted by step and group, each step finds its own without looking at all the others'
    place = _GROUPS * step + group
    order = np.argsort(place, kind="stable")
    edges = np.searchsorted(place[order], np.arange(_GROUPS * count + 1))
    moments = [intervals.of_slices(trace, rows[order[first:last]]) for first, last in pairwise(edges.tolist())]
    each = zip(moments[_COMPUTE::_GROUPS], moments[_COMM::_GROUPS], moments[_COPY::_GROUPS], strict=True)
    exposed = np.array([_exposed(*sets) for sets in each], np.int64).reshape(count, len(_DEVICE_TIMES) - 3)
    first, last, used = exposed[:, :3].T
    worked = intervals.within(device.busy(trace), first, last)  # by anybody
    wall = intervals.within(device.busy(trace), steps.start, steps.end)
    over_span = (last - first, used, last - first - worked, *exposed[:, 3:].T, worked - used)
    nanos = np.stack([*over_span, wall, steps.end - steps.start - wall], axis=1)
    times = {name: nanos[:, place] * intervals.MS for place, name in enumerate(_DEVICE_TIMES)}
    return times | {"kernels": np.bincount(step[kernel & (step >= 0)], minlength=count)}


def _exposed(compute: Intervals, comm: Intervals, copy: Intervals) -> tuple[int, ...]:
    """The first and last moment of one step's work, and its own device columns in their order, in nanoseconds."""
    busy = intervals.joined(compute, comm, copy)
    first, last = (int(busy[0, 0]), int(busy[-1, 1])) if len(busy) else (0, 0)
    exposed_comm = intervals.subtract(comm, compute)
    exposed_copy = intervals.subtract(copy, intervals.joined(compute, comm))
    return (first, last, *map(intervals.total, (busy, compute, comm, exposed_comm, exposed_copy)))


def _counts(trace: Trace, steps: MarkedSteps) -> dict[str, object]:
    counts: dict[str, object] = {}
    ops = trace.rows(Kind.OP)
    if len(ops):
        counts["ops"] = per_step(steps, trace.start[ops])
    if len(trace.rows(Kind.RUNTIME)):
        calls, held, launches = device.whole_waits(trace), waits.held(trace), device.launch_calls(trace)
        counts["launches"] = per_step(steps, trace.start[launches]) if device.has_launches(trace) else None
        counts["syncs"] = per_step(steps, trace.start[calls])
        waited = intervals.joined(intervals.of_slices(trace, calls), intervals.union(held.start, held.end))
        counts["sync_ms"] = intervals.within(waited, steps.start, steps.end) * intervals.MS
    return counts


def _computed(trace: Trace, steps: MarkedSteps) -> dict[str, object]:
    begun = trace.start[utilisation.computed(trace).row]
    work = step_of(steps, device.launch_times(trace))
    found = utilisation.of_steps(trace, step_of(steps, begun), work, steps.end - steps.start)
    return {name: pl.Series(values, nan_to_null=True) for name, values in found.items()}


def _memory(trace: Trace, steps: MarkedSteps) -> dict[str, object]:
    events = trace.instants
    if not len(events.time):
        return {}
    on_device = events.device_type > 0
    chosen = on_device if on_device.any() else ~on_device
    time, size = events.time[chosen], events.size[chosen]
    measured: dict[str, object] = {"alloc_count": per_step(steps, time[size > 0])}
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


def _peaks(time: Ints, level: Ints, steps: MarkedSteps) -> list[float | None]:
    """The highest level during each step in MiB, what was allocated before it included; None before the first event."""
    first = np.maximum(np.searchsorted(time, steps.start, "right") - 1, 0)
    last = np.searchsorted(time, steps.end, "left")
    highest = intervals.highest(level, first, last)
    known = (last > first).tolist()
    return [each / _MB if here else None for each, here in zip(highest.tolist(), known, strict=True)]
