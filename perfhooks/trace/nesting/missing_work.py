"""Work of devices that a trace lacks, or has at wrong times: the one record of which device times are unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.model import Doubt
from perfhooks.trace.names import runtime_calls, work_kinds
from perfhooks.trace.nesting import device, intervals, step_marks
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags

STRAY: Final = 0.01
"""Of a step's launches: so many may lack their kernel before the step's device times are unknown."""
FEW: Final = 0.8
"""Smallest usual share of the kernels that neighbours have. torch_tb_profiler drops a last step that has fewer."""
_NEIGHBOURS: Final = 2
"""Steps, to compare one with the other."""
_KEPT: Final = 0.1
"""Smallest part of the numbers of operators that a whole recording has: a recorder may leave out some kinds of them."""
_NOT_COMPUTING: Final = ("communication", "copies", "other")


OVERFLOW: Final = "overflow"
"""By how much kernels end earlier than in the file, in nanoseconds."""


class Unknown(NamedTuple):
    """The marks of steps whose device times are unknown, one entry for each mark."""

    work: Flags
    """Work that the step launched is missing, or has wrong times: every device column is unknown."""
    wall: Flags
    """It is unknown when devices worked during the step."""
    communication: Flags
    """The time of communication is unknown as well."""


class FewKernels(NamedTuple):
    """Steps with fewer kernels than their neighbours, one entry for each mark."""

    kernels: Ints
    usual: Ints
    """The lower count of both neighbours."""
    is_lost: Flags
    """The step launched as many as its neighbours, so kernels are missing."""
    is_less: Flags
    """It launched as few."""


class ShortReplays(NamedTuple):
    """Replays of graphs that have fewer kernels than other replays of the same graph."""

    calls: Ints
    """The launch of each."""
    missing: int
    """The most kernels that one of them lacks."""


@cached_per_trace
def unknown(trace: Trace) -> Unknown:
    """Return of which steps the device times are unknown.

    Work is missing in a step if

    * more than `STRAY` of its launches have no kernel,
    * it has far fewer kernels than its neighbours though it launched as many,
    * it replays a graph with fewer kernels than another replay of that graph has,
    * a kernel of it begins long before its launch, and
    * in every step, if operators computed and no kernel of the trace computes.

    If host and devices have different clocks, nothing is known of the walls; of work without a launch not even the
    step.
    """
    marks = step_marks.find(trace)
    nothing = np.zeros(len(marks.number), np.bool_)
    if not trace.is_device_traced:
        return Unknown(nothing, nothing, nothing)
    lost = step_marks.per_step(marks, trace.start[lost_launches(trace)])
    work = lost > STRAY * step_marks.per_step(marks, trace.start[device.launch_calls(trace)])
    found, clocks = few_kernels(trace), device.clocks(trace)
    if found is not None:
        work |= found.is_lost
    work |= step_marks.per_step(marks, trace.start[short_replays(trace).calls]) > 0
    work |= step_marks.per_step(marks, device.launch_times(trace)[clocks.early]) > 0
    if not clocks.agree and (trace.launches < 0).any():
        work[:] = True
    communication = work.copy()
    if lacks_computation(trace):
        work[:] = True
        communication |= not len(trace.rows(Kind.KERNEL))
    return Unknown(work, work | (not clocks.agree), communication)


@cached_per_trace
def is_sampled(trace: Trace) -> bool:
    """Return whether a recorder kept only some of the operators and launches, by the numbers that the others had.

    torch numbers operators, and the runtime its calls. In whole recordings 97% or more of the numbers of operators are
    there.
    """
    rows = trace.rows(Kind.OP, Kind.ANNOTATION)
    numbers = trace.external[rows]
    numbers = intervals.distinct(numbers[numbers > 0])
    if len(numbers) < _NEIGHBOURS:
        return False
    calls = trace.correlation[trace.rows(Kind.RUNTIME)]
    every = intervals.distinct(numbers, calls[(calls >= numbers[0]) & (calls <= numbers[-1])])
    return len(every) < _KEPT * (int(numbers[-1] - numbers[0]) + 1)


@cached_per_trace
def lost_launches(trace: Trace) -> Ints:
    """Return the launches whose correlation no work of a device has."""
    calls = device.launch_calls(trace)
    calls = calls[trace.correlation[calls] > 0]
    return calls[~np.isin(trace.correlation[calls], trace.correlation[trace.device_rows])]


@cached_per_trace
def few_kernels(trace: Trace) -> FewKernels | None:
    """Compare the kernels of each step with those of its neighbours; None if there is nothing to compare.

    Kernels of graphs are left out: a step may replay another graph than its neighbours.
    """
    marks = step_marks.find(trace)
    is_alone = len(marks.number) < _NEIGHBOURS or len(intervals.distinct(marks.thread)) > 1
    if is_alone or not trace.is_device_traced:
        return None
    graphs = trace.chosen(runtime_calls.GRAPH.search, Kind.RUNTIME)
    counted = (trace.kind[trace.device_rows] == Kind.KERNEL) & ~np.isin(trace.launches, graphs)
    if (trace.launches >= 0).any():  # else each counts in the step in which it ran
        counted &= trace.launches >= 0
    kernels = step_marks.per_step(marks, device.launch_times(trace)[counted])
    usual = _neighbours(kernels)
    few = kernels < FEW * usual
    calls = device.launch_calls(trace)
    begun = calls[~np.isin(calls, graphs)] if len(calls) else trace.rows(Kind.OP)
    launches = step_marks.per_step(marks, trace.start[begun])
    others = _neighbours(launches)
    is_lost = few & (others > 0) & (launches >= FEW * others)
    return FewKernels(kernels, usual, is_lost, few & ~is_lost)


def _neighbours(counts: Ints) -> Ints:
    """Return the lower count of each one's neighbours."""
    padded = np.concatenate((counts[1:2], counts, counts[-2:-1]))
    return np.minimum(padded[:-2], padded[2:])


