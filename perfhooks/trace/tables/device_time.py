"""Where the time of the devices went, to the nanosecond: work of a step by class, work of others, and idle by cause.

Whoever says that a device was busy, or idle, and why, says it from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.core import labels
from perfhooks.trace.kinds import Kind
from perfhooks.trace.model import by_number
from perfhooks.trace.names import ranges, runtime_calls
from perfhooks.trace.nesting import (
    cause_intervals,
    device,
    host,
    idle_threads,
    innermost,
    intervals,
    parts,
    starts,
    step_marks,
    waits,
)
from perfhooks.trace.nesting.cause_intervals import CauseIntervals
from perfhooks.trace.nesting.grouping import summed
from perfhooks.trace.nesting.slices import nearest
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Ints, Trace
    from perfhooks.trace.nesting.intervals import Intervals

CAUSES: Final = (
    *("waiting for the device", "waiting for data", "asking for memory", starts.COMPILING, starts.CAPTURING),
    *(starts.LOADING, starts.CHOOSING, "collecting garbage", "waiting for other ranks", "validating", "checkpointing"),
    *("operators on the host", "code between operators", "calls of the runtime", "nothing recorded"),
    *("launching", "full queue", "start latency", "waiting for other work", "asked for, not begun", "inside a graph"),
    "launch not recorded",
)
"""Why a device was idle."""
SYNC, DATA, MEMORY, COMPILING, CAPTURING, LOADING, CHOOSING, GARBAGE, RANKS, VALIDATION, CHECKPOINT = range(11)
OPERATORS, CODE, CALLS, NOTHING, LAUNCHING, FULL, LATENCY, DEPENDENCY, PENDING, GRAPH, UNKNOWN = range(11, len(CAUSES))
NOT_ASKED: Final = tuple(range(LAUNCHING))
"""Causes of the time before the next work had been asked for: what the thread did that then asked."""
UNEXPLAINED: Final = (NOTHING, PENDING, UNKNOWN)

PLACES: Final = ("before the first work", "between", "after the last work")
"""Where in a step, by its own work."""

QUEUE: Final = ("empty", "up to 10", "more", "full")
"""How much had been asked for and not begun."""
FEW: Final = 10
LATENCY_NS: Final = 10_000
"""What had been asked for and does not begin within 10 us of a free device waits for something else: of 36,000 starts
on idle devices (V100, A100, H100) half took 2 us and 99% less than 5; on an MI300 half took 4.5 us, and one in 40 more
than 10."""
FULL_QUEUE: Final = 1000
"""CUDA's queue has room for 1,024 launches; then the next call waits."""
_BLOCKED_NS: Final = 50_000
"""A launch takes 5 to 10 us; HolisticTraceAnalysis calls one above 50 us an outlier."""

_PARTS: Final = (
    *((labels.DATA, DATA), (labels.VALIDATION, VALIDATION), (labels.CHECKPOINT, CHECKPOINT)),
    (labels.COMMUNICATION, RANKS),
)
_OF_THREADS: Final = (OPERATORS, CODE, CALLS, NOTHING, LAUNCHING)
"""What the innermost slice of a thread says, where the part of the step around it says more."""
_STREAM_WAITS: Final = "Stream Wait Event"
_FAR: Final = 2**62
ALL: Final = -1
"""For the number of a device: all of them together."""


class Idle(NamedTuple):
    """Intervals of the steps in which no work ran, each for one cause: disjoint, by time, and all there are."""

    start: Ints
    end: Ints
    step: Column
    """The place of the step among the marks of the trace."""
    place: Column
    """An index into `PLACES`; -1 in a step without work of its own."""
    cause: Column
    """An index into `CAUSES`."""
    row: Column
    """The slice of the host that says what it did, or asked; -1 where none does."""
    work: Column
    """The next work, as a place in `Trace.device_rows`; -1 after the last one."""

    @property
    def length(self) -> Ints:
        """Nanoseconds."""
        return self.end - self.start


