from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from perfhooks.core.labels import GRAPH_REGIONS, STEP_MARK
from perfhooks.trace.bounds import APART_NS, MAX_ID, MAX_NUMBER
from perfhooks.trace.kinds import HOST, Kind
from perfhooks.trace.names import communication, runtime_calls, torch_rules
from perfhooks.trace.nesting import captures, host, intervals
from perfhooks.trace.nesting.slices import inherited, nearest, nest
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags, Intervals

CLASSES: Final = ("compute", "communication", "copy", "set")
COMPUTE, COMMUNICATION, COPY, SET = range(len(CLASSES))

LATENCY_NS: Final = 10_000
"""Maximum start latency on an idle device, in ns. 99% of 36,000 kernels on V100, A100 and H100 started within 5 us."""
BLOCKED_NS: Final = 50_000
"""Minimum time of a launch that waits, in ns. Launches take 5 to 10 us; for HolisticTraceAnalysis, 50 us is an outlier.
"""


@cached_per_trace
def communicates(trace: Trace) -> Flags:
    rows = trace.device_rows
    named = communication.named(trace)[trace.name[rows]]
    collective: Flags = trace.argument("collective")[rows] >= 0
    is_communication: Flags = (trace.kind[rows] == Kind.KERNEL) & (named | collective)
    return is_communication


@cached_per_trace
def busy(trace: Trace) -> Intervals:
    return intervals.of_slices(trace, trace.device_rows)


def busy_on(trace: Trace, number: int | None) -> Intervals:
    return busy(trace) if number is None else intervals.of_slices(trace, trace.device_rows[selected(trace, number)])


def selected(trace: Trace, number: int | None) -> Ints:
    if number is None:
        return np.arange(len(trace.device_rows))
    return np.flatnonzero(devices(trace, trace.device_rows) == number)


@cached_per_trace
def holders_on_stream(trace: Trace) -> Ints:
    """Return the innermost device work that contains each of `Trace.device_rows` on its stream, or -1."""
    work = trace.device_rows
    return nest(trace.thread[work], trace.start[work], trace.end[work]).parent


@cached_per_trace
def own_times(trace: Trace) -> Ints:
    """Return the duration of each of `Trace.device_rows` minus work nested on the same stream, in ns.

    Some runtimes (torch_dipu) record a library call and its kernels as device work.
    """
    work, holder = trace.device_rows, holders_on_stream(trace)
    span: Ints = (trace.end - trace.start)[work]
    inside = np.flatnonzero(holder >= 0)
    own: Ints = span.copy()
    np.subtract.at(own, holder[inside], span[inside])
    return own


def classes(trace: Trace) -> Column:
    kind = trace.kind[trace.device_rows]
    return np.select(
        [kind == Kind.COPY, kind == Kind.SET, communicates(trace)],
        [COPY, SET, COMMUNICATION],
        COMPUTE,
    )


def devices(trace: Trace, rows: Ints) -> Ints:
    pids = [pid if isinstance(pid, int) and 0 <= pid < MAX_ID else -1 for _, pid, _, _ in trace.threads]
    argument = trace.argument("device")[rows]
    return np.where(argument >= 0, argument, np.array([*pids, -1], np.int64)[trace.thread[rows]])


def numbers(trace: Trace) -> list[int]:
    """Return the devices with recorded work; -1 is an unknown device."""
    device_numbers: list[int] = intervals.distinct(devices(trace, trace.device_rows)).tolist()
    return device_numbers


@cached_per_trace
def owners(trace: Trace) -> Ints:
    """Return the operator or label that launched each of `Trace.device_rows`, or -1.

    The operator or label has the external id of the work; without such an id, it is the innermost around the launch.
    """
    owner = torch_rules.named_operator(trace, trace.device_rows)
    is_operator = (owner < 0) & (trace.launches >= 0) & (trace.kind[trace.launches] == Kind.OP)
    owner[is_operator] = trace.launches[is_operator]
    without_owner = (owner < 0) & (trace.launches >= 0)
    if without_owner.any():
        owner[without_owner] = holders(trace, trace.launches[without_owner], trace.rows(Kind.OP, Kind.ANNOTATION))
    return owner


class Regions(NamedTuple):
    names: list[str]
    place: Ints
    backward: Flags