@cached_per_trace
def short_replays(trace: Trace) -> ShortReplays:
    """Return the replays of graphs that lack kernels of another replay of the same graph.

    Replays are of one graph if they have the same names of kernels, and the kernels of the shorter one occur in the
    longer one in this order; where the recorder numbers the nodes of graphs, if they have nodes in common.
    """
    graphs = trace.chosen(runtime_calls.GRAPH.search, Kind.RUNTIME)
    chosen = np.flatnonzero(np.isin(trace.launches, graphs) & (trace.kind[trace.device_rows] == Kind.KERNEL))
    rows, launch = trace.device_rows[chosen], trace.launches[chosen]
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
    for alike in replays.values():
        longest, _, at = max(alike, key=lambda replay: len(replay[0]))
        whole = np.frombuffer(longest, names.dtype)
        for text in {replay[0] for replay in alike} - {longest}:
            mine = [replay for replay in alike if replay[0] == text]
            count, begin = len(text) // size, mine[0][2]
            own = nodes[begin : begin + count]
            is_same = not (own > 0).any() or np.isin(own, nodes[at : at + len(whole)]).any()
            if count < len(whole) and is_same and _occurs(np.frombuffer(text, names.dtype), whole):
                short += [call for _, call, _ in mine]
                missing = max(missing, len(whole) - count)
    return ShortReplays(np.array(sorted(short), np.int64), missing)


def _occurs(part: Ints, whole: Ints) -> bool:
    """Return whether all entries of a sequence occur in another one in the same order."""
    following = iter(whole.tolist())
    return all(entry in following for entry in part.tolist())


@cached_per_trace
def lacks_computation(trace: Trace) -> bool:
    """Return whether the kernels that computed were not recorded, as if a recorder loses a stream.

    No kernel of the trace computes then, though operators did; or there are copies alone, and nothing of the host says
    whether kernels were launched beside them. If calls were recorded and none is a launch, operators ran on the host.
    """
    if not trace.is_device_traced or (device.classes(trace) == device.COMPUTE).any():
        return False
    if not len(trace.rows(Kind.KERNEL, Kind.RUNTIME)):
        return True
    if not len(trace.rows(Kind.KERNEL)) and not len(device.launch_calls(trace)):
        return False
    names = [trace.names[number] for number in trace.names_of(Kind.OP)]
    return any(work_kinds.of_operator(name) not in _NOT_COMPUTING for name in names)


def cut_overflowed(trace: Trace) -> None:
    """End each kernel whose record is too long where the next one of its stream begins, and add a doubt about it.

    A stream runs in the order of its launches. So work that another operator launched by another call cannot end while
    a kernel before it on the stream still runs: the length of that kernel's record is wrong. Work of the same operator
    can: some runtimes record a call of a library beside its kernels. Kernels that overlap without one ending inside the
    other (programmatic dependent launch) may be right, and so may kernels of one graph, which have one launch.

    Args:
        trace: Any trace, before anything is computed of it; ends change.
    """
    work = trace.device_rows
    place = np.flatnonzero(trace.end[work] > trace.start[work])
    rows = work[place]
    following = rows[1:]
    holds = (trace.thread[rows[:-1]] == trace.thread[following]) & (trace.start[rows[:-1]] < trace.start[following])
    holders = np.flatnonzero(holds & (trace.end[following] <= trace.end[rows[:-1]]))
    if not len(holders):
        return
    owner, launch = device.owners(trace)[place], trace.launches[place]
    is_wrong = np.zeros(len(holders), np.bool_)
    for inner in (holders + 1, _last_begun(trace, rows, holders)):
        is_other = (launch[holders] >= 0) & (launch[inner] >= 0) & (launch[inner] != launch[holders])
        is_same = (owner[inner] == owner[holders]) & (owner[inner] >= 0) & (trace.kind[owner[inner]] == Kind.OP)
        is_wrong |= is_other & ~is_same
    wrong = holders[is_wrong]
    if len(wrong):
        trace.given[OVERFLOW] = rows[wrong], trace.end[rows[wrong]] - trace.start[rows[wrong + 1]]
        trace.end[rows[wrong]] = trace.start[rows[wrong + 1]]
        trace.overflowed = rows[wrong]
        text = f"{len(wrong)} of {len(work)} last beyond the end of work that followed on their stream"
        trace.doubts.append(Doubt("overflowed-kernels", len(wrong), f"{text}: they end where the next one begins"))


def _last_begun(trace: Trace, rows: Ints, holders: Ints) -> Ints:
    """Return the last work of the stream that begins before each of some work ends."""
    last: Ints = holders.copy()
    for thread in intervals.distinct(trace.thread[rows[holders]]).tolist():
        begin, end = np.searchsorted(trace.thread[rows], [thread, thread + 1])
        mine = trace.thread[rows[holders]] == thread
        last[mine] = begin + np.searchsorted(trace.start[rows[begin:end]], trace.end[rows[holders[mine]]], "left") - 1
    return last