class Span(NamedTuple):
    """Nanoseconds from the first to the last moment of the work that each step launched: one entry for each mark.

    Exposed is communication beside which nothing computes, and copies and memsets beside which nothing else runs. So
    compute + exposed_comm + exposed_copy = busy, and busy + other_work + idle = device_span.
    """

    device_span: Ints
    busy: Ints
    idle: Ints
    compute: Ints
    comm: Ints
    exposed_comm: Ints
    exposed_copy: Ints
    other_work: Ints


class _Gaps(NamedTuple):
    """Idle times, cut where steps begin and end."""

    begin: Ints
    end: Ints
    step: Column
    since: Ints
    """Since when the device was idle."""
    following: Column
    """The work that ends it, as a place in `Trace.device_rows`, or -1."""


def numbers(trace: Trace) -> list[int]:
    """The devices that worked."""
    found: list[int] = intervals.distinct(device.devices(trace, trace.device_rows)).tolist()
    return found


@cached_per_trace
def work(trace: Trace, number: int = ALL) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """The nanoseconds of each step's wall in which a device worked: one row for each mark.

    Columns are `device.CLASSES`, what the step launched itself, each without the moments of those before it; then the
    work of other steps and of none, in what remains. With `idle` they sum to the wall.

    Args:
        trace: any trace.
        number: of the device; all together if not given.
    """
    marks, mine = step_marks.find(trace), _work(trace, number)
    rows = trace.device_rows[mine]
    step = step_marks.step_of(marks, device.launch_times(trace)[mine])
    start, end = np.maximum(trace.start[rows], marks.start[step]), np.minimum(trace.end[rows], marks.end[step])
    kind, own = device.classes(trace)[mine], step >= 0
    found, taken = [], intervals.nothing()
    for place in range(len(device.CLASSES)):
        chosen = own & (kind == place)
        both = intervals.joined(taken, intervals.union(start[chosen], end[chosen]))
        found.append(_within(both, marks) - _within(taken, marks))
        taken = both
    return np.stack([*found, _within(_busy(trace, number), marks) - _within(taken, marks)], axis=1)


@cached_per_trace
def span(trace: Trace) -> Span:
    """Split the span of each step's own work, of all devices together, wherever that lies; for the wall see `work`."""
    marks, rows = step_marks.find(trace), trace.device_rows
    step = step_marks.step_of(marks, device.launch_times(trace))
    mine = np.flatnonzero((step >= 0) & (trace.end > trace.start)[rows])
    if not len(mine):
        return Span(*[np.zeros(len(marks.start), np.int64)] * len(Span._fields))
    step, kind, start, end = step[mine], device.classes(trace)[mine], trace.start[rows[mine]], trace.end[rows[mine]]
    # steps' work may run at the same time: numbered by step and moment, each step's is apart
    time = intervals.distinct(start, end)
    begin, finish = (step * len(time) + np.searchsorted(time, each) for each in (start, end))
    kinds = (kind == device.COMPUTE, kind == device.COMMUNICATION, kind > device.COMMUNICATION)
    compute, comm, copied = (intervals.union(begin[chosen], finish[chosen]) for chosen in kinds)
    kernels = intervals.joined(compute, comm)
    sets = (compute, comm, kernels, intervals.joined(kernels, copied))
    computed, communicated, in_kernels, busy = (_spent(moments, time, len(marks.start)) for moments in sets)
    first, last = _extents(step, start, end, len(marks.start))
    worked = intervals.within(device.busy(trace), first, last)
    return Span(
        *(last - first, busy, last - first - worked, computed, communicated),
        *(in_kernels - computed, busy - in_kernels, worked - busy),
    )


