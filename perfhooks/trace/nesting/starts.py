"""One-time work of a program, such as compilation, which later steps do not repeat."""

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
"""Minimum time in ns of host work that prepares (loads, compiles) a kernel. Recorded preparations took 6.5 to
3,056 ms; pauses between launches are shorter than 1 ms.
"""

COMPILING: Final = "compiling"
CAPTURING: Final = "capturing graphs"
LOADING: Final = "loading kernels"
CHOOSING: Final = "trying convolution algorithms"


@cached_per_trace
def by_kind(trace: Trace) -> dict[str, Intervals]:
    """Return the intervals of each kind of one-time work; intervals of two kinds may overlap.

    * ``compiling``: ranges of TorchDynamo
    * ``capturing graphs``: captures of CUDA graphs
    * ``trying convolution algorithms``: convolutions in which cuDNN or MIOpen times kernels
    * ``loading kernels``: calls and driver records that load modules, and long calls before a kernel's first run
    """
    moments_of = {
        COMPILING: _range_intervals(trace, ranges.COMPILING),
        CAPTURING: intervals.joined(_range_intervals(trace, ranges.CAPTURING), *captures.by_thread(trace).values()),
        LOADING: _loading_intervals(trace),
        CHOOSING: _choosing_intervals(trace),
    }
    return {name: moments for name, moments in moments_of.items() if len(moments)}


def is_first(trace: Trace, rows: Ints) -> Flags:
    """Return which slices began during the first 10% of the launches, while libraries such as cuDNN still load."""
    launches = np.sort(trace.start[device.launch_calls(trace)])
    if not len(launches):
        return np.zeros(len(rows), np.bool_)
    is_early: Flags = trace.start[rows] <= launches[(len(launches) - 1) // 10]
    return is_early


def _loading_intervals(trace: Trace) -> Intervals:
    calls = _preparing_calls(trace)
    modules = trace.chosen(runtime_calls.MODULES.search, Kind.RUNTIME)
    calls = intervals.distinct(calls, modules)
    start, end = _preparation_starts(trace, calls, np.isin(calls, modules)), trace.end[calls]
    recorded = intervals.of_slices(trace, trace.chosen(runtime_calls.LOADING.search, Kind.OVERHEAD))
    return intervals.subtract(intervals.joined(intervals.union(start, end), recorded), device.busy(trace))


def _preparing_calls(trace: Trace) -> Ints:
    """Return the long runtime calls before the first run of a kernel, while the device was idle."""
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
    index = np.searchsorted(launches, calls)
    following = np.append(launches, -1)[index]
    has_launch = (following >= 0) & (trace.thread[following] == trace.thread[calls])
    calls, index = calls[has_launch], index[has_launch]
    by_name_and_kernel = groups(trace.name[calls], kernel[index])
    repeats = np.bincount(by_name_and_kernel.of, weights=~is_first[index], minlength=len(by_name_and_kernel.first))
    first_calls: Ints = calls[is_first[index] & (repeats[by_name_and_kernel.of] == 0)]
    return first_calls


@cached_per_trace
def _launched_kernels(trace: Trace) -> tuple[Ints, Ints, Flags]:
    kernels = np.flatnonzero((trace.kind[trace.device_rows] == Kind.KERNEL) & (trace.launches >= 0))
    launches, names = trace.launches[kernels], trace.name[trace.device_rows[kernels]]
    order = np.argsort(trace.start[launches], kind="stable")
    is_first = np.zeros(len(kernels), np.bool_)
    is_first[order[np.unique(names[order], return_index=True)[1]]] = True
    order = np.lexsort((~is_first, launches))
    calls, first = np.unique(launches[order], return_index=True)
    return calls, names[order][first], is_first[order][first]


def _preparation_starts(trace: Trace, calls: Ints, modules: Flags) -> Ints:
    start: Ints = trace.start[calls]
    ops = trace.rows(Kind.OP)
    inside = np.flatnonzero(modules)
    inside = inside[device.holders(trace, calls[inside], ops) >= 0] if len(ops) else inside[:0]
    rows = trace.rows(*HOST)
    for thread in intervals.distinct(trace.thread[calls[inside]]).tolist():
        thread_rows, thread_calls = rows[trace.thread[rows] == thread], inside[trace.thread[calls[inside]] == thread]
        edges = np.sort(np.append(trace.start[thread_rows], trace.end[thread_rows]))
        start[thread_calls] = edges[np.searchsorted(edges, start[thread_calls], "left") - 1]
    return start


def _choosing_intervals(trace: Trace) -> Intervals:
    calls = trace.chosen(runtime_calls.TIMED.search, Kind.RUNTIME)
    ops = trace.searched(operators.SEARCHED_CONVOLUTIONS, Kind.OP)
    if not len(calls) or not len(ops):
        return intervals.nothing()
    holders = device.holders(trace, calls, ops)
    convolutions = intervals.distinct(holders[holders >= 0])
    return intervals.of_slices(trace, convolutions)


def _range_intervals(trace: Trace, pattern: str) -> Intervals:
    return intervals.of_slices(trace, trace.searched(pattern, Kind.OP, Kind.ANNOTATION))
