"""Costs of the steps of one window: rows whose times sum exactly to the step times."""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
import numpy as np

from perfhooks.analysis.comparison.around import PARTS, CostKey, HostContext
from perfhooks.core import json_values, labels
from perfhooks.trace.bounds import MAX_NUMBER
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import operators, ranges
from perfhooks.trace.nesting import device, intervals, parts, step_marks
from perfhooks.trace.nesting.slices import Nesting, still_open

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perfhooks.analysis.comparison.around import Keys
    from perfhooks.trace import Trace
    from perfhooks.trace.model import Flags, Ints
    from perfhooks.trace.nesting.intervals import Intervals
    from perfhooks.trace.nesting.step_marks import MarkedSteps
    from perfhooks.trace.window import Tables

    Moments = dict[str, Intervals]

FORMAT: Final = 3
"""Format of ``costs.json``. 1: first version; 2: with called operators; 3: with costs of the median step."""

IDLE: Final = "idle"
SMALL: Final = "(small)"

MOST_ROWS: Final = 4000
"""Maximum cost rows; a ResNet has 1,500. Smaller rows are merged."""
_MAX_NAME: Final = 1000
"""Maximum letters of a kernel name, including the template arguments that distinguish kernels."""


class KeyCost(NamedTuple):
    calls: int
    nanoseconds: int
    typical: int
    """Median time per step of the key, multiplied by the number of steps that contain the key, in ns."""

    def __add__(self, other: object) -> KeyCost:
        if not isinstance(other, KeyCost):
            return NotImplemented
        return KeyCost(*map(operator.add, self, other))


NOTHING: Final = KeyCost(0, 0, 0)

