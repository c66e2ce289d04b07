"""What the steps of one window were spent on: rows that sum to the steps, to the nanosecond."""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
import numpy as np

from perfhooks.analysis.comparison.around import PARTS, CostKey, HostContext
from perfhooks.core import json_values, labels
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
    """The moments of each part of a step on one thread."""

FORMAT: Final = 3
"""Of ``costs.json``. 1: the first; 2: rows tell what the program called; 3: and what they take in the middle step."""

IDLE: Final = "idle"
"""The class of moments in which no device worked."""
SMALL: Final = "(small)"
"""The operator of rows that are summed because there are so many."""

MOST_ROWS: Final = 4000
"""What is kept of a window apart; a ResNet's window has 1,500 rows."""
_NAME: Final = 1000
"""Of kernels, which differ in the middle of their template arguments."""


class KeyCost(NamedTuple):
    """How often, and how long: over all the steps that count."""

    calls: int
    nanoseconds: int
    typical: int
    """Nanoseconds, had each step been as the middle one of those in which it ran: a stop of the process changes it
    not."""

    def __add__(self, other: object) -> KeyCost:
        """Of both together."""
        if not isinstance(other, KeyCost):
            return NotImplemented
        return KeyCost(*map(operator.add, self, other))


NOTHING: Final = KeyCost(0, 0, 0)

Amount = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Of calls, bytes or nanoseconds, which are 104 days; so that a sum of all rows is one, too."""
Text = Annotated[str, msgspec.Meta(max_length=1 << 14)]
"""A name, a title or a fact."""


class Collective(msgspec.Struct, frozen=True):
    """The collectives of one kind."""

    operation: Text
    count: Amount
    nanoseconds: Amount
    bytes: Amount


class StoredCosts(msgspec.Struct, kw_only=True):
    """What the steps of one window, of one rank, were spent on, as far as a file holds it as it is."""

    steps: Amount = 0
    """How many steps count."""
    wall: Amount = 0
    """What they took together, in nanoseconds."""
    collectives: list[Collective] = msgspec.field(default_factory=list)
    peak_bytes: dict[Text, Amount] = msgspec.field(default_factory=dict)
    """The most memory that was allocated, by device."""
    shapes: bool = False
    """Whether shapes were recorded."""
    frames: bool = False
    """Whether Python frames and modules were."""
    batch: Text = ""
    """The first operator of a step that has shapes, and they."""
    fetches: Amount = 0
    """How many batches a DataLoader gave in these steps."""
    device_name: Text = ""


class Costs(StoredCosts, kw_only=True):
    """What the steps of one window, of one rank, were spent on."""

    host: dict[CostKey, KeyCost] = msgspec.field(default_factory=dict)
    """Every moment of the steps' own thread; sums to ``wall``."""
    device: dict[CostKey, KeyCost] = msgspec.field(default_factory=dict)
    """Every moment of the steps by what the devices did, idle ones by the part of the step; sums to ``wall``, or is
    empty where no device was traced."""
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    """How often each operator, label, call into the runtime, and kernel ran in these steps, on any thread."""


def measure(tables: Tables) -> Costs:
    """Say what the steps of a window that count were spent on.

    On the host a moment of the step's own thread belongs to the innermost operator, module (forward or backward) and
    frame of the training's own code that are open, and to the part of the step (`perfhooks.trace.tables.steps.table`).

    On devices a moment of the step belongs to the work that runs: to compute before communication, to these before
    copies and memsets, and of several of a class to the one that began first; else it is idle, while the host was in
    some part of the step. Work has the part, module and operator of its launch.

    Only steps of the most common kind count: one evaluation in a window is not a reason. Steps longer than three
    medians do not count either, as in the verdict.

    Args:
        tables: Those of the window.
    """
    trace = tables.trace
    marks, counting = tables.marks, tables.usual
    chosen = step_marks.MarkedSteps(
        [number for number, counts in zip(marks.number, counting.tolist(), strict=True) if counts],
        *(column[counting] for column in marks[1:]),
    )
    frames = HostContext(trace, tables.owners)
    moments = {int(thread): parts.of_thread(trace, int(thread)) for thread in np.unique(chosen.thread)}
    return Costs(
        steps=len(chosen.number),
        wall=int((chosen.end - chosen.start).sum()),
        host=shortened(_host(trace, chosen, moments, frames), MOST_ROWS),
        device=shortened(_device(trace, chosen, moments, frames), MOST_ROWS) if tables.is_device_known else {},
        collectives=_collectives(tables, chosen),
        peak_bytes=_peaks(tables),
        counts=_counts(trace, chosen),
        shapes="dims" in trace.arguments,
        frames=bool((trace.kind == Kind.PYTHON).any()),
        batch=_batch(trace, chosen, frames),
        fetches=_fetches(trace, chosen),
        device_name=_device_name(trace),
    )