@cached_per_trace
def regions(trace: Trace) -> Regions:
    """Return the named regions of CUDA graphs, for example from ``torch.cuda.graph_annotations.mark_kernels``.

    All kernels of a graph share one replay call, so only the names of regions distinguish these kernels.
    """
    rows = trace.device_rows
    node = trace.argument("graph_node")[rows]
    text_index = np.where(node > 0, trace.argument("region")[rows], -1)
    texts = intervals.distinct(text_index[text_index >= 0])
    entry = np.where(text_index >= 0, np.searchsorted(texts, text_index), -1)
    backward = (text_index >= 0) & (trace.argument("autograd_phase")[rows] >= 0)
    stored = _stored_regions(trace)
    stored_index = {number: at for at, (_, _, nodes) in enumerate(stored) for number in nodes if number > 0}
    if stored_index:
        numbers, index = np.unique(node, return_inverse=True)
        at = np.array([stored_index.get(number, -1) for number in numbers.tolist()], np.int64)[index.ravel()]
        entry = np.where(at >= 0, at + len(texts), entry)
        backward = np.where(at >= 0, np.array([bool(phase) for _, phase, _ in stored])[at], backward)
    names: dict[str, int] = {}
    texts_and_names = [*(str(trace.text(text)) for text in texts.tolist()), *(name for name, _, _ in stored)]
    numbered = [names.setdefault(name[:200], len(names)) for name in texts_and_names]
    return Regions(list(names), np.array([*numbered, -1], np.int64)[entry], backward)


def _stored_regions(trace: Trace) -> list[tuple[str, str, list[int]]]:
    try:
        return msgspec.convert(trace.metadata.get(GRAPH_REGIONS, []), list[tuple[str, str, list[int]]])
    except msgspec.ValidationError:
        return []


def holders(trace: Trace, rows: Ints, candidates: Ints) -> Ints:
    """Return the innermost of ``candidates`` around each host slice of ``rows``, without the slice itself, or -1.

    ``candidates`` must be sorted.
    """
    if (in_tree := _in_tree(trace, rows, candidates)) is not None:
        return in_tree
    holding = around(trace, rows, candidates)
    index = np.zeros(len(trace), np.int64)
    index[rows] = 1
    index[holding] = 1
    nested = np.flatnonzero(index)
    index[nested] = np.arange(len(nested))
    parent = nest(trace.thread[nested], trace.start[nested], trace.end[nested]).parent
    candidate = np.full(len(nested), -1, np.int64)
    candidate[index[holding]] = holding
    parent_candidate: Ints = np.append(inherited(parent, candidate), -1)[parent]
    return parent_candidate[index[rows]]


def _in_tree(trace: Trace, rows: Ints, candidates: Ints) -> Ints | None:
    tree = host.tree(trace)
    entry, candidate_entry = tree.entry[rows], tree.entry[candidates]
    if (entry < 0).any() or (tree.nesting.end[candidate_entry] < trace.end[candidates]).any():
        return None
    is_candidate = np.zeros(len(tree.row), np.bool_)
    is_candidate[candidate_entry] = True
    return np.append(tree.row, -1)[nearest(tree.nesting.parent, tree.nesting.parent[entry], is_candidate)]


def around(trace: Trace, rows: Ints, candidates: Ints) -> Ints:
    """Return the ``candidates`` during which a slice of ``rows`` begins on the same thread."""
    if not len(rows):
        return rows
    ordered = np.sort(rows)
    next_index = np.searchsorted(ordered, candidates, "right")
    first = ordered[np.minimum(next_index, len(ordered) - 1)]
    holds = (next_index < len(ordered)) & (trace.thread[first] == trace.thread[candidates])
    holding: Ints = candidates[holds & (trace.start[first] <= trace.end[candidates])]
    return holding


@cached_per_trace
def launch_calls(trace: Trace) -> Ints:
    """Return the calls that launch kernels or graphs, unless a CUDA graph captured them."""
    rows = trace.chosen(runtime_calls.LAUNCH.search, Kind.RUNTIME)
    return rows[~captures.captured(trace, rows)]


def has_launches(trace: Trace) -> bool:
    if len(trace.chosen(runtime_calls.LAUNCH.search, Kind.RUNTIME)):
        return True
    return not ((trace.kind[trace.device_rows] == Kind.KERNEL) & (trace.launches >= 0)).any()


