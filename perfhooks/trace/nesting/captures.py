"""Captures of CUDA graphs: work launched during a capture does not run, but becomes part of the graph."""

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
    """Return the intervals in which each thread captured a graph.

    Captures may begin before the trace, and end later.
    """
    calls = trace.chosen(runtime_calls.CAPTURE.search, Kind.RUNTIME)
    begins = np.zeros(len(trace.names), np.bool_)
    for name in intervals.distinct(trace.name[calls]).tolist():
        match = runtime_calls.CAPTURE.search(trace.names[name])
        begins[name] = match is not None and match[1].lower() == "begin"
    threads: list[int] = intervals.distinct(trace.thread[calls]).tolist()
    return {thread: _thread_captures(trace, calls[trace.thread[calls] == thread], begins) for thread in threads}


def _thread_captures(trace: Trace, calls: Ints, begins: Flags) -> Intervals:
    first, last = int(trace.start.min()), int(trace.end.max())
    starts = begins[trace.name[calls]]
    start = [first] if not starts[0] else []
    start += trace.start[calls[starts]].tolist()
    # a begin inside an open capture continues this capture
    end = [*trace.end[calls[~starts]].tolist(), *([last] if starts[-1] else [])]
    following = np.searchsorted(end, start, "left")
    return intervals.union(np.array(start, np.int64), np.array(end, np.int64)[following])


def captured(trace: Trace, calls: Ints) -> Flags:
    """Return which calls were captured into a graph and thus have no device work."""
    is_captured = np.zeros(len(calls), np.bool_)
    for thread, moments in by_thread(trace).items():
        on_thread = trace.thread[calls] == thread
        time = trace.start[calls]
        begin_count = np.searchsorted(moments[:, 0], time, "right")
        is_captured |= on_thread & (begin_count > np.searchsorted(moments[:, 1], time, "right"))
    return is_captured
