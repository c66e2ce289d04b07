"""The recording of CUDA graphs: what is launched meanwhile does not run, it becomes a part of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import runtime_calls
from perfhooks.trace.nesting import intervals
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags, Intervals


@cached_per_trace
def by_thread(trace: Trace) -> dict[int, Intervals]:
    """When each thread captured a graph: from each ``StreamBeginCapture`` to the ``StreamEndCapture`` that follows it.

    A capture that had begun before the trace does counts from there, and one that is still open goes to its end.
    """
    calls = trace.chosen(runtime_calls.CAPTURE.search, Kind.RUNTIME)
    begins = np.zeros(len(trace.names), np.bool_)
    for name in intervals.distinct(trace.name[calls]).tolist():
        found = runtime_calls.CAPTURE.search(trace.names[name])
        begins[name] = found is not None and found[1].lower() == "begin"
    threads: list[int] = intervals.distinct(trace.thread[calls]).tolist()
    return {thread: _captures(trace, calls[trace.thread[calls] == thread], begins) for thread in threads}


def _captures(trace: Trace, calls: Ints, begins: Flags) -> Intervals:
    """The captures of one thread, from the calls that begin and end them, by time."""
    first, last = int(trace.start.min()), int(trace.end.max())
    starts = begins[trace.name[calls]]
    start = [first] if not starts[0] else []
    start += trace.start[calls[starts]].tolist()
    # of two that begin without an end between them, the second goes on with the first
    end = [*trace.end[calls[~starts]].tolist(), *([last] if starts[-1] else [])]
    following = np.searchsorted(end, start, "left")
    return intervals.union(np.array(start, np.int64), np.array(end, np.int64)[following])


def captured(trace: Trace, calls: Ints) -> Flags:
    """Which calls were captured into a graph, and so have no work of their own.

    Args:
        trace: any trace.
        calls: slices of runtime calls.
    """
    found = np.zeros(len(calls), np.bool_)
    for thread, moments in by_thread(trace).items():
        mine = trace.thread[calls] == thread
        time = trace.start[calls]
        begun = np.searchsorted(moments[:, 0], time, "right")
        found |= mine & (begun > np.searchsorted(moments[:, 1], time, "right"))
    return found