def _host(
    trace: Trace, chosen: MarkedSteps, by_thread: dict[int, Moments], frames: HostContext
) -> dict[CostKey, KeyCost]:
    """The moments of the steps' threads, cut wherever anything begins or ends."""
    keys: list[Keys] = []
    lengths: list[Ints] = []
    calls: list[Ints] = []
    numbers: list[Ints] = []
    for thread, moments in by_thread.items():
        mine = chosen.thread == thread
        within = intervals.union(chosen.start[mine], chosen.end[mine])
        first, last = np.searchsorted(frames.tree.thread, [thread, thread + 1])
        start = trace.start[frames.tree.row[first:last]]
        end = frames.tree.nesting.end[first:last]
        edges = [start, end, within.ravel(), *(each.ravel() for each in moments.values())]
        cuts = intervals.distinct(*edges)
        from_, to = (within[0, 0], within[-1, 1]) if len(within) else (0, -1)  # a step may have no length
        cuts = cuts[(cuts >= from_) & (cuts <= to)]
        begin, length = cuts[:-1], np.diff(cuts)
        inside = _covered(within, begin)
        begin, length = begin[inside], length[inside]
        owner = _owners(begin, start, frames.tree.nesting, first)
        keys.append(_with_part(moments, begin, frames.keys(np.where(owner >= 0, owner + first, -1))))
        lengths.append(length)
        calls.append(np.zeros(len(length), np.int64))
        numbers.append(step_marks.step_of(chosen, begin))
        operators = np.flatnonzero((frames.operator[first:last] == np.arange(first, last)) & _covered(within, start))
        keys.append(_with_part(moments, start[operators], frames.keys(operators + first)))
        lengths.append(np.zeros(len(operators), np.int64))
        calls.append(np.ones(len(operators), np.int64))
        numbers.append(step_marks.step_of(chosen, start[operators]))
    distinct, sums = _summed(keys, numbers, calls, lengths)
    return _cells((frames.where(part, rest) for part, *rest in distinct.tolist()), sums)


def _owners(time: Ints, start: Ints, nesting: Nesting, first: int) -> Ints:
    """The innermost slice of one thread that is open at each moment, or -1.

    Args:
        time: moments.
        start: of the thread's slices.
        nesting: how all slices nest.
        first: where those of the thread begin.
    """
    mine = Nesting(*(column[first : first + len(start)] for column in nesting))
    alone = mine._replace(parent=np.maximum(mine.parent - first, -1))
    return still_open(alone, np.searchsorted(start, time, "right") - 1, time + 1)


def _with_part(moments: Moments, time: Ints, keys: Keys) -> Keys:
    part = np.full((len(time), 1), len(PARTS) - 1, np.int64)
    for place, name in enumerate(labels.PARTS):
        part[_covered(moments[name], time)] = place
    return np.concatenate([part, keys], axis=1)


def _covered(moments: Intervals, time: Ints) -> Flags:
    begun = np.searchsorted(moments[:, 0], time, "right")
    covered: Flags = begun > np.searchsorted(moments[:, 1], time, "right")
    return covered


def _summed(keys: list[Keys], numbers: list[Ints], calls: list[Ints], lengths: list[Ints]) -> tuple[Keys, list[Ints]]:
    """The distinct keys, and of each the columns of `KeyCost`.

    Args:
        keys: Of moments and of calls.
        numbers: The step of each.
        calls: How many calls each is.
        lengths: And how many nanoseconds.
    """
    if not keys:
        return np.empty((0, 8), np.int64), [np.empty(0, np.int64)] * len(KeyCost._fields)
    every = np.concatenate(keys)
    _, first, place = np.unique(_packed(every), return_index=True, return_inverse=True)
    place = place.ravel()
    columns = [_added(place, np.concatenate(values), len(first)) for values in (calls, lengths)]
    return every[first], [*columns, _typical(place, np.concatenate(numbers), np.concatenate(lengths), len(first))]


