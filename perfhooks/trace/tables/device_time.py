from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.core import labels
from perfhooks.trace.bounds import MAX_NUMBER
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
from perfhooks.trace.nesting.slices import nearest
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Ints, Trace
    from perfhooks.trace.nesting.intervals import Intervals

CAUSES: Final = (
    *("waiting for the device", "waiting for data", "requesting memory", starts.COMPILING, starts.CAPTURING),
    *(starts.LOADING, starts.CHOOSING, "collecting garbage", "waiting for other ranks", "validating", "checkpointing"),
    *("operators on the host", "code between operators", "calls of the runtime", "nothing recorded"),
    *("launching", "full queue", "start latency", "waiting for other work", "launched, not started", "inside a graph"),
    "launch not recorded",
)
SYNC, DATA, MEMORY, COMPILING, CAPTURING, LOADING, CHOOSING, GARBAGE, RANKS, VALIDATION, CHECKPOINT = range(11)
OPERATORS, CODE, CALLS, NOTHING, LAUNCHING, FULL, LATENCY, DEPENDENCY, PENDING, GRAPH, UNKNOWN = range(11, len(CAUSES))

PLACES: Final = ("before the first work", "between", "after the last work")

QUEUE: Final = ("empty", "up to 10", "more", "full")
"""Ranges of the queue length: the number of launches whose device work has not begun."""
FULL_QUEUE: Final = 1000
"""Queue length that counts as full. CUDA's queue holds 1,024 launches; further launches wait."""

_PART_CAUSES: Final = (
    *((labels.DATA, DATA), (labels.VALIDATION, VALIDATION), (labels.CHECKPOINT, CHECKPOINT)),
    (labels.COMMUNICATION, RANKS),
)
_THREAD_CAUSES: Final = (OPERATORS, CODE, CALLS, NOTHING, LAUNCHING)
"""Causes of idle time that garbage collection and `_PART_CAUSES` replace."""
_STREAM_WAITS: Final = "Stream Wait Event"


class Idle(NamedTuple):
    """Idle intervals of the device during steps, disjoint and sorted by time."""

    start: Ints
    end: Ints
    step: Column
    place: Column
    """Position in the step, as an index into `PLACES`; -1 if the step launched no device work."""
    cause: Column
    row: Column
    """Host slice that caused the idle time, otherwise the launch of the next device work, or -1."""
    work: Column
    """Device work after the interval, as an index into `Trace.device_rows`, or -1."""

    @property
    def length(self) -> Ints:
        return self.end - self.start


class _Gaps(NamedTuple):
    begin: Ints
    end: Ints
    step: Column
    since: Ints
    following: Column