@cached_per_trace
def idle(trace: Trace, number: int = ALL) -> Idle:
    """Return the idle intervals of each step with their causes.

    The next work ends an idle interval. Before its launch began, the cause is what the launching thread did, by its
    innermost slice. During the launch, the cause is ``launching``. After the launch, the first 10 us (`LATENCY_NS`) are
    ``start latency``. The time after that is ``waiting for other work`` if ``enable_cuda_sync_events`` recorded that
    the stream waits for an event. Otherwise its cause is unknown::


        host      --|-- what the thread did --|launch|
        device  work|                                                       |next work
                    |      not asked yet      |asking| latency |   waiting   |

    * ``waiting for the device``: calls that wait (`device.wait_calls`, `waits.blocking`).
    * ``asking for memory``: calls that allocate or free memory.
    * ``collecting garbage``: collections recorded by ``record_python_gc_info``.
    * One-time work: the intervals of `perfhooks.trace.nesting.starts`.
    * Data, validation, checkpoint and other ranks: the part of the step (`perfhooks.trace.nesting.parts`).
    * Otherwise: an operator, a runtime call, or code between operators. Such code is a Python frame, or a label if
      stacks were not recorded.

    If the launching thread did nothing, for example autograd's thread before the backward pass, the thread of the steps
    decides. If that thread is between operators, autograd's thread decides.

    The launch of a graph launches all its nodes, so idle time between them is ``inside a graph``. The cause is unknown
    for work whose launch is not in the trace. If two steps overlap, the later one counts.

    Args:
        trace: Any trace.
        number: Device number; without it, intervals in which no device worked.
    """
    marks, mine = step_marks.find(trace), _work(trace, number)
    if not len(marks.start) or not len(trace.device_rows):
        none = np.empty(0, np.int64)
        return Idle(none, none, none, none, none, none, none)
    gaps = _gaps(trace, _busy(trace, number), marks, mine)
    open_, late = _asked(trace, gaps, mine)
    launch = np.append(trace.launches, -1)[gaps.following[open_.of]]
    main = marks.thread[gaps.step[open_.of]]
    found = cause_intervals.joined(late, *_host(trace, open_, np.where(launch >= 0, trace.thread[launch], main), main))
    found = found.taken(np.argsort(found.start, kind="stable"))
    begun = [(CAUSES.index(name), moments) for name, moments in starts.by_kind(trace).items()]
    found = cause_intervals.reclassify(found, begun, of=(*_OF_THREADS, SYNC, MEMORY, FULL))
    return Idle(
        *(found.start, found.end, gaps.step[found.of], _places(trace, gaps, marks, mine)[found.of]),
        *(found.cause, found.row, gaps.following[found.of]),
    )


@cached_per_trace
def queue(trace: Trace) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """The nanoseconds of each step's wall by how many launches had been made whose work had not begun: `QUEUE`.

    A replay of a graph is one launch, which begins with its first node. What was launched before recording began is
    not known, so the queue may be longer than that at first.
    """
    marks = step_marks.find(trace)
    launched, begun = _launched(trace)
    time = np.concatenate([launched, begun])
    change = np.concatenate([np.ones(len(launched), np.int64), np.full(len(begun), -1)])
    order = np.argsort(time, kind="stable")
    time, depth = np.append(time[order], _FAR), np.cumsum(change[order])
    columns = []
    for least, most in ((1, FEW), (FEW + 1, FULL_QUEUE - 1), (FULL_QUEUE, _FAR)):
        chosen = (depth >= least) & (depth <= most)
        columns.append(_within(intervals.union(time[:-1][chosen], time[1:][chosen]), marks))
    return np.stack([marks.end - marks.start - sum(columns), *columns], axis=1)


def _spent(moments: Intervals, time: Ints, count: int) -> Ints:
    """The nanoseconds of each step in a set of moments that are numbered by step and place in ``time``."""
    step, place = np.divmod(moments, len(time))
    return summed(step[:, 0], time[place[:, 1]] - time[place[:, 0]], count)


def _extents(step: Ints, start: Ints, end: Ints, count: int) -> tuple[Ints, Ints]:
    """The first and the last moment of each step's work; 0 for steps without any."""
    first, last = np.full(count, _FAR), np.full(count, -_FAR)
    np.minimum.at(first, step, start)
    np.maximum.at(last, step, end)
    return np.where(first < _FAR, first, 0), np.where(last > -_FAR, last, 0)


def _within(moments: Intervals, marks: step_marks.MarkedSteps) -> Ints:
    return intervals.within(moments, marks.start, marks.end)