def _added(place: Ints, values: Ints, count: int) -> Ints:
    total = np.zeros(count, np.int64)
    np.add.at(total, place, values)
    return total


def _typical(place: Ints, number: Ints, lengths: Ints, count: int) -> Ints:
    """The median over the steps in which something ran, times their number, for each key."""
    pairs = np.stack([place, number], axis=1)
    _, first_pair, step_of_key = np.unique(_packed(pairs), return_index=True, return_inverse=True)
    spent = _added(step_of_key.ravel(), lengths, len(first_pair))
    key = place[first_pair]
    ordered = spent[np.lexsort((spent, key))]
    steps_of_key = np.bincount(key, minlength=count)
    first = np.cumsum(steps_of_key) - steps_of_key
    middle = (ordered[first + (steps_of_key - 1) // 2] + ordered[first + steps_of_key // 2]) / 2
    typical: Ints = np.rint(middle * steps_of_key).astype(np.int64)
    return typical


def _packed(keys: Keys) -> Ints:
    """One number for each row, equal for equal rows: sorting numbers takes a tenth of the time of sorting rows."""
    packed: Ints = np.zeros(len(keys), np.int64)
    for column in keys.T:
        size = int(column.max(initial=-1)) + 2
        if int(packed.max(initial=0)) >= _LARGEST // size:
            packed = np.unique(packed, return_inverse=True)[1].ravel()
        packed = packed * size + column + 1
    return packed


_LARGEST: Final = 2**62


def _cells(wheres: Iterable[CostKey], sums: list[Ints]) -> dict[CostKey, KeyCost]:
    """Texts that are cut may be equal where numbers were not."""
    costs = itertools.starmap(KeyCost, np.stack(sums, axis=1).tolist())
    return together((where, cost) for where, cost in zip(wheres, costs, strict=True) if any(cost))


def together(rows: Iterable[tuple[CostKey, KeyCost]]) -> dict[CostKey, KeyCost]:
    """The rows of each place as one."""
    found: dict[CostKey, KeyCost] = {}
    for where, cost in rows:
        found[where] = found[where] + cost if where in found else cost
    return found


def shortened(rows: dict[CostKey, KeyCost], most: int) -> dict[CostKey, KeyCost]:
    """The costliest rows; the others as one for each part and kind, so that the sum stays."""
    if len(rows) <= most:
        return rows
    ordered = sorted(rows.items(), key=lambda row: -row[1].nanoseconds)
    rest = [(CostKey(where.part, operator=SMALL, kind=where.kind), cost) for where, cost in ordered[most:]]
    return together([*ordered[:most], *rest])


def _device(
    trace: Trace, chosen: MarkedSteps, by_thread: dict[int, Moments], frames: HostContext
) -> dict[CostKey, KeyCost]:
    """What the devices did in every moment of the steps."""
    rows = trace.device_rows
    kind = device.classes(trace)
    free = intervals.union(chosen.start, chosen.end)
    spent = np.zeros(len(rows), np.int64)
    for classes in (("compute",), ("communication",), ("copy", "set")):
        mine = np.flatnonzero(np.isin(kind, [device.CLASSES.index(each) for each in classes]))
        mine = mine[np.argsort(trace.start[rows[mine]], kind="stable")]
        start, end = trace.start[rows[mine]], trace.end[rows[mine]]
        reached = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end))[:-1]
        spent[mine] = intervals.within(free, np.maximum(start, reached), np.maximum(end, reached))
        free = intervals.subtract(free, intervals.union(start, end))
    launch = np.append(frames.tree.entry, -1)[np.where(trace.launches >= 0, trace.launches, -1)]
    owner = device.owners(trace)
    entry = np.where(owner >= 0, frames.tree.entry[owner], launch)
    times = device.launch_times(trace)
    moments = next(iter(by_thread.values()), dict.fromkeys(labels.PARTS, intervals.nothing()))
    keys = _with_part(moments, times, frames.keys(entry))
    begins = _covered(intervals.union(chosen.start, chosen.end), trace.start[rows])
    table = np.concatenate([keys, kind[:, None], trace.name[rows][:, None]], axis=1).astype(np.int64)
    # what began before the first step ran in it as well
    number = step_marks.step_of(chosen, np.maximum(trace.start[rows], chosen.start.min(initial=np.iinfo(np.int64).max)))
    distinct, sums = _summed([table], [number], [begins.astype(np.int64)], [spent])
    wheres = [
        frames.where(part, rest, device.CLASSES[what], json_values.text(trace.names[name], _NAME))
        for part, *rest, what, name in distinct.tolist()
    ]
    return _cells(wheres, sums) | _idle(free, moments, chosen)


