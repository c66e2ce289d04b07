"""What a program does once: loading, compiling, choosing kernels; a recording of it says little about later steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.trace.kinds import HOST, Kind
from perfhooks.trace.names import operators, ranges, runtime_calls
from perfhooks.trace.nesting import captures, device, intervals
from perfhooks.trace.once import once

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags, Intervals

LOADING_NS: Final = 5_000_000
"""A launch takes microseconds. One that takes 5 ms while the device idles does something else first: of recorded starts
the first ones took 6.5 ms (MI250), 420 to 1,338 ms and 3,056 ms, in which modules were loaded."""
CONTEXT_NS: Final = 50_000_000
"""Any other call of the runtime that takes so long while the device idles makes a context, loads a library or takes the
first memory; waits and copies have names of their own."""
FIRST: Final = 0.1
"""Of the launches of a recording. Memory that is taken, or given back, before so many were made belongs to the start:
cuDNN frees and takes workspaces while its modules are loaded."""

COMPILING: Final = "compiling"
CAPTURING: Final = "capturing graphs"
LOADING: Final = "loading kernels"
CHOOSING: Final = "trying out convolutions"


@once
def spent(trace: Trace) -> dict[str, Intervals]:
    """The moments of a trace that belong to a start, by what was done in them; they may overlap.

    ``compiling`` and ``capturing graphs`` are the ranges that TorchDynamo opens around its phases, and what lies
    between the calls that begin and end the capture of a graph. ``loading kernels`` are calls of the runtime that take
    long though the device idles (`LOADING_NS`, `CONTEXT_NS`, `FIRST`), and all that load modules, with the time before
    them in which an operator did nothing else: it compiled what is loaded. ``trying out convolutions`` are convolutions
    that measure kernels with events: cuDNN's and MIOpen's benchmarking.

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
    calls = trace.rows(Kind.RUNTIME)
    span = (trace.end - trace.start)[calls]
    launches = np.isin(calls, device.launch_calls(trace))
    memory = trace.matching(runtime_calls.MEMORY, calls)
    other = ~launches & ~trace.matching(runtime_calls.WORK, calls) & (~memory | is_first(trace, calls))
    modules = trace.matching(runtime_calls.MODULES, calls)
    long = (launches & (span >= LOADING_NS)) | (other & (span >= CONTEXT_NS)) | modules
    calls = calls[long]
    start, end = _since(trace, calls, modules[long]), trace.end[calls]
    idle = intervals.within(device.busy(trace), start, end) < 0.01 * (end - start)
    return intervals.union(start[idle], end[idle])


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
