"""What a device did: which work is computation, communication or a copy, and who launched it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from perfhooks.core.labels import GRAPH_REGIONS, STEP_MARK
from perfhooks.trace.kinds import HOST, Kind
from perfhooks.trace.names import communication, runtime_calls, torch_rules
from perfhooks.trace.nesting import captures, host, intervals
from perfhooks.trace.nesting.slices import inherited, nearest, nest
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags, Intervals

CLASSES: Final = ("compute", "communication", "copy", "set")
"""What work of a device can be."""
COMPUTE, COMMUNICATION, COPY, SET = range(len(CLASSES))

_LIMIT: Final = 2**31  # what counts devices fits; a process's number may be anything
_DRIFT: Final = 0.01
"""Of a step: the lead of work over its launch up to which the clocks of host and device agree."""
_APART_NS: Final = 60 * 10**9
"""Pause between host and devices, in ns, above which they have different clocks: no work starts so late."""
_LONGEST: Final = 200
"""Letters of what somebody called a part of a graph."""
_FEW: Final = 0.1
"""Of all slices. Below this share, `holders` nests the slices it is asked about; above it, it asks the tree of all
slices, which exists already and costs less than nesting that many again."""


@cached_per_trace
def communicates(trace: Trace) -> Flags:
    """For each of `Trace.device_rows`, whether it is a kernel that communicates: by its arguments, else by its name."""
    rows = trace.device_rows
    named = communication.named(trace)[trace.name[rows]]
    collective: Flags = trace.argument("collective")[rows] >= 0
    is_communication: Flags = (trace.kind[rows] == Kind.KERNEL) & (named | collective)
    return is_communication


@cached_per_trace
def busy(trace: Trace) -> Intervals:
    """When any device worked: the union of the work of all streams of all devices.

    ::

        stream 7   |--kernel--|      |--copy--|
        stream 9        |--kernel--|
        busy       |---------------| |--------|
    """
    work = trace.device_rows
    return intervals.of_slices(trace, work)


@cached_per_trace
def holders_on_stream(trace: Trace) -> Ints:
    """For each of `Trace.device_rows`, the place of the innermost work of the same stream that holds it, or -1."""
    work = trace.device_rows
    return nest(trace.thread[work], trace.start[work], trace.end[work]).parent


@cached_per_trace
def own_times(trace: Trace) -> Ints:
    """For each of `Trace.device_rows`, its nanoseconds without the work of the same stream that lies in it.

    Runtimes that report a call of a library and the kernels that it is made of (torch_dipu's do) would count every
    moment twice. Work that only overlaps ran side by side, and counts each::

        stream 7   |------ conv -------|  |--- add ---|      conv 21, in all 33
                     |-- im2col --|                          im2col 14, so conv 7 by itself
        stream 9        |---- copy ----|                     16, side by side
    """
    work, holder = trace.device_rows, holders_on_stream(trace)
    span: Ints = (trace.end - trace.start)[work]
    inside = np.flatnonzero(holder >= 0)
    own: Ints = span.copy()
    np.subtract.at(own, holder[inside], span[inside])
    return own


def classes(trace: Trace) -> Column:
    """For each of `Trace.device_rows`, its place in `CLASSES`."""
    kind = trace.kind[trace.device_rows]
    return np.select(
        [kind == Kind.COPY, kind == Kind.SET, communicates(trace)],
        [COPY, SET, COMMUNICATION],
        COMPUTE,
    )


def devices(trace: Trace, rows: Ints) -> Ints:
    """The number of the device on which each slice lies: what it says itself, else its process; -1 for a name."""
    pids = [pid if isinstance(pid, int) and 0 <= pid < _LIMIT else -1 for _, pid, _, _ in trace.threads]
    said = trace.argument("device")[rows]
    return np.where(said >= 0, said, np.array([*pids, -1], np.int64)[trace.thread[rows]])


@cached_per_trace
def owners(trace: Trace) -> Ints:
    """For each of `Trace.device_rows`, the operator or label that launched it, or -1.

    It is the one whose external id the work bears, else its launch if that is an operator, else the innermost in which
    its launch lies::

        host    |------ aten::linear ------|
                  |---- aten::addmm ----|         the owner
                       |- launch -|
        device                  |---- kernel ----|
    """
    owner = torch_rules.named_operator(trace, trace.device_rows)
    is_operator = (owner < 0) & (trace.launches >= 0) & (trace.kind[trace.launches] == Kind.OP)
    owner[is_operator] = trace.launches[is_operator]
    lost = (owner < 0) & (trace.launches >= 0)
    if lost.any():
        owner[lost] = holders(trace, trace.launches[lost], trace.rows(Kind.OP, Kind.ANNOTATION))
    return owner


class Regions(NamedTuple):
    """What those who recorded CUDA graphs called parts of them."""

    names: list[str]
    place: Ints
    """For each of `Trace.device_rows` the place of its name; nearly always -1."""
    backward: Flags
    """And whether it has one and is work of the backward pass."""


@cached_per_trace
def regions(trace: Trace) -> Regions:
    """What parts of CUDA graphs are called, as by ``torch.cuda.graph_annotations.mark_kernels``.

    A graph's kernels share the one call that replays it, so that nothing else tells them apart. torch's next recorder
    writes the names beside the work; for Kineto's traces perfhooks keeps those of each node in the metadata.
    """
    rows = trace.device_rows
    node = trace.argument("graph_node")[rows]
    called = np.where(node > 0, trace.argument("region")[rows], -1)
    texts = intervals.distinct(called[called >= 0])
    entry = np.where(called >= 0, np.searchsorted(texts, called), -1)
    backward = (called >= 0) & (trace.argument("autograd_phase")[rows] >= 0)
    kept = _kept_regions(trace)
    known = {number: at for at, (_, _, nodes) in enumerate(kept) for number in nodes if number > 0}
    if known:
        numbers, place = np.unique(node, return_inverse=True)
        at = np.array([known.get(number, -1) for number in numbers.tolist()], np.int64)[place.ravel()]
        entry = np.where(at >= 0, at + len(texts), entry)
        backward = np.where(at >= 0, np.array([bool(phase) for _, phase, _ in kept])[at], backward)
    names: dict[str, int] = {}
    every = [*(str(trace.text(text)) for text in texts.tolist()), *(name for name, _, _ in kept)]
    numbered = [names.setdefault(name[:_LONGEST], len(names)) for name in every]
    return Regions(list(names), np.array([*numbered, -1], np.int64)[entry], backward)


def _kept_regions(trace: Trace) -> list[tuple[str, str, list[int]]]:
    try:
        return msgspec.convert(trace.metadata.get(GRAPH_REGIONS, []), list[tuple[str, str, list[int]]])
    except msgspec.ValidationError:
        return []


def holders(trace: Trace, rows: Ints, candidates: Ints) -> Ints:
    """For each of some slices of the host, the innermost of the candidates that holds it on its thread, or -1.

    Args:
        trace: any trace.
        rows: slices, in any order.
        candidates: slices of the host, each once, ascending; one that is among ``rows`` as well does not hold itself.
    """
    if len(rows) + len(candidates) > _FEW * len(trace) and (in_tree := _in_tree(trace, rows, candidates)) is not None:
        return in_tree
    holding = around(trace, rows, candidates)
    place = np.zeros(len(trace), np.int64)  # of each slice among those that are looked at
    place[rows] = 1
    place[holding] = 1
    every = np.flatnonzero(place)
    place[every] = np.arange(len(every))
    parent = nest(trace.thread[every], trace.start[every], trace.end[every]).parent
    own = np.full(len(every), -1, np.int64)
    own[place[holding]] = holding
    around_each: Ints = np.append(inherited(parent, own), -1)[parent]
    return around_each[place[rows]]


def _in_tree(trace: Trace, rows: Ints, candidates: Ints) -> Ints | None:
    """What `holders` answers, by the tree of all slices; None where a slice crosses a candidate: the tree cuts it."""
    tree = host.tree(trace)
    entry, mine = tree.entry[rows], tree.entry[candidates]
    if (entry < 0).any() or (tree.nesting.end[mine] < trace.end[candidates]).any():
        return None
    wanted = np.zeros(len(tree.row), np.bool_)
    wanted[mine] = True
    return np.append(tree.row, -1)[nearest(tree.nesting.parent, tree.nesting.parent[entry], wanted)]


def around(trace: Trace, rows: Ints, candidates: Ints) -> Ints:
    """The candidates during which any of the rows begins, on the same thread."""
    if not len(rows):
        return rows
    ordered = np.sort(rows)  # as all slices are: by thread and start
    after = np.searchsorted(ordered, candidates, "right")
    first = ordered[np.minimum(after, len(ordered) - 1)]
    holds = (after < len(ordered)) & (trace.thread[first] == trace.thread[candidates])
    holding: Ints = candidates[holds & (trace.start[first] <= trace.end[candidates])]
    return holding


@cached_per_trace
def launch_calls(trace: Trace) -> Ints:
    """The calls that launch kernels or graphs; what is captured into a graph is not launched."""
    rows = trace.chosen(runtime_calls.LAUNCH.search, Kind.RUNTIME)
    return rows[~captures.captured(trace, rows)]


def has_launches(trace: Trace) -> bool:
    """Whether the backend has calls that are launches.

    It has none where runtime calls brought kernels about and no call is named a launch: Meta's MTIA submits jobs, each
    of which may be several kernels.
    """
    if len(trace.chosen(runtime_calls.LAUNCH.search, Kind.RUNTIME)):
        return True
    return not ((trace.kind[trace.device_rows] == Kind.KERNEL) & (trace.launches >= 0)).any()


@cached_per_trace
def recorder_overhead(trace: Trace) -> Ints:
    """Return the overhead records of the recorder: not those of a full queue, nor of kernels that the driver loads."""

    def is_recorder(name: str) -> bool:
        return name != runtime_calls.FULL_QUEUE and runtime_calls.LOADING.search(name) is None

    return trace.chosen(is_recorder, Kind.OVERHEAD)


@cached_per_trace
def full_queue(trace: Trace) -> Intervals:
    """Return when launches waited for room in the queue of the device, by the records of the driver."""
    return intervals.of_slices(trace, trace.named(Kind.OVERHEAD, names=(runtime_calls.FULL_QUEUE,)))


@cached_per_trace
def wait_calls(trace: Trace) -> Ints:
    """The calls in which the host waits for the device."""
    return trace.chosen(runtime_calls.WAIT.search, Kind.RUNTIME)


@cached_per_trace
def whole_waits(trace: Trace) -> Ints:
    """Those of them that no other one holds: runtimes report a call and the one that it is made of."""
    rows = wait_calls(trace)
    return rows[holders(trace, rows, rows) < 0] if len(rows) else rows


@cached_per_trace
def before_window(trace: Trace) -> Flags:
    """For each of `Trace.device_rows`, whether it was launched before recording began.

    Its launch is not in the trace, and its correlation id is below the smallest that any recorded call has: the runtime
    counts its calls. Where no call was recorded, as in a trace of the device alone, this cannot be told of any.
    """
    calls = trace.correlation[trace.rows(Kind.RUNTIME)]
    calls = calls[calls > 0]
    first = int(calls.min()) if len(calls) else 0
    number = trace.correlation[trace.device_rows]
    return (trace.launches < 0) & (number > 0) & (number < first)


@cached_per_trace
def launch_times(trace: Trace) -> Ints:
    """When each of `Trace.device_rows` was launched, in nanoseconds; its own start where nobody is known to have.

    Work that was launched before recording began is given a moment before the first slice, which lies in no step::

        recording                     |=== step 1 ===|=== step 2 ===
        host        launch A          |  launch B
        device                          |--A--|  |--B--|
                  A counts to no step    B counts to step 1
    """
    launches = trace.launches
    own = trace.start[trace.device_rows]
    if not len(own):
        return own
    launched: Ints = np.where(launches >= 0, trace.start[launches], own)
    launched[before_window(trace)] = trace.start.min() - 1
    return launched


class DeviceClock(NamedTuple):
    """How far the clock of the devices agrees with that of the host."""

    agree: bool
    """Whether moments of both can be compared."""
    early: Ints
    """Work that begins long before its launch though the clocks agree: its time is wrong; places in `device_rows`."""


@cached_per_trace
def clocks(trace: Trace) -> DeviceClock:
    """Compare the clock of the devices with that of the host, by launches and by the extents of both.

    A lead up to `_DRIFT` of a step is drift: it shifts a border of the step by as much.
    """
    work, host_rows = trace.device_rows, trace.rows(*HOST)
    nothing = np.empty(0, np.int64)
    if not len(work) or not len(host_rows):
        return DeviceClock(agree=True, early=nothing)
    first, last = int(trace.start[host_rows].min()), int(trace.end[host_rows].max())
    apart = trace.start[work].min() > last + _APART_NS or trace.end[work].max() < first - _APART_NS
    marks = max(len(trace.named(Kind.ANNOTATION, prefix=STEP_MARK)), 1)
    launched = np.flatnonzero(trace.launches >= 0)
    lead = trace.start[trace.launches[launched]] - trace.start[work[launched]]
    early = launched[lead > _DRIFT * (last - first) / marks]
    agree = not apart and 2 * len(early) <= len(launched)
    return DeviceClock(agree=agree, early=early if agree else nothing)
