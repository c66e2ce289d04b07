"""Device work that the trace lacks or records with wrong times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.core import words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.model import Doubt
from perfhooks.trace.names import runtime_calls, work_kinds
from perfhooks.trace.nesting import device, intervals, step_marks
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags

_NOT_COMPUTING: Final = ("communication", "copies", "other")


OVERFLOW: Final = "overflow"
"""Sparse column: the time by which the recorded end of a kernel is too late, in ns."""


class Unknown(NamedTuple):
    work: Flags
    """Whether device work of the step is missing or has wrong times."""
    wall: Flags
    """Whether the busy intervals of the device during the step are unknown."""
    communication: Flags


class FewKernels(NamedTuple):
    kernels: Ints
    usual: Ints
    is_lost: Flags
    """Whether the step has as many launches as its neighbours but fewer kernels, so the recorder lost kernels."""
    is_less: Flags
    """Whether the step has fewer launches and fewer kernels than its neighbours."""


class ShortReplays(NamedTuple):
    calls: Ints
    missing: int
    """Maximum number of kernels that a graph replay lacks."""


@cached_per_trace
def unknown(trace: Trace) -> Unknown:
    """Return the steps whose device times are unknown.

    The device times of a step are unknown in each of these cases:

    * More than 1% of the step's launches have no kernel.
    * For more than 1% of the step, the device seems idle although lost work, for example of an earlier step, may run.
    * The step has less than 80% of its neighbours' kernels, although it has as many launches.
    * The step replays a CUDA graph with fewer kernels than another replay of the same graph.
    * A kernel of the step begins long before its launch, or ends long after the host has waited for the device.
    * The trace has operators that compute, by their names, but no kernel that computes.
    """
    marks = step_marks.find(trace)
    nothing = np.zeros(len(marks.number), np.bool_)
    if not trace.is_device_traced or not len(nothing):
        return Unknown(nothing, nothing, nothing)
    lost_counts = step_marks.per_step(marks, trace.start[lost_launches(trace)])
    work = lost_counts > intervals.NOTABLE * step_marks.per_step(marks, trace.start[device.launch_calls(trace)])
    few, clocks = few_kernels(trace), device.clocks(trace)
    if few is not None:
        work |= few.is_lost
    work |= step_marks.per_step(marks, trace.start[short_replays(trace).calls]) > 0
    wall = intervals.within(lost_times(trace), marks.start, marks.end) > intervals.NOTABLE * (marks.end - marks.start)
    work |= step_marks.per_step(marks, device.launch_times(trace)[clocks.wrong]) > 0
    if not clocks.agree and (trace.launches < 0).any():
        work[:] = True
    if not (trace.launches >= 0).any():
        work |= wall
    communication = work.copy()
    if lacks_computation(trace):
        work[:] = True
        communication |= not len(trace.rows(Kind.KERNEL))
    return Unknown(work, work | wall | (not clocks.agree), communication)


@cached_per_trace
def lost_times(trace: Trace) -> intervals.Intervals:
    """Return idle intervals of the device in which work without a record may have run; none if the clocks disagree."""
    if not device.clocks(trace).agree:
        return intervals.nothing()
    return _possible_times(trace, *_lost_launch_times(trace))


def _lost_launch_times(trace: Trace) -> tuple[Ints, Ints]:
    calls = trace.start[intervals.distinct(lost_launches(trace), short_replays(trace).calls)]
    few, marks = few_kernels(trace), step_marks.find(trace)
    if few is None:
        return calls, calls
    in_step = few.is_lost & (step_marks.per_step(marks, calls) == 0)
    return np.append(calls, marks.start[in_step]), np.append(calls, marks.end[in_step])


def _possible_times(trace: Trace, first: Ints, last: Ints) -> intervals.Intervals:
    """Return the idle intervals of the device in which work launched from ``first`` to ``last`` may have run.

    Work runs after all work launched earlier and before all work launched later. If the work launched next started
    without delay, the device was not behind, so the lost work ended in the step of its launch.
    """
    marks, work, launched = step_marks.find(trace), trace.device_rows, _launch_times(trace)
    order = np.argsort(launched, kind="stable")
    call, wait = np.append(trace.name, -1)[trace.launches], trace.start[work] - launched
    shortest = np.full(len(trace.names) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest, call, wait)
    previous = np.searchsorted(launched[order], first, "left") - 1
    following = np.searchsorted(launched[order], last, "right")
    end = np.append(trace.end[work[order]], trace.start.min())[previous]
    start = np.append(trace.start[work[order]], trace.end.max())[following]
    delay = np.append((wait - shortest[call])[order], np.iinfo(np.int64).max)[following]
    is_behind = delay > intervals.NOTABLE * (marks.end - marks.start).mean()
    step_end = np.append(marks.end, trace.end.max())[step_marks.step_of(marks, first)]
    start = np.where(is_behind, start, np.minimum(start, step_end))
    return intervals.subtract(intervals.union(np.maximum(end, first), start), device.busy(trace))


def _launch_times(trace: Trace) -> Ints:
    owner = device.owners(trace)
    is_by_owner = (trace.launches < 0) & (owner >= 0)
    return np.where(is_by_owner, np.append(trace.start, 0)[owner], device.launch_times(trace))


@cached_per_trace
def is_sampled(trace: Trace) -> bool:
    """Return whether the recorder kept only a sample of the operators and launches.

    Torch numbers operators and launches consecutively. Complete recordings contain at least 97% of these numbers.
    """
    rows = trace.rows(Kind.OP, Kind.ANNOTATION)
    numbers = trace.external[rows]
    numbers = intervals.distinct(numbers[numbers > 0])
    if len(numbers) <= 1:
        return False
    calls = trace.correlation[trace.rows(Kind.RUNTIME)]
    recorded_numbers = intervals.distinct(numbers, calls[(calls >= numbers[0]) & (calls <= numbers[-1])])
    return len(recorded_numbers) < 0.1 * (int(numbers[-1] - numbers[0]) + 1)


@cached_per_trace
def lost_launches(trace: Trace) -> Ints:
    """Return the launches without device work of the same correlation id."""
    calls = device.launch_calls(trace)
    calls = calls[trace.correlation[calls] > 0]
    return calls[~np.isin(trace.correlation[calls], trace.correlation[trace.device_rows])]


@cached_per_trace
def few_kernels(trace: Trace) -> FewKernels | None:
    """Compare each step's number of kernels outside of CUDA graphs with neighbouring steps; None for a single step."""
    marks = step_marks.find(trace)
    is_alone = len(marks.number) <= 1 or len(intervals.distinct(marks.thread)) > 1
    if is_alone or not trace.is_device_traced:
        return None
    graphs = trace.chosen(runtime_calls.GRAPH.search, Kind.RUNTIME)
    is_counted = (trace.kind[trace.device_rows] == Kind.KERNEL) & ~np.isin(trace.launches, graphs)
    has_launch = (trace.launches >= 0) | (device.owners(trace) >= 0)
    if has_launch.any():
        is_counted &= has_launch
    kernels = step_marks.per_step(marks, _launch_times(trace)[is_counted])
    usual = _neighbours(kernels)
    calls = device.launch_calls(trace)
    launching = calls[~np.isin(calls, graphs)] if len(calls) else trace.rows(Kind.OP)
    launches = step_marks.per_step(marks, trace.start[launching])
    if not len(calls):  # consecutive steps may have lost kernels
        usual = np.maximum(usual, _of_equal_steps(kernels, launches))
    few = kernels < intervals.MOST * usual
    usual_launches = _neighbours(launches)
    is_lost = few & (usual_launches > 0) & (launches >= intervals.MOST * usual_launches)
    return FewKernels(kernels, usual, is_lost, few & ~is_lost)