def _idle(free: Intervals, moments: Moments, chosen: MarkedSteps) -> dict[CostKey, KeyCost]:
    """What is left of the steps, by what the host did meanwhile."""
    left = {part: intervals.intersect(free, moments[part]) for part in labels.PARTS}
    spent = {part: intervals.within(each, chosen.start, chosen.end) for part, each in left.items()}
    spent["other"] = intervals.within(free, chosen.start, chosen.end) - sum(spent.values())
    return {
        CostKey(part, kind=IDLE): KeyCost(0, int(each.sum()), round(float(np.median(each)) * len(each)))
        for part, each in spent.items()
        if each.any()
    }


def _collectives(tables: Tables, chosen: MarkedSteps) -> list[Collective]:
    found: dict[str, list[int]] = {}
    table = tables.collectives.select("operation", "duration_ms", "bytes", "step")
    wanted = set(chosen.number)
    for operation, duration, size, step in table.iter_rows():
        if step in wanted:
            row = found.setdefault(operation or "unknown", [0, 0, 0])
            for place, value in enumerate((1, round((duration or 0) * 1e6), size or 0)):
                row[place] += value
    return [Collective(name, *row) for name, row in sorted(found.items())]


def _peaks(tables: Tables) -> dict[str, int]:
    if not len(tables.trace.instants.time):
        return {}
    rows = tables.memory_peak.select("device", "allocated_bytes").iter_rows()
    return {name: size for name, size in rows if size is not None}


def _counts(trace: Trace, chosen: MarkedSteps) -> dict[str, int]:
    found: dict[str, int] = {}
    operators, work = trace.rows(Kind.OP, Kind.ANNOTATION, Kind.RUNTIME), trace.device_rows
    for rows, time in ((operators, trace.start[operators]), (work, device.launch_times(trace))):
        inside = rows[step_marks.step_of(chosen, time) >= 0]
        numbers = np.bincount(trace.name[inside], minlength=len(trace.names)).tolist()
        for name, number in zip(trace.names, numbers, strict=False):
            if number and not name.startswith(labels.STEP_MARK):
                text = json_values.text(name, _NAME)
                found[text] = found.get(text, 0) + number
    return dict(sorted(found.items(), key=lambda item: -item[1])[:MOST_ROWS])


def _batch(trace: Trace, chosen: MarkedSteps, frames: HostContext) -> str:
    """The first operator of the last step in whose inputs is a tensor of two dimensions: most often its batch."""
    if "dims" not in trace.arguments or not len(chosen.number):
        return ""
    rows, _ = trace.sparse("dims")
    rows = rows[(trace.start[rows] >= chosen.start[-1]) & (trace.start[rows] < chosen.end[-1])]
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    for row in rows.tolist():
        name = trace.names[trace.name[row]]
        shapes = trace.text(int(frames.dims[row]))
        if name in operators.FIRST and isinstance(shapes, list) and shapes:
            return f"{name} of {shapes[0]}"
    return ""


def _fetches(trace: Trace, chosen: MarkedSteps) -> int:
    rows = trace.named(Kind.ANNOTATION, Kind.OP, prefix=ranges.LOADER)
    labelled = trace.named(Kind.ANNOTATION, names=(labels.DATA,))
    rows = rows if len(rows) else labelled
    return int((step_marks.step_of(chosen, trace.start[rows]) >= 0).sum())


def _device_name(trace: Trace) -> str:
    devices = trace.metadata.get("deviceProperties")
    names = [each.get("name") for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
    return json_values.text(str(next((name for name in names if name), "")))