Amount = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Time in ns, at most 104 days, so that sums fit 64 bits."""
Text = Annotated[str, msgspec.Meta(max_length=1 << 14)]


class Collective(msgspec.Struct, frozen=True):
    operation: Text
    count: Amount
    nanoseconds: Amount
    bytes: Amount


class StoredCosts(msgspec.Struct, kw_only=True):
    steps: Amount = 0
    wall: Amount = 0
    collectives: list[Collective] = msgspec.field(default_factory=list)
    peak_bytes: dict[Text, Amount] = msgspec.field(default_factory=dict)
    shapes: bool = False
    frames: bool = False
    batch: Text = ""
    fetches: Amount = 0
    device_name: Text = ""


class Costs(StoredCosts, kw_only=True):
    host: dict[CostKey, KeyCost] = msgspec.field(default_factory=dict)
    """Time on the thread of the steps. All rows sum to ``wall``."""
    device: dict[CostKey, KeyCost] = msgspec.field(default_factory=dict)
    """Time of device work and idle time. All rows sum to ``wall``."""
    counts: dict[str, int] = msgspec.field(default_factory=dict)


def measure(tables: Tables) -> Costs:
    """Return the costs of the steps of a window, without rare validations, rare checkpoints and outliers.

    On the host, each moment belongs to the innermost open operator, module, line of user code and part of the step. On
    devices, each moment belongs to the running kernel or copy. Among concurrent work, compute kernels have priority
    over communication kernels, and communication kernels over copies and memsets.
    """
    trace = tables.trace
    marks, counting = tables.marks, tables.usual
    steps = step_marks.MarkedSteps(
        [number for number, counts in zip(marks.number, counting.tolist(), strict=True) if counts],
        *(column[counting] for column in marks[1:]),
    )
    context = HostContext(trace, tables.owners)
    moments = {int(thread): parts.of_thread(trace, int(thread)) for thread in np.unique(steps.thread)}
    return Costs(
        steps=len(steps.number),
        wall=int((steps.end - steps.start).sum()),
        host=merge_small(_measure_host(trace, steps, moments, context), MOST_ROWS),
        device=merge_small(_measure_device(trace, steps, moments, context), MOST_ROWS)
        if tables.is_device_known
        else {},
        collectives=_sum_collectives(tables, steps),
        peak_bytes=_find_peaks(tables),
        counts=_count_names(trace, steps),
        shapes="dims" in trace.arguments,
        frames=bool((trace.kind == Kind.PYTHON).any()),
        batch=_describe_batch(trace, steps, context),
        fetches=_count_fetches(trace, steps),
        device_name=_find_device_name(trace),
    )


def _measure_host(
    trace: Trace, steps: MarkedSteps, by_thread: dict[int, Moments], context: HostContext
) -> dict[CostKey, KeyCost]:
    keys: list[Keys] = []
    lengths: list[Ints] = []
    calls: list[Ints] = []
    numbers: list[Ints] = []
    for thread, moments in by_thread.items():
        is_own = steps.thread == thread
        within = intervals.union(steps.start[is_own], steps.end[is_own])
        first, last = np.searchsorted(context.tree.thread, [thread, thread + 1])
        start = trace.start[context.tree.row[first:last]]
        end = context.tree.nesting.end[first:last]
        edges = [start, end, within.ravel(), *(spans.ravel() for spans in moments.values())]
        cuts = intervals.distinct(*edges)
        from_, to = (within[0, 0], within[-1, 1]) if len(within) else (0, -1)
        cuts = cuts[(cuts >= from_) & (cuts <= to)]
        begin, length = cuts[:-1], np.diff(cuts)
        inside = _is_covered(within, begin)
        begin, length = begin[inside], length[inside]
        owner = _find_owners(begin, start, context.tree.nesting, first)
        keys.append(_prepend_part(moments, begin, context.keys(np.where(owner >= 0, owner + first, -1))))
        lengths.append(length)
        calls.append(np.zeros(len(length), np.int64))
        numbers.append(step_marks.step_of(steps, begin))
        operator_rows = np.flatnonzero(
            (context.operator[first:last] == np.arange(first, last)) & _is_covered(within, start)
        )
        keys.append(_prepend_part(moments, start[operator_rows], context.keys(operator_rows + first)))
        lengths.append(np.zeros(len(operator_rows), np.int64))
        calls.append(np.ones(len(operator_rows), np.int64))
        numbers.append(step_marks.step_of(steps, start[operator_rows]))
    distinct, sums = _sum_by_key(keys, numbers, calls, lengths)
    return _build_rows((context.where(part, key) for part, *key in distinct.tolist()), sums)


def _find_owners(time: Ints, start: Ints, nesting: Nesting, first: int) -> Ints:
    own = Nesting(*(column[first : first + len(start)] for column in nesting))
    local = own._replace(parent=np.maximum(own.parent - first, -1))
    return still_open(local, np.searchsorted(start, time, "right") - 1, time + 1)


def _prepend_part(moments: Moments, time: Ints, keys: Keys) -> Keys:
    part = np.full((len(time), 1), len(PARTS) - 1, np.int64)
    for index, name in enumerate(labels.PARTS):
        part[_is_covered(moments[name], time)] = index
    return np.concatenate([part, keys], axis=1)


def _is_covered(moments: Intervals, time: Ints) -> Flags:
    begun_count = np.searchsorted(moments[:, 0], time, "right")
    covered: Flags = begun_count > np.searchsorted(moments[:, 1], time, "right")
    return covered


def _sum_by_key(
    keys: list[Keys], numbers: list[Ints], calls: list[Ints], lengths: list[Ints]
) -> tuple[Keys, list[Ints]]:
    if not keys:
        return np.empty((0, 8), np.int64), [np.empty(0, np.int64)] * len(KeyCost._fields)
    all_keys = np.concatenate(keys)
    _, first, group = np.unique(_pack(all_keys), return_index=True, return_inverse=True)
    group = group.ravel()
    columns = [_sum_by_group(group, np.concatenate(values), len(first)) for values in (calls, lengths)]
    return all_keys[first], [
        *columns,
        _sum_typical(group, np.concatenate(numbers), np.concatenate(lengths), len(first)),
    ]


def _sum_by_group(group: Ints, values: Ints, count: int) -> Ints:
    total = np.zeros(count, np.int64)
    np.add.at(total, group, values)
    return total


def _sum_typical(group: Ints, number: Ints, lengths: Ints, count: int) -> Ints:
    pairs = np.stack([group, number], axis=1)
    _, first_pair, step_of_key = np.unique(_pack(pairs), return_index=True, return_inverse=True)
    step_ns = _sum_by_group(step_of_key.ravel(), lengths, len(first_pair))
    key = group[first_pair]
    ordered = step_ns[np.lexsort((step_ns, key))]
    steps_of_key = np.bincount(key, minlength=count)
    first = np.cumsum(steps_of_key) - steps_of_key
    middle = (ordered[first + (steps_of_key - 1) // 2] + ordered[first + steps_of_key // 2]) / 2
    typical: Ints = np.rint(middle * steps_of_key).astype(np.int64)
    return typical


def _pack(keys: Keys) -> Ints:
    packed: Ints = np.zeros(len(keys), np.int64)
    for column in keys.T:
        size = int(column.max(initial=-1)) + 2
        if int(packed.max(initial=0)) >= MAX_NUMBER // size:
            packed = np.unique(packed, return_inverse=True)[1].ravel()
        packed = packed * size + column + 1
    return packed


def _build_rows(keys: Iterable[CostKey], sums: list[Ints]) -> dict[CostKey, KeyCost]:
    costs = itertools.starmap(KeyCost, np.stack(sums, axis=1).tolist())
    return merge_rows((key, cost) for key, cost in zip(keys, costs, strict=True) if any(cost))


def merge_rows(rows: Iterable[tuple[CostKey, KeyCost]]) -> dict[CostKey, KeyCost]:
    costs: dict[CostKey, KeyCost] = {}
    for key, cost in rows:
        costs[key] = costs[key] + cost if key in costs else cost
    return costs


def merge_small(rows: dict[CostKey, KeyCost], most: int) -> dict[CostKey, KeyCost]:
    """Keep the ``most`` largest rows. Merge the other rows by part of the step and kind of device work."""
    if len(rows) <= most:
        return rows
    ordered = sorted(rows.items(), key=lambda row: -row[1].nanoseconds)
    small = [(CostKey(key.part, operator=SMALL, kind=key.kind), cost) for key, cost in ordered[most:]]
    return merge_rows([*ordered[:most], *small])


def _measure_device(
    trace: Trace, steps: MarkedSteps, by_thread: dict[int, Moments], context: HostContext
) -> dict[CostKey, KeyCost]:
    rows = trace.device_rows
    kind = device.classes(trace)
    free = intervals.union(steps.start, steps.end)
    exclusive_ns = np.zeros(len(rows), np.int64)
    for classes in (("compute",), ("communication",), ("copy", "set")):
        selected = np.flatnonzero(np.isin(kind, [device.CLASSES.index(name_of_class) for name_of_class in classes]))
        selected = selected[np.argsort(trace.start[rows[selected]], kind="stable")]
        start, end = trace.start[rows[selected]], trace.end[rows[selected]]
        reached = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end))[:-1]
        exclusive_ns[selected] = intervals.within(free, np.maximum(start, reached), np.maximum(end, reached))
        free = intervals.subtract(free, intervals.union(start, end))
    launch = np.append(context.tree.entry, -1)[np.where(trace.launches >= 0, trace.launches, -1)]
    owner = device.owners(trace)
    entry = np.where(owner >= 0, context.tree.entry[owner], launch)
    times = device.launch_times(trace)
    moments = next(iter(by_thread.values()), dict.fromkeys(labels.PARTS, intervals.nothing()))
    keys = _prepend_part(moments, times, context.keys(entry))
    begins = _is_covered(intervals.union(steps.start, steps.end), trace.start[rows])
    table = np.concatenate([keys, kind[:, None], trace.name[rows][:, None]], axis=1).astype(np.int64)
    # device work that began before the first step counts in the first step
    number = step_marks.step_of(steps, np.maximum(trace.start[rows], steps.start.min(initial=np.iinfo(np.int64).max)))
    distinct, sums = _sum_by_key([table], [number], [begins.astype(np.int64)], [exclusive_ns])
    keys_of_rows = [
        context.where(part, key, device.CLASSES[work_class], json_values.text(trace.names[name], _MAX_NAME))
        for part, *key, work_class, name in distinct.tolist()
    ]
    return _build_rows(keys_of_rows, sums) | _measure_idle(free, moments, steps)


def _measure_idle(free: Intervals, moments: Moments, steps: MarkedSteps) -> dict[CostKey, KeyCost]:
    idle = {part: intervals.intersect(free, moments[part]) for part in labels.PARTS}
    idle_ns = {part: intervals.within(ns, steps.start, steps.end) for part, ns in idle.items()}
    idle_ns["other"] = intervals.within(free, steps.start, steps.end) - sum(idle_ns.values())
    return {
        CostKey(part, kind=IDLE): KeyCost(0, int(ns.sum()), round(float(np.median(ns)) * len(ns)))
        for part, ns in idle_ns.items()
        if ns.any()
    }


def _sum_collectives(tables: Tables, steps: MarkedSteps) -> list[Collective]:
    rows: dict[str, list[int]] = {}
    table = tables.collectives.select("operation", "duration_ms", "bytes", "step")
    numbers = set(steps.number)
    for operation, duration, size, step in table.iter_rows():
        if step in numbers:
            totals = rows.setdefault(operation or "unknown", [0, 0, 0])
            for column, value in enumerate((1, round((duration or 0) * 1e6), size or 0)):
                totals[column] += value
    return [Collective(name, *totals) for name, totals in sorted(rows.items())]


def _find_peaks(tables: Tables) -> dict[str, int]:
    if not len(tables.trace.instants.time):
        return {}
    rows = tables.memory_peak.select("device", "allocated_bytes").iter_rows()
    return {name: size for name, size in rows if size is not None}


def _count_names(trace: Trace, steps: MarkedSteps) -> dict[str, int]:
    counts: dict[str, int] = {}
    operators, work = trace.rows(Kind.OP, Kind.ANNOTATION, Kind.RUNTIME), trace.device_rows
    for rows, time in ((operators, trace.start[operators]), (work, device.launch_times(trace))):
        inside = rows[step_marks.step_of(steps, time) >= 0]
        numbers = np.bincount(trace.name[inside], minlength=len(trace.names)).tolist()
        for name, number in zip(trace.names, numbers, strict=False):
            if number and not name.startswith(labels.STEP_MARK):
                text = json_values.text(name, _MAX_NAME)
                counts[text] = counts.get(text, 0) + number
    return dict(sorted(counts.items(), key=lambda item: -item[1])[:MOST_ROWS])


def _describe_batch(trace: Trace, steps: MarkedSteps, context: HostContext) -> str:
    if "dims" not in trace.arguments or not len(steps.number):
        return ""
    rows, _ = trace.sparse("dims")
    rows = rows[(trace.start[rows] >= steps.start[-1]) & (trace.start[rows] < steps.end[-1])]
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    for row in rows.tolist():
        name = trace.names[trace.name[row]]
        shapes = trace.text(int(context.dims[row]))
        if name in operators.FIRST and isinstance(shapes, list) and shapes:
            return f"{name} of {shapes[0]}"
    return ""


def _count_fetches(trace: Trace, steps: MarkedSteps) -> int:
    rows = trace.named(Kind.ANNOTATION, Kind.OP, prefix=ranges.LOADER)
    labelled = trace.named(Kind.ANNOTATION, names=(labels.DATA,))
    rows = rows if len(rows) else labelled
    return int((step_marks.step_of(steps, trace.start[rows]) >= 0).sum())


def _find_device_name(trace: Trace) -> str:
    devices = trace.metadata.get("deviceProperties")
    names = (
        [properties.get("name") for properties in devices if isinstance(properties, dict)]
        if isinstance(devices, list)
        else []
    )
    return json_values.text(str(next((name for name in names if name), "")))