def _neighbours(counts: Ints) -> Ints:
    padded = np.concatenate((counts[1:2], counts, counts[-2:-1]))
    return np.minimum(padded[:-2], padded[2:])


def _of_equal_steps(kernels: Ints, operators: Ints) -> Ints:
    numbers, of_step = np.unique(operators, return_inverse=True)
    medians = [int(np.median(kernels[operators == number])) for number in numbers.tolist()]
    return np.array(medians, np.int64)[of_step]


@cached_per_trace
def short_replays(trace: Trace) -> ShortReplays:
    """Return the graph replays that lack kernels of another replay of the same graph.

    Replays of one graph have the same kernel names in the same order, and a common ``graph node id``.
    """
    graphs = trace.chosen(runtime_calls.GRAPH.search, Kind.RUNTIME)
    graph_kernels = np.flatnonzero(np.isin(trace.launches, graphs) & (trace.kind[trace.device_rows] == Kind.KERNEL))
    rows, launch = trace.device_rows[graph_kernels], trace.launches[graph_kernels]
    order = np.lexsort((trace.start[rows], trace.thread[rows], launch))
    rows, launch = rows[order], launch[order]
    calls, first = np.unique(launch, return_index=True)
    names, nodes = trace.name[rows], trace.argument("graph_node")[rows]
    replays: dict[bytes, list[tuple[bytes, int, int]]] = {}
    edges = [*first.tolist(), len(rows)]
    for call, begin, end in zip(calls.tolist(), edges, edges[1:], strict=False):
        kernels = names[begin:end]
        replays.setdefault(intervals.distinct(kernels).tobytes(), []).append((kernels.tobytes(), call, begin))
    short: list[int] = []
    missing = 0
    size = names.dtype.itemsize
    for same_kernels in replays.values():
        longest, _, at = max(same_kernels, key=lambda replay: len(replay[0]))
        longest_names = np.frombuffer(longest, names.dtype)
        for text in {replay[0] for replay in same_kernels} - {longest}:
            equal = [replay for replay in same_kernels if replay[0] == text]
            count, begin = len(text) // size, equal[0][2]
            own = nodes[begin : begin + count]
            is_same = not (own > 0).any() or np.isin(own, nodes[at : at + len(longest_names)]).any()
            if (
                count < len(longest_names)
                and is_same
                and _is_subsequence(np.frombuffer(text, names.dtype), longest_names)
            ):
                short += [call for _, call, _ in equal]
                missing = max(missing, len(longest_names) - count)
    return ShortReplays(np.array(sorted(short), np.int64), missing)