@cached_per_trace
def work(trace: Trace, number: int | None = None) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return the busy time of the device within the wall time of each step, in ns: one row per step.

    The columns `device.CLASSES` contain work that the step launched, without the time of earlier columns. The last
    column is work of other steps. All columns and the times of `idle` sum to the wall time.
    """
    marks, selected = step_marks.find(trace), device.selected(trace, number)
    rows = trace.device_rows[selected]
    step = step_marks.step_of(marks, device.launch_times(trace)[selected])
    start, end = np.maximum(trace.start[rows], marks.start[step]), np.minimum(trace.end[rows], marks.end[step])
    kind, is_own = device.classes(trace)[selected], step >= 0
    columns, covered = [], intervals.nothing()
    for index in range(len(device.CLASSES)):
        in_class = is_own & (kind == index)
        combined = intervals.joined(covered, intervals.union(start[in_class], end[in_class]))
        columns.append(_within_steps(combined, marks) - _within_steps(covered, marks))
        covered = combined
    return np.stack(
        [*columns, _within_steps(device.busy_on(trace, number), marks) - _within_steps(covered, marks)],
        axis=1,
    )


@cached_per_trace
def idle(trace: Trace, number: int | None = None) -> Idle:
    """Return the idle intervals of each step with their causes, of one device or of all devices together.

    An idle interval ends when the next device work begins. After the launch of this work, the cause is start latency
    for at most `device.LATENCY_NS`; afterwards, the wait for an event of another stream, or an unknown wait::

        host      --|-- the thread's slices --|launch|
        device  work|                                                       |next work
                    |      before launch      |launch| latency |   waiting   |

    Before the launch, the innermost slice of the launching thread is the cause. One-time work
    (`perfhooks.trace.nesting.starts`), a wait for data, a validation or a checkpoint has priority over operators and
    code inside it. If the launching thread is inactive, the cause comes from the thread that runs the steps, or
    else from autograd's thread. If two steps overlap, the idle interval belongs to the later step.
    """
    marks, selected = step_marks.find(trace), device.selected(trace, number)
    if not len(marks.start) or not len(trace.device_rows):
        empty = np.empty(0, np.int64)
        return Idle(empty, empty, empty, empty, empty, empty, empty)
    gaps = _idle_gaps(trace, device.busy_on(trace, number), marks, selected)
    before_launch, after_launch = _cut_at_launch(trace, gaps, selected)
    launch = np.append(trace.launches, -1)[gaps.following[before_launch.of]]
    main = marks.thread[gaps.step[before_launch.of]]
    causes = cause_intervals.joined(
        after_launch, *_by_host_activity(trace, before_launch, np.where(launch >= 0, trace.thread[launch], main), main)
    )
    causes = causes.taken(np.argsort(causes.start, kind="stable"))
    one_time = [(CAUSES.index(name), moments) for name, moments in starts.by_kind(trace).items()]
    causes = cause_intervals.reclassify(causes, one_time, of=(*_THREAD_CAUSES, SYNC, MEMORY, FULL))
    return Idle(
        *(causes.start, causes.end, gaps.step[causes.of], _places_in_step(trace, gaps, marks, selected)[causes.of]),
        *(causes.cause, causes.row, gaps.following[causes.of]),
    )


@cached_per_trace
def queue(trace: Trace) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return the time that each step spends in each range of the queue length (`QUEUE`), in ns.

    A replay of a CUDA graph is one launch. Launches before the recording do not count.
    """
    marks = step_marks.find(trace)
    launched, started = _launch_and_start(trace)
    time = np.concatenate([launched, started])
    change = np.concatenate([np.ones(len(launched), np.int64), np.full(len(started), -1)])
    order = np.argsort(time, kind="stable")
    time, depth = np.append(time[order], MAX_NUMBER), np.cumsum(change[order])
    columns = []
    for shortest, longest in ((1, 10), (11, FULL_QUEUE - 1), (FULL_QUEUE, MAX_NUMBER)):
        in_range = (depth >= shortest) & (depth <= longest)
        columns.append(_within_steps(intervals.union(time[:-1][in_range], time[1:][in_range]), marks))
    return np.stack([marks.end - marks.start - sum(columns), *columns], axis=1)


def _within_steps(moments: Intervals, marks: step_marks.MarkedSteps) -> Ints:
    return intervals.within(moments, marks.start, marks.end)


def _idle_gaps(trace: Trace, busy: Intervals, marks: step_marks.MarkedSteps, selected: Ints) -> _Gaps:
    edges = intervals.distinct(marks.start, marks.end)
    busy_in_steps = intervals.clip(busy, int(edges[0]), int(edges[-1]))
    free = np.append(np.insert(busy_in_steps.ravel(), 0, edges[0]), edges[-1]).reshape(-1, 2)
    free = free[free[:, 1] > free[:, 0]]
    cuts = intervals.distinct(free.ravel(), edges)
    idle_pieces = np.flatnonzero(intervals.covers(free, cuts[:-1]))
    idle_pieces = idle_pieces[step_marks.step_of(marks, cuts[idle_pieces]) >= 0]
    begin = cuts[idle_pieces]
    gap = np.searchsorted(free[:, 0], begin, "right") - 1
    following = _next_work(trace, selected, free[:, 1])
    step = step_marks.step_of(marks, begin).astype(np.int32)
    return _Gaps(begin, cuts[idle_pieces + 1], step, free[gap, 0], following[gap].astype(np.int32))


def _next_work(trace: Trace, selected: Ints, time: Ints) -> Ints:
    rows = trace.device_rows[selected]
    selected = selected[trace.end[rows] > trace.start[rows]]
    start = trace.start[trace.device_rows[selected]]
    order = np.lexsort((device.launch_times(trace)[selected], start))
    return np.append(selected[order], -1)[np.searchsorted(start[order], time, "left")]