@cached_per_trace
def recorder_overhead(trace: Trace) -> Ints:
    """Return Kineto's records of profiler overhead.

    Records of a full launch queue and of loaded kernels are omitted: both also occur without a profiler.
    """

    def is_recorder(name: str) -> bool:
        return name != runtime_calls.FULL_QUEUE and runtime_calls.LOADING.search(name) is None

    return trace.chosen(is_recorder, Kind.OVERHEAD)


@cached_per_trace
def full_queue(trace: Trace) -> Intervals:
    return intervals.of_slices(trace, trace.named(Kind.OVERHEAD, names=(runtime_calls.FULL_QUEUE,)))


@cached_per_trace
def wait_calls(trace: Trace) -> Ints:
    return trace.chosen(runtime_calls.WAIT.search, Kind.RUNTIME)


@cached_per_trace
def outermost_waits(trace: Trace) -> Ints:
    """Return the outermost calls that wait for a device, because some runtimes record two nested calls for one wait."""
    rows = wait_calls(trace)
    return rows[holders(trace, rows, rows) < 0] if len(rows) else rows


@cached_per_trace
def before_window(trace: Trace) -> Flags:
    """Return which of `Trace.device_rows` were launched before the recording began.

    Correlation ids increase with time, so earlier launches have ids below the smallest recorded one.
    """
    calls = trace.correlation[trace.rows(Kind.RUNTIME)]
    calls = calls[calls > 0]
    first = int(calls.min()) if len(calls) else 0
    number = trace.correlation[trace.device_rows]
    return (trace.launches < 0) & (number > 0) & (number < first)


@cached_per_trace
def launch_times(trace: Trace) -> Ints:
    """Return the launch time of each of `Trace.device_rows`, in ns; the start of the work if the launch is unknown.

    A launch before the recording gets a time 1 ns before the first slice.
    """
    launches = trace.launches
    own = trace.start[trace.device_rows]
    if not len(own):
        return own
    launched: Ints = np.where(launches >= 0, trace.start[launches], own)
    launched[before_window(trace)] = trace.start.min() - 1
    return launched


class DeviceClock(NamedTuple):
    agree: bool
    """Whether host and device times can be compared."""
    wrong: Ints
    """Indices of device work at impossible times; empty if the clocks disagree."""


@cached_per_trace
def clocks(trace: Trace) -> DeviceClock:
    """Compare device and host clocks by the times of launches and waits, and by the first and last record of both."""
    work, host_rows = trace.device_rows, trace.rows(*HOST)
    nothing = np.empty(0, np.int64)
    if not len(work) or not len(host_rows):
        return DeviceClock(agree=True, wrong=nothing)
    first, last = int(trace.start[host_rows].min()), int(trace.end[host_rows].max())
    apart = trace.start[work].min() > last + APART_NS or trace.end[work].max() < first - APART_NS
    launched = np.flatnonzero(trace.launches >= 0)
    lead = trace.start[trace.launches[launched]] - trace.start[work[launched]]
    wrong = launched[(lead > _tolerance_ns(trace)) | overdue(trace)[launched]]
    agree = not apart and len(wrong) <= max(intervals.NOTABLE * len(launched), 1)
    return DeviceClock(agree=agree, wrong=wrong if agree else nothing)


def _tolerance_ns(trace: Trace) -> float:
    host_rows, marks = trace.rows(*HOST), trace.named(Kind.ANNOTATION, prefix=STEP_MARK)
    wall = int(trace.end[host_rows].max()) - int(trace.start[host_rows].min()) if len(host_rows) else 0
    return 0.01 * wall / max(len(marks), 1)


def overdue(trace: Trace) -> Flags:
    """Return which of `Trace.device_rows` end at least 5% of a step after the end of the host's wait for the device."""
    is_overdue: Flags = trace.end[trace.device_rows] - waits_end(trace) > 5 * _tolerance_ns(trace)
    return is_overdue


def waits_end(trace: Trace) -> Ints:
    """Return the end of the host's first wait for the device after each launch of `Trace.device_rows`, in ns.

    The value is `MAX_NUMBER` without such a wait, and in traces of several devices, because the device of a wait is
    unknown.
    """
    waits = trace.chosen(runtime_calls.DEVICE_WAIT.search, Kind.RUNTIME)
    waits = waits[np.argsort(trace.start[waits])] if len(numbers(trace)) == 1 else waits[:0]
    following = np.searchsorted(trace.start[waits], trace.end[trace.launches], "left")
    end: Ints = np.append(trace.end[waits], MAX_NUMBER)[following]
    end[trace.launches < 0] = MAX_NUMBER
    return end
