"""What a program does once: loading, compiling, choosing kernels; a recording of it says little about later steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.trace.kinds import HOST, Kind
from perfhooks.trace.names import operators, ranges, runtime_calls
from perfhooks.trace.nesting import captures, device, intervals, missing_work, step_marks
from perfhooks.trace.nesting.grouping import groups
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags, Intervals

LOADING_NS: Final = 5_000_000
"""Minimum time of a runtime call that prepares the first run of a kernel, in ns. A launch takes some microseconds; of
recorded starts the first one took 6.5 ms (MI250), 420 to 1,338 ms and 3,056 ms."""
FIRST: Final = 0.1
"""First part of the launches of a recording. Memory that is freed in it belongs to the start: cuDNN frees and allocates
workspaces while its modules are loaded."""

COMPILING: Final = "compiling"
CAPTURING: Final = "capturing graphs"
LOADING: Final = "loading kernels"
CHOOSING: Final = "trying out convolutions"


@cached_per_trace
def spent(trace: Trace) -> dict[str, Intervals]:
    """Return the moments of a trace that belong to a start, by kind; they may overlap.

    ``compiling`` and ``capturing graphs`` are the ranges that TorchDynamo opens around its phases, and the time from
    the call that begins the capture of a graph to the call that ends it. ``trying out convolutions`` are convolutions
    that measure kernels with events: cuDNN's and MIOpen's benchmarking.

    ``loading kernels`` are

    * long calls of the runtime before the first run of a kernel while the device idles, whatever their name
      (`LOADING_NS`),
    * calls that load modules, and the time before them in which an operator did nothing else: it compiled the module,
    * records of the driver that it loads or compiles kernels.

    Args:
        trace: any trace.
    """
    moments_of = {
        COMPILING: _ranges(trace, ranges.COMPILING),
        CAPTURING: intervals.joined(_ranges(trace, ranges.CAPTURING), *captures.by_thread(trace).values()),
        LOADING: _loading(trace),
        CHOOSING: _choosing(trace),
    }
    return {name: moments for name, moments in moments_of.items() if len(moments)}


def is_first(trace: Trace, rows: Ints) -> Flags:
    """Whether each slice began before a tenth (`FIRST`) of the launches of a recording had been made."""
    launches = np.sort(trace.start[device.launch_calls(trace)])
    if not len(launches):
        return np.zeros(len(rows), np.bool_)
    begun: Flags = trace.start[rows] <= launches[int(FIRST * (len(launches) - 1))]
    return begun


def _loading(trace: Trace) -> Intervals:
    calls = _preparing(trace)
    modules = trace.chosen(runtime_calls.MODULES.search, Kind.RUNTIME)
    calls = intervals.distinct(calls, modules)
    start, end = _since(trace, calls, np.isin(calls, modules)), trace.end[calls]
    recorded = intervals.of_slices(trace, trace.chosen(runtime_calls.LOADING.search, Kind.OVERHEAD))
    return intervals.subtract(intervals.joined(intervals.union(start, end), recorded), device.busy(trace))


def _preparing(trace: Trace) -> Ints:
    """Return the long calls on an idle device whose thread launches the first run of a kernel next.

    A call that is as long before a later run of the same kernel prepares each run. So it is no start, and neither is a
    call that waits for the device or has work of its own.
    """
    calls = trace.rows(Kind.RUNTIME)
    unknown = np.append(missing_work.unknown(trace).wall, False)
    calls = calls[~unknown[step_marks.step_of(step_marks.find(trace), trace.start[calls])]]
    span = (trace.end - trace.start)[calls]
    has_work = np.isin(calls, trace.launches[trace.kind[trace.device_rows] != Kind.KERNEL])
    calls = calls[(span >= LOADING_NS) & ~has_work & ~np.isin(calls, device.wait_calls(trace))]
    span = (trace.end - trace.start)[calls]
    calls = calls[span - intervals.within(device.busy(trace), trace.start[calls], trace.end[calls]) >= LOADING_NS]
    launches, kernel, is_first = _launched_kernels(trace)
    if not len(launches):
        return launches
    place = np.searchsorted(launches, calls)  # slices are sorted by thread and time
    following = np.append(launches, -1)[place]
    known = (following >= 0) & (trace.thread[following] == trace.thread[calls])
    calls, place = calls[known], place[known]
    alike = groups(trace.name[calls], kernel[place])
    again = np.bincount(alike.of, weights=~is_first[place], minlength=len(alike.first))
    found: Ints = calls[is_first[place] & (again[alike.of] == 0)]
    return found


@cached_per_trace
def _launched_kernels(trace: Trace) -> tuple[Ints, Ints, Flags]:
    """Return the calls that launched kernels, ascending, the name of a kernel of each, and if that is its first run."""
    kernels = np.flatnonzero((trace.kind[trace.device_rows] == Kind.KERNEL) & (trace.launches >= 0))
    launches, names = trace.launches[kernels], trace.name[trace.device_rows[kernels]]
    order = np.argsort(trace.start[launches], kind="stable")
    is_first = np.zeros(len(kernels), np.bool_)
    is_first[order[np.unique(names[order], return_index=True)[1]]] = True
    order = np.lexsort((~is_first, launches))
    calls, first = np.unique(launches[order], return_index=True)
    return calls, names[order][first], is_first[order][first]


def _since(trace: Trace, calls: Ints, modules: Flags) -> Ints:
    """Since when each call is prepared: one that loads a module since the operator around it last did anything else.

    MIOpen compiles its kernels so, for 110 to 140 ms each (MI300X).
    """
    start: Ints = trace.start[calls]  # a copy
    ops = trace.rows(Kind.OP)
    inside = np.flatnonzero(modules)
    inside = inside[device.holders(trace, calls[inside], ops) >= 0] if len(ops) else inside[:0]
    rows = trace.rows(*HOST)
    for thread in intervals.distinct(trace.thread[calls[inside]]).tolist():
        mine, here = rows[trace.thread[rows] == thread], inside[trace.thread[calls[inside]] == thread]
        edges = np.sort(np.append(trace.start[mine], trace.end[mine]))
        start[here] = edges[np.searchsorted(edges, start[here], "left") - 1]
    return start


def _choosing(trace: Trace) -> Intervals:
    calls = trace.chosen(runtime_calls.TIMED.search, Kind.RUNTIME)
    ops = trace.searched(operators.SEARCHED_CONVOLUTIONS, Kind.OP)
    if not len(calls) or not len(ops):
        return intervals.nothing()
    holders = device.holders(trace, calls, ops)
    chosen = intervals.distinct(holders[holders >= 0])
    return intervals.of_slices(trace, chosen)


def _ranges(trace: Trace, pattern: str) -> Intervals:
    return intervals.of_slices(trace, trace.searched(pattern, Kind.OP, Kind.ANNOTATION))