def _work(trace: Trace, number: int) -> Ints:
    """The work of a device: places in `Trace.device_rows`."""
    if number == ALL:
        return np.arange(len(trace.device_rows))
    return np.flatnonzero(device.devices(trace, trace.device_rows) == number)


def _busy(trace: Trace, number: int) -> Intervals:
    return device.busy(trace) if number == ALL else intervals.of_slices(trace, trace.device_rows[_work(trace, number)])


def _gaps(trace: Trace, busy: Intervals, marks: step_marks.MarkedSteps, mine: Ints) -> _Gaps:
    """The idle times from the first to the last step."""
    edges = intervals.distinct(marks.start, marks.end)
    worked = intervals.clip(busy, int(edges[0]), int(edges[-1]))
    free = np.append(np.insert(worked.ravel(), 0, edges[0]), edges[-1]).reshape(-1, 2)
    free = free[free[:, 1] > free[:, 0]]
    cuts = intervals.distinct(free.ravel(), edges)
    held = np.flatnonzero(intervals.covers(free, cuts[:-1]))
    held = held[step_marks.step_of(marks, cuts[held]) >= 0]
    begin = cuts[held]
    whole = np.searchsorted(free[:, 0], begin, "right") - 1
    following = _following(trace, mine, free[:, 1])
    step = step_marks.step_of(marks, begin).astype(np.int32)
    return _Gaps(begin, cuts[held + 1], step, free[whole, 0], following[whole].astype(np.int32))


def _following(trace: Trace, mine: Ints, time: Ints) -> Ints:
    """The work that begins first from each time on, and of several the one that was launched first; -1 where none."""
    rows = trace.device_rows[mine]
    mine = mine[trace.end[rows] > trace.start[rows]]
    start = trace.start[trace.device_rows[mine]]
    order = np.lexsort((device.launch_times(trace)[mine], start))
    return np.append(mine[order], -1)[np.searchsorted(start[order], time, "left")]


def _asked(trace: Trace, gaps: _Gaps, mine: Ints) -> tuple[CauseIntervals, CauseIntervals]:
    """Cut idle times where the launch of what follows begins and ends: what lies before it, and the rest."""
    begin, end, following = gaps.begin, gaps.end, gaps.following
    launch = np.append(trace.launches, -1)[following]
    known = launch >= 0
    launched, finished = (np.append(edge, 0)[following] for edge in trace.launch_spans)
    call = np.clip(np.where(known, launched, end), begin, end)
    done = np.where(known, finished, end)
    returned = np.clip(done, call, end)
    late = np.clip(np.maximum(done, gaps.since) + LATENCY_NS, returned, end)
    is_node = known & np.isin(following, _later_nodes(trace, mine))
    is_lost = (following >= 0) & ~known
    asking = np.where(np.isin(launch, _blocked(trace)), FULL, LAUNCHING)
    event = _awaited(trace, following)
    whole = is_node | is_lost
    found = [
        cause_intervals.pieces(begin, np.where(whole, begin, call), np.full(len(begin), NOTHING), launch),
        cause_intervals.pieces(call, np.where(whole, call, returned), asking, launch),
        cause_intervals.pieces(returned, np.where(whole, returned, late), np.full(len(begin), LATENCY), launch),
        cause_intervals.pieces(late, np.where(whole | (event < 0), late, end), np.full(len(begin), DEPENDENCY), event),
        cause_intervals.pieces(late, np.where(whole | (event >= 0), late, end), np.full(len(begin), PENDING), launch),
        cause_intervals.pieces(begin, np.where(whole, end, begin), np.where(is_node, GRAPH, UNKNOWN), launch),
    ]
    return found[0], cause_intervals.joined(*found[1:])


