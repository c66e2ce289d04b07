"""The table of steps: where the time of each went, on the host and on its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks import labels
from perfhooks.trace import device, intervals
from perfhooks.trace.kinds import DEVICE_WORK, HOST, Kind
from perfhooks.trace.nesting import nest

if TYPE_CHECKING:
    from perfhooks.trace.intervals import Intervals
    from perfhooks.trace.model import Column, Ints, Trace

_MS: Final = 1e-6  # milliseconds in a nanosecond
_MB: Final = 1 << 20
_LOADER: Final = "enumerate(DataLoader)#"
_OPTIMIZER: Final = "Optimizer.step#"
_AUTOGRAD: Final = "autograd::engine::evaluate_function: "

_HOST_PARTS: Final = tuple(f"{part}_ms" for part in labels.PARTS)
_DEVICE_TIMES: Final = (
    *("device_span_ms", "busy_ms", "idle_ms", "compute_ms", "comm_ms", "exposed_comm_ms", "exposed_copy_ms"),
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
}


class Steps(NamedTuple):
    """The steps of a trace, by time: one row for each mark."""

    number: list[int | None]
    thread: Ints
    start: Ints
    end: Ints


def table(trace: Trace, *, rank: int | None = None, stage: str = "train") -> pl.DataFrame:
    """Say for every step where its time went.

    A step is a ``ProfilerStep#N`` mark on the host; without any, the whole trace is one step whose number is null. All
    times are milliseconds, computed in whole nanoseconds; |X| is the length of a union of intervals. Null is what
    the trace cannot tell: a part of which it shows no sign anywhere, device columns if it shows no device.

    Host, on the step's own thread, without overlap; the parts and ``other_ms`` sum to ``wall_ms``. A moment belongs to
    the innermost open label among `perfhooks.labels.PARTS`; unlabelled moments go to ``data`` inside the ranges of
    PyTorch's DataLoader, else to ``optimizer`` inside ``Optimizer.step``, else to ``backward`` where autograd runs a
    node on any thread, else to ``other``.

    Device, over the union of all devices, for work that was launched inside the step, on any thread; work whose launch
    is not in the trace counts where it ran. ``device_span_ms`` from first start to last end, ``busy_ms`` = |all work|,
    ``idle_ms`` = span - busy, ``compute_ms`` = |kernels that do not communicate|, ``comm_ms`` = |kernels that do|,
    ``exposed_comm_ms`` = |comm - compute|, ``exposed_copy_ms`` = |copies and sets - compute - comm|. So
    compute + exposed_comm + exposed_copy + idle = span.

    Counts, for what begins inside the step on any thread: ``ops``, ``launches`` (calls that launch kernels or graphs),
    ``kernels`` (launched by them), ``syncs`` and ``sync_ms`` (calls that wait for the device, and their union). Memory,
    of the devices if any was traced, else of the host: ``allocated_peak_mb`` (MiB) over the step, ``alloc_count``.

    Args:
        trace: any trace.
        rank: the rank of the process, for traces that do not know it.
        stage: train, validate, test or predict.
    """
    steps = find(trace)
    count = len(steps.number)
    columns: dict[str, object] = {
        "rank": [rank if trace.rank is None else trace.rank] * count,
        "stage": [stage] * count,
        "step": steps.number,
        **_milliseconds(_host(trace, steps)),
        **_device(trace, steps),
        **_counts(trace, steps),
        **_memory(trace, steps),
    }
    return pl.DataFrame({name: columns.get(name, [None] * count) for name in _SCHEMA}, schema=_SCHEMA)


def find(trace: Trace) -> Steps:
    """The steps of a trace: its marks on the host, else one for all of it."""
    marks = trace.named(Kind.ANNOTATION, prefix=labels.STEP_MARK)
    if not len(marks):
        marks = trace.named(Kind.OP, prefix=labels.STEP_MARK)  # torch before 1.10
    numbers = {row: _number(trace.names[trace.name[row]]) for row in marks.tolist()}
    marks = marks[[numbers[row] is not None for row in marks.tolist()]] if len(marks) else marks
    if not len(marks):
        return _whole(trace)
    marks = marks[np.argsort(trace.start[marks], kind="stable")]
    return Steps([numbers[row] for row in marks.tolist()], trace.thread[marks], trace.start[marks], trace.end[marks])


def _number(mark: str) -> int | None:
    digits = mark.removeprefix(labels.STEP_MARK)
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None  # noqa: PLR2004 - int64


def _whole(trace: Trace) -> Steps:
    """One step over everything; its thread is the one that ran most operators, or labels, or calls."""
    rows = trace.rows(*HOST, *DEVICE_WORK)
    if not len(rows):
        none = np.empty(0, np.int64)
        return Steps([], none, none, none)
    calls = trace.rows(*HOST)
    thread = np.bincount(trace.thread[calls]).argmax() if len(calls) else -1
    return Steps([None], np.array([thread]), trace.start[rows].min(keepdims=True), trace.end[rows].max(keepdims=True))


def _milliseconds(nanos: dict[str, Ints | None]) -> dict[str, Column | None]:
    return {name: None if values is None else values * _MS for name, values in nanos.items()}


def _host(trace: Trace, steps: Steps) -> dict[str, Ints | None]:
    """The parts of each step, in nanoseconds, for each thread that has steps."""
    found = {part: np.zeros(len(steps.thread), np.int64) for part in labels.PARTS}
    seen: set[str] = set()
    backward = _ranges(trace, trace.named(Kind.OP, prefix=_AUTOGRAD))
    for thread in np.unique(steps.thread):
        mine = steps.thread == thread
        parts = _parts(trace, int(thread), backward)
        for part, moments in parts.items():
            found[part][mine] = intervals.within(moments, steps.start[mine], steps.end[mine])
            seen |= {part} if len(moments) else set()
    wall: Ints = steps.end - steps.start
    other: Ints = wall - sum(found.values())
    shown = {f"{part}_ms": values if part in seen else None for part, values in found.items()}
    return {"wall_ms": wall, **shown, "other_ms": other}


def _parts(trace: Trace, thread: int, backward: Intervals) -> dict[str, Intervals]:
    """The moments of each part on one thread, disjoint."""
    parts = _labelled(trace, thread)
    taken = intervals.joined(*parts.values())
    fallbacks = (
        (labels.DATA, _ranges(trace, _on(trace, thread, trace.named(Kind.ANNOTATION, Kind.OP, prefix=_LOADER)))),
        (
            labels.OPTIMIZER,
            _ranges(trace, _on(trace, thread, trace.named(Kind.ANNOTATION, Kind.OP, prefix=_OPTIMIZER))),
        ),
        (labels.BACKWARD, backward),
    )
    for part, moments in fallbacks:
        free = intervals.subtract(moments, taken)
        parts[part] = intervals.joined(parts[part], free)
        taken = intervals.joined(taken, free)
    return parts


def _labelled(trace: Trace, thread: int) -> dict[str, Intervals]:
    """The moments at which each part is the innermost open label of a thread."""
    rows = _on(trace, thread, trace.named(Kind.ANNOTATION, names=labels.PARTS))
    start = trace.start[rows]
    nesting = nest(trace.thread[rows], start, trace.end[rows])
    cuts = np.unique(np.concatenate([start, nesting.end]))
    owner: Ints = np.searchsorted(start, cuts[:-1], "right") - 1
    while True:  # from the label that began last to the innermost that is still open
        over = (owner >= 0) & (nesting.end[owner] <= cuts[:-1]) if len(rows) else owner > 0
        if not over.any():
            break
        owner = np.where(over, nesting.parent[owner], owner)
    held = {part: [trace.names[name] == part for name in trace.name[rows]] for part in labels.PARTS}
    pick = {part: (owner >= 0) & np.array([*mine, False])[owner] for part, mine in held.items()}
    return {part: intervals.union(cuts[:-1][mine], cuts[1:][mine]) for part, mine in pick.items()}


def _on(trace: Trace, thread: int, rows: Ints) -> Ints:
    mine: Ints = rows[trace.thread[rows] == thread]
    return mine


def _ranges(trace: Trace, rows: Ints) -> Intervals:
    return intervals.union(trace.start[rows], trace.end[rows])


def step_of(steps: Steps, time: Ints) -> Ints:
    """The step inside which each moment lies, or -1; of two that overlap, the later."""
    if not len(steps.start):
        return np.full(len(time), -1, np.int64)
    place = np.searchsorted(steps.start, time, "right") - 1
    found: Ints = np.where((place >= 0) & (time < steps.end[place]), place, -1)
    return found


def _device(trace: Trace, steps: Steps) -> dict[str, object]:
    if not trace.is_device_traced:
        return {}
    rows = trace.device_rows
    step = step_of(steps, device.launch_times(trace))
    communicates = device.communicates(trace)
    kernel = trace.kind[rows] == Kind.KERNEL
    sets = (kernel & ~communicates, communicates, ~kernel)
    found = np.zeros((len(steps.number), len(_DEVICE_TIMES)), np.int64)
    for number in range(len(steps.number)):
        found[number] = _exposed(*(_ranges(trace, rows[(step == number) & mine]) for mine in sets))
    times = {name: found[:, place] * _MS for place, name in enumerate(_DEVICE_TIMES)}
    return times | {"kernels": np.bincount(step[kernel & (step >= 0)], minlength=len(steps.number))}


def _exposed(compute: Intervals, comm: Intervals, copy: Intervals) -> tuple[int, ...]:
    """The device columns of one step, in nanoseconds and in their order."""
    busy = intervals.joined(compute, comm, copy)
    span = int(busy[-1, 1] - busy[0, 0]) if len(busy) else 0
    exposed_comm = intervals.subtract(comm, compute)
    exposed_copy = intervals.subtract(copy, intervals.joined(compute, comm))
    used = intervals.total(busy)
    return (span, used, span - used, *map(intervals.total, (compute, comm, exposed_comm, exposed_copy)))


def _counts(trace: Trace, steps: Steps) -> dict[str, object]:
    found: dict[str, object] = {}
    ops = trace.rows(Kind.OP)
    if len(ops):
        found["ops"] = _count(trace, steps, ops)
    if len(trace.rows(Kind.RUNTIME)):
        found["launches"] = _count(trace, steps, device.launch_calls(trace))
        waits = device.wait_calls(trace)
        found["syncs"] = _count(trace, steps, waits)
        found["sync_ms"] = intervals.within(_ranges(trace, waits), steps.start, steps.end) * _MS
    return found


def _count(trace: Trace, steps: Steps, rows: Ints) -> Ints:
    step = step_of(steps, trace.start[rows])
    counts: Ints = np.bincount(step[step >= 0], minlength=len(steps.number))
    return counts


def _memory(trace: Trace, steps: Steps) -> dict[str, object]:
    events = trace.instants
    if not len(events.time):
        return {}
    on_device = events.device_type > 0
    chosen = on_device if on_device.any() else ~on_device
    time, size = events.time[chosen], events.size[chosen]
    step = step_of(steps, time[size > 0])
    found: dict[str, object] = {"alloc_count": np.bincount(step[step >= 0], minlength=len(steps.number))}
    known = chosen & (events.allocated >= 0)
    if known.any():
        level = _level(events.device[known], events.allocated[known])
        found["allocated_peak_mb"] = _peaks(events.time[known], level, steps)
    return found


def _level(owner: Ints, allocated: Ints) -> Ints:
    """The bytes allocated on all devices together after each event."""
    change = np.zeros(len(owner), np.int64)
    for each in np.unique(owner):
        mine = owner == each
        change[mine] = np.diff(allocated[mine], prepend=0)
    return np.cumsum(change)


def _peaks(time: Ints, level: Ints, steps: Steps) -> list[float | None]:
    """The highest level during each step in MiB, what was allocated before it included; None before the first event."""
    first = np.maximum(np.searchsorted(time, steps.start, "right") - 1, 0)
    last = np.searchsorted(time, steps.end, "left")
    return [float(level[a:b].max()) / _MB if b > a else None for a, b in zip(first, last, strict=True)]