def _cut_at_launch(trace: Trace, gaps: _Gaps, selected: Ints) -> tuple[CauseIntervals, CauseIntervals]:
    begin, end, following = gaps.begin, gaps.end, gaps.following
    launch = np.append(trace.launches, -1)[following]
    has_launch = launch >= 0
    launched, finished = (np.append(edge, 0)[following] for edge in trace.launch_spans)
    call = np.clip(np.where(has_launch, launched, end), begin, end)
    launch_end = np.where(has_launch, finished, end)
    returned = np.clip(launch_end, call, end)
    latency_end = np.clip(np.maximum(launch_end, gaps.since) + device.LATENCY_NS, returned, end)
    is_node = has_launch & np.isin(following, _later_nodes(trace, selected))
    is_lost = (following >= 0) & ~has_launch
    launch_cause = np.where(np.isin(launch, _blocked_launches(trace)), FULL, LAUNCHING)
    event = _awaited_events(trace, following)
    skipped = is_node | is_lost
    pieces = [
        cause_intervals.pieces(begin, np.where(skipped, begin, call), np.full(len(begin), NOTHING), launch),
        cause_intervals.pieces(call, np.where(skipped, call, returned), launch_cause, launch),
        cause_intervals.pieces(
            returned, np.where(skipped, returned, latency_end), np.full(len(begin), LATENCY), launch
        ),
        cause_intervals.pieces(
            latency_end, np.where(skipped | (event < 0), latency_end, end), np.full(len(begin), DEPENDENCY), event
        ),
        cause_intervals.pieces(
            latency_end, np.where(skipped | (event >= 0), latency_end, end), np.full(len(begin), PENDING), launch
        ),
        cause_intervals.pieces(begin, np.where(skipped, end, begin), np.where(is_node, GRAPH, UNKNOWN), launch),
    ]
    return pieces[0], cause_intervals.joined(*pieces[1:])