def _is_subsequence(part: Ints, sequence: Ints) -> bool:
    following = iter(sequence.tolist())
    return all(entry in following for entry in part.tolist())


@cached_per_trace
def lacks_computation(trace: Trace) -> bool:
    """Return whether kernels that compute are missing, for example because the recorder lost a stream.

    Kernels are missing if operators that compute, by their names, have no recorded device work.
    """
    if not trace.is_device_traced or (device.classes(trace) == device.COMPUTE).any():
        return False
    if not len(trace.rows(Kind.KERNEL, Kind.RUNTIME)):
        return True
    if not len(trace.rows(Kind.KERNEL)) and not len(device.launch_calls(trace)):
        return False
    ops, owner = trace.rows(Kind.OP), device.owners(trace)
    others = ops[~np.isin(ops, device.around(trace, owner[owner >= 0], ops))]
    names = (trace.names[number] for number in intervals.distinct(trace.name[others]).tolist())
    return any(work_kinds.of_operator(name) not in _NOT_COMPUTING for name in names)


def cut_overflowed(trace: Trace) -> None:
    """Shorten kernels that end too late to the latest possible end, and add one of `Trace.doubts`.

    The latest possible end is the start of the next work on the same stream, or the end of the host's wait for the
    device. Call this function before tables are computed.
    """
    recorded = trace.end[trace.device_rows]
    for latest_ends in (_overlapping, _later_than_waits):
        rows, end = latest_ends(trace)
        trace.end[rows] = end
    excess = recorded - trace.end[trace.device_rows]
    if excess.any():
        trace.overflowed = trace.device_rows[excess > 0]
        trace.sparse_columns[OVERFLOW] = trace.overflowed, excess[excess > 0]
        shortened = f"perfhooks shortened {len(trace.overflowed)} of {words.count(len(recorded), 'device record')}"
        text = f"{shortened}, which ended after the next work on the stream had begun, or after the host's wait"
        trace.doubts.append(Doubt("overflowed-kernels", len(trace.overflowed), text))


def _overlapping(trace: Trace) -> tuple[Ints, Ints]:
    """Return device work that ends too late, and the start of the next work on the same stream.

    Work ends too late if later work of the same stream begins and ends within it, because a stream runs its work in
    order. Work of one operator or graph may overlap.
    """
    work = trace.device_rows
    index = np.flatnonzero(trace.end[work] > trace.start[work])
    rows = work[index]
    following = rows[1:]
    holds = (trace.thread[rows[:-1]] == trace.thread[following]) & (trace.start[rows[:-1]] < trace.start[following])
    holders = np.flatnonzero(holds & (trace.end[following] <= trace.end[rows[:-1]]))
    if not len(holders):
        return holders, holders
    owner, launch = device.owners(trace)[index], trace.launches[index]
    is_wrong = np.zeros(len(holders), np.bool_)
    for inner in (holders + 1, _last_begun(trace, rows, holders)):
        is_other = (launch[holders] >= 0) & (launch[inner] >= 0) & (launch[inner] != launch[holders])
        is_same = (owner[inner] == owner[holders]) & (owner[inner] >= 0) & (trace.kind[owner[inner]] == Kind.OP)
        is_wrong |= is_other & ~is_same
    wrong = holders[is_wrong]
    return rows[wrong], trace.start[rows[wrong + 1]]


def _later_than_waits(trace: Trace) -> tuple[Ints, Ints]:
    work, end = trace.device_rows, device.waits_end(trace)
    late = np.flatnonzero(device.overdue(trace))
    late = late[: len(late) * (len(late) <= max(intervals.NOTABLE * len(work), 1))]
    late = late[trace.start[work[late]] < end[late]]
    return work[late], end[late]


def _last_begun(trace: Trace, rows: Ints, holders: Ints) -> Ints:
    last: Ints = holders.copy()
    for thread in intervals.distinct(trace.thread[rows[holders]]).tolist():
        begin, end = np.searchsorted(trace.thread[rows], [thread, thread + 1])
        on_thread = trace.thread[rows[holders]] == thread
        last[on_thread] = (
            begin + np.searchsorted(trace.start[rows[begin:end]], trace.end[rows[holders[on_thread]]], "left") - 1
        )
    return last