def _awaited(trace: Trace, work: Ints) -> Ints:
    """The call that made the stream of each work wait for an event, after what was launched there before it, or -1."""
    reported = trace.named(Kind.SYNC, names=(_STREAM_WAITS,))
    if not len(reported):
        return np.full(len(work), -1)
    streams: dict[tuple[object, object], int] = {}
    number = np.array([streams.setdefault((pid, tid), len(streams)) for _, pid, tid, _ in trace.threads])
    # one number for a stream and a time: the larger, the later, stream by stream
    origin, whole = trace.start.min() - 1, trace.end.max() - trace.start.min() + 2
    launched = number[trace.thread[trace.device_rows]] * whole + device.launch_times(trace) - origin
    waits_from = number[trace.thread[reported]] * whole + trace.start[reported] - origin
    reported = reported[np.argsort(waits_from, kind="stable")]
    before = np.searchsorted(np.sort(waits_from), launched[work]) - 1
    previous = np.append(0, np.sort(launched))[np.searchsorted(np.sort(launched), launched[work])]
    waited = np.append(np.sort(waits_from), -1)[before]
    row = by_number(trace.correlation, trace.rows(Kind.RUNTIME)).of(trace.correlation[reported])
    return np.where((work >= 0) & (waited > previous) & (waited // whole == launched[work] // whole), row[before], -1)


@cached_per_trace
def _launched(trace: Trace) -> tuple[Ints, Ints]:
    """When each call was made that launched work, and when the first of its work began, not before."""
    known = trace.launches >= 0
    call, begun = trace.launches[known], trace.start[trace.device_rows[known]]
    order = np.lexsort((begun, call))
    call, begun = call[order], begun[order]
    first = np.diff(call, prepend=-1) > 0
    launched = trace.start[call[first]]
    return launched, np.maximum(begun[first], launched)


@cached_per_trace
def _blocked(trace: Trace) -> Ints:
    """Return the launches that waited for room in the queue, by a record of the driver or by their number."""
    launched, begun = (np.sort(each) for each in _launched(trace))
    calls = device.launch_calls(trace)
    calls = calls[(trace.end - trace.start)[calls] > _BLOCKED_NS]
    time = trace.start[calls]
    is_behind = np.searchsorted(launched, time) - np.searchsorted(begun, time) >= FULL_QUEUE
    return calls[is_behind | (intervals.within(device.full_queue(trace), time, trace.end[calls]) > 0)]


def _later_nodes(trace: Trace, mine: Ints) -> Ints:
    """The work of graphs but for that of each replay which began first."""
    graphs = trace.chosen(runtime_calls.GRAPH.search, Kind.RUNTIME)
    nodes = mine[np.isin(trace.launches[mine], graphs)]
    order = np.lexsort((trace.start[trace.device_rows[nodes]], trace.launches[nodes]))
    launch = trace.launches[nodes[order]]
    return nodes[order][1:][launch[1:] == launch[:-1]] if len(nodes) else nodes


def _places(trace: Trace, gaps: _Gaps, marks: step_marks.MarkedSteps, mine: Ints) -> Column:
    """Where each idle time lies in its step."""
    rows, own = trace.device_rows[mine], step_marks.step_of(marks, device.launch_times(trace)[mine])
    first, last = np.full(len(marks.start) + 1, _FAR), np.full(len(marks.start) + 1, -_FAR)
    np.minimum.at(first, own, trace.start[rows])  # the last place is that of the work of no step
    np.maximum.at(last, own, trace.end[rows])
    first, last = first[gaps.step], last[gaps.step]
    return np.where(first < _FAR, np.select([gaps.end <= first, gaps.begin >= last], [0, 2], 1), -1).astype(np.int8)


def _host(trace: Trace, asked: CauseIntervals, thread: Ints, main: Ints) -> list[CauseIntervals]:
    """Cut stretches by what threads did in them.

    Args:
        trace: any trace.
        asked: the stretches.
        thread: the thread that is looked at first, for each.
        main: the thread of the steps.
    """
    first = _by_thread(trace, asked, thread)
    of_step = main == thread
    other = np.where(of_step, _other_thread(trace), main)
    silent = first.cause == NOTHING
    again = (other >= 0)[first.of] & (silent | ((first.cause == CODE) & of_step[first.of]))
    if not again.any():
        return [first._replace(of=asked.of[first.of])]
    second = _by_thread(trace, first.taken(again), other[first.of[again]])
    of = np.flatnonzero(again)[second.of]
    worked = np.isin(second.cause, (SYNC, MEMORY, OPERATORS, CALLS, LAUNCHING, FULL))
    better = np.where(silent[of], second.cause != NOTHING, worked)
    cause, row = np.where(better, second.cause, first.cause[of]), np.where(better, second.row, first.row[of])
    kept, second = first.taken(~again), second._replace(of=first.of[of], cause=cause, row=row)
    return [each._replace(of=asked.of[each.of]) for each in (kept, second)]


def _other_thread(trace: Trace) -> int:
    """The thread that launched most of those that have no steps, as that of autograd; -1 where there is none."""
    launches = trace.launches[trace.launches >= 0]
    count = np.bincount(trace.thread[launches], minlength=len(trace.threads) + 1)
    count[step_marks.find(trace).thread] = 0
    return int(count.argmax()) if count.any() else -1


def _by_thread(trace: Trace, asked: CauseIntervals, thread: Ints) -> CauseIntervals:
    """Cut stretches by what one thread did in each; ``of`` counts what was asked about."""
    found = []
    for number in intervals.distinct(thread).tolist():
        mine = np.flatnonzero(thread == number)
        mine = mine[np.argsort(asked.start[mine], kind="stable")]
        of, start, end, entry = innermost.cut(asked.start[mine], asked.end[mine], innermost.of_thread(trace, number))
        row, cause = _rows(trace)[entry], _causes(trace, number)[entry]
        garbage = trace.named(Kind.PYTHON, names=(ranges.GARBAGE,))
        collecting = intervals.of_slices(trace, garbage[trace.thread[garbage] == number])
        moments = parts.of_thread(trace, number)
        layers = [(GARBAGE, collecting), *((code, moments[part]) for part, code in _PARTS)]
        found.append(
            cause_intervals.reclassify(
                CauseIntervals(mine.astype(np.int32)[of], start, end, cause, row), layers, of=_OF_THREADS
            )
        )
    return cause_intervals.joined(*found) if found else asked


@cached_per_trace
def _marks(trace: Trace) -> tuple[Ints, Ints]:
    """The entries of `host.tree` that are marks of steps, and what each lies in that is none, or -1."""
    tree = host.tree(trace)
    marks = tree.entry[trace.named(Kind.ANNOTATION, Kind.OP, prefix=labels.STEP_MARK)]
    is_other = np.ones(len(tree.row), np.bool_)
    is_other[marks] = False
    return marks, nearest(tree.nesting.parent, marks, is_other)


@cached_per_trace
def _rows(trace: Trace) -> Column:
    """The slice of each entry of `host.tree`, for a mark of a step what that lies in; -1 for what is none."""
    rows = np.append(host.tree(trace).row, -1).astype(np.int32)
    marks, around = _marks(trace)
    rows[marks] = rows[around]
    return rows


@cached_per_trace
def _meanings(trace: Trace) -> Column:
    """What each entry of `host.tree` means as a cause where it is the innermost; the last is that of none."""
    tree = host.tree(trace)
    of_kind = np.full(len(Kind), CODE, np.int8)
    of_kind[[Kind.OP, Kind.RUNTIME]] = OPERATORS, CALLS
    cause = np.append(of_kind[trace.kind[tree.row]], np.int8(NOTHING))
    told = (
        (device.launch_calls(trace), LAUNCHING),
        (trace.calls[trace.calls >= 0], LAUNCHING),
        (_blocked(trace), FULL),
        (trace.chosen(runtime_calls.MEMORY.search, Kind.RUNTIME), MEMORY),
        (waits.blocking(trace).call, SYNC),
        (device.wait_calls(trace), SYNC),
    )
    for rows, code in told:
        cause[tree.entry[rows]] = code
    return cause


@cached_per_trace
def _causes(trace: Trace, thread: int) -> Column:
    """The same for a thread: one without steps may be waiting for something to do. Marks mean what they lie in."""
    cause: Column = _meanings(trace).copy()
    if thread not in step_marks.find(trace).thread:
        cause[:-1][idle_threads.waiting(trace)] = NOTHING
    marks, around = _marks(trace)
    cause[marks] = cause[around]
    return cause