def _awaited_events(trace: Trace, work: Ints) -> Ints:
    reported = trace.named(Kind.SYNC, names=(_STREAM_WAITS,))
    if not len(reported):
        return np.full(len(work), -1)
    streams: dict[tuple[object, object], int] = {}
    number = np.array([streams.setdefault((pid, tid), len(streams)) for _, pid, tid, _ in trace.threads])
    origin, time_range = trace.start.min() - 1, trace.end.max() - trace.start.min() + 2
    launched = number[trace.thread[trace.device_rows]] * time_range + device.launch_times(trace) - origin
    waits_from = number[trace.thread[reported]] * time_range + trace.start[reported] - origin
    reported = reported[np.argsort(waits_from, kind="stable")]
    previous_wait = np.searchsorted(np.sort(waits_from), launched[work]) - 1
    previous = np.append(0, np.sort(launched))[np.searchsorted(np.sort(launched), launched[work])]
    wait_time = np.append(np.sort(waits_from), -1)[previous_wait]
    row = by_number(trace.correlation, trace.rows(Kind.RUNTIME)).of(trace.correlation[reported])
    return np.where(
        (work >= 0) & (wait_time > previous) & (wait_time // time_range == launched[work] // time_range),
        row[previous_wait],
        -1,
    )


@cached_per_trace
def _launch_and_start(trace: Trace) -> tuple[Ints, Ints]:
    has_launch = trace.launches >= 0
    call, work_start = trace.launches[has_launch], trace.start[trace.device_rows[has_launch]]
    order = np.lexsort((work_start, call))
    call, work_start = call[order], work_start[order]
    first = np.diff(call, prepend=-1) > 0
    launched = trace.start[call[first]]
    return launched, np.maximum(work_start[first], launched)


@cached_per_trace
def _blocked_launches(trace: Trace) -> Ints:
    launched, started = (np.sort(times) for times in _launch_and_start(trace))
    calls = device.launch_calls(trace)
    calls = calls[(trace.end - trace.start)[calls] > device.BLOCKED_NS]
    time = trace.start[calls]
    is_behind = np.searchsorted(launched, time) - np.searchsorted(started, time) >= FULL_QUEUE
    return calls[is_behind | (intervals.within(device.full_queue(trace), time, trace.end[calls]) > 0)]


def _later_nodes(trace: Trace, selected: Ints) -> Ints:
    graphs = trace.chosen(runtime_calls.GRAPH.search, Kind.RUNTIME)
    nodes = selected[np.isin(trace.launches[selected], graphs)]
    order = np.lexsort((trace.start[trace.device_rows[nodes]], trace.launches[nodes]))
    launch = trace.launches[nodes[order]]
    return nodes[order][1:][launch[1:] == launch[:-1]] if len(nodes) else nodes


def _places_in_step(trace: Trace, gaps: _Gaps, marks: step_marks.MarkedSteps, selected: Ints) -> Column:
    rows, own_step = trace.device_rows[selected], step_marks.step_of(marks, device.launch_times(trace)[selected])
    first, last = np.full(len(marks.start) + 1, MAX_NUMBER), np.full(len(marks.start) + 1, -MAX_NUMBER)
    np.minimum.at(first, own_step, trace.start[rows])
    np.maximum.at(last, own_step, trace.end[rows])
    first, last = first[gaps.step], last[gaps.step]
    return np.where(first < MAX_NUMBER, np.select([gaps.end <= first, gaps.begin >= last], [0, 2], 1), -1).astype(
        np.int8
    )


def _by_host_activity(trace: Trace, gaps: CauseIntervals, thread: Ints, main: Ints) -> list[CauseIntervals]:
    first = _by_thread_activity(trace, gaps, thread)
    of_step = main == thread
    second_thread = np.where(of_step, _second_thread(trace), main)
    is_silent = first.cause == NOTHING
    needs_second = (second_thread >= 0)[first.of] & (is_silent | ((first.cause == CODE) & of_step[first.of]))
    if not needs_second.any():
        return [first._replace(of=gaps.of[first.of])]
    second = _by_thread_activity(trace, first.taken(needs_second), second_thread[first.of[needs_second]])
    of = np.flatnonzero(needs_second)[second.of]
    is_activity = np.isin(second.cause, (SYNC, MEMORY, OPERATORS, CALLS, LAUNCHING, FULL))
    is_replaced = np.where(is_silent[of], second.cause != NOTHING, is_activity)
    cause, row = np.where(is_replaced, second.cause, first.cause[of]), np.where(is_replaced, second.row, first.row[of])
    final, second = first.taken(~needs_second), second._replace(of=first.of[of], cause=cause, row=row)
    return [pieces._replace(of=gaps.of[pieces.of]) for pieces in (final, second)]


def _second_thread(trace: Trace) -> int:
    launches = trace.launches[trace.launches >= 0]
    count = np.bincount(trace.thread[launches], minlength=len(trace.threads) + 1)
    count[step_marks.find(trace).thread] = 0
    return int(count.argmax()) if count.any() else -1


def _by_thread_activity(trace: Trace, gaps: CauseIntervals, thread: Ints) -> CauseIntervals:
    intervals_by_thread = []
    for number in intervals.distinct(thread).tolist():
        selected = np.flatnonzero(thread == number)
        selected = selected[np.argsort(gaps.start[selected], kind="stable")]
        of, start, end, entry = innermost.cut(
            gaps.start[selected], gaps.end[selected], innermost.of_thread(trace, number)
        )
        row, cause = _shown_rows(trace)[entry], _thread_causes(trace, number)[entry]
        garbage = trace.named(Kind.PYTHON, names=(ranges.GARBAGE,))
        collecting = intervals.of_slices(trace, garbage[trace.thread[garbage] == number])
        moments = parts.of_thread(trace, number)
        layers = [(GARBAGE, collecting), *((code, moments[part]) for part, code in _PART_CAUSES)]
        intervals_by_thread.append(
            cause_intervals.reclassify(
                CauseIntervals(selected.astype(np.int32)[of], start, end, cause, row), layers, of=_THREAD_CAUSES
            )
        )
    return cause_intervals.joined(*intervals_by_thread) if intervals_by_thread else gaps


@cached_per_trace
def _step_mark_entries(trace: Trace) -> tuple[Ints, Ints]:
    tree = host.tree(trace)
    marks = tree.entry[trace.named(Kind.ANNOTATION, Kind.OP, prefix=labels.STEP_MARK)]
    is_other = np.ones(len(tree.row), np.bool_)
    is_other[marks] = False
    return marks, nearest(tree.nesting.parent, marks, is_other)


@cached_per_trace
def _shown_rows(trace: Trace) -> Column:
    rows = np.append(host.tree(trace).row, -1).astype(np.int32)
    marks, parent = _step_mark_entries(trace)
    rows[marks] = rows[parent]
    return rows


@cached_per_trace
def _entry_causes(trace: Trace) -> Column:
    tree = host.tree(trace)
    of_kind = np.full(len(Kind), CODE, np.int8)
    of_kind[[Kind.OP, Kind.RUNTIME]] = OPERATORS, CALLS
    cause = np.append(of_kind[trace.kind[tree.row]], np.int8(NOTHING))
    by_rows = (
        (device.launch_calls(trace), LAUNCHING),
        (trace.calls[trace.calls >= 0], LAUNCHING),
        (_blocked_launches(trace), FULL),
        (trace.chosen(runtime_calls.MEMORY.search, Kind.RUNTIME), MEMORY),
        (waits.blocking(trace).call, SYNC),
        (device.wait_calls(trace), SYNC),
    )
    for rows, code in by_rows:
        cause[tree.entry[rows]] = code
    return cause


@cached_per_trace
def _thread_causes(trace: Trace, thread: int) -> Column:
    cause: Column = _entry_causes(trace).copy()
    if thread not in step_marks.find(trace).thread:
        cause[:-1][idle_threads.waiting(trace)] = NOTHING
    marks, parent = _step_mark_entries(trace)
    cause[marks] = cause[parent]
    return cause
