"""Threads that only wait: half of a flame graph, and nothing that a training spends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.core import labels
from perfhooks.trace.kinds import HOST, Kind
from perfhooks.trace.nesting import host, intervals
from perfhooks.trace.nesting.slices import inherited
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags

_WAITS: Final = re.compile(
    # the standard library, by file and function, then what is written in C
    r"(?:^|/)threading\.py\(\d+\): (?:wait|wait_for|acquire|join|_wait_for_tstate_lock)$"
    r"|(?:^|/)queue\.py\(\d+\): get$|(?:^|/)selectors\.py\(\d+\): select$"
    r"|(?:^|/)multiprocessing/\w+\.py\(\d+\): (?:wait|poll|_poll|recv|recv_bytes|_recv|_recv_bytes|accept|get|acquire)$"
    r"|^<(?:built-in )?(?:method|function) '?(?:acquire|select|poll|sleep|wait|accept|recv|recv_into)\b"
    r"|^<built-in method get of _queue\.SimpleQueue"
    # the watcher of this house, which waits in C since before the recording: torch knows no frame for that
    r"|(?:^|/)perfhooks/record/watch/watcher\.py\(\d+\): _live$"
)


@cached_per_trace
def waiting(trace: Trace) -> Flags:
    """Which entries of `host.tree` are waiting, on threads that are not those of the steps.

    That is what lies in a frame that waits for a lock, a queue, a file or a time, by its name, or in that of the
    watcher; on the thread of the steps every wait counts, as the training waits with it.
    """
    tree = host.tree(trace)
    waits = (trace.kind[tree.row] == Kind.PYTHON) & ~np.isin(tree.thread, _of_steps(trace))
    waits[waits] = trace.matching(_WAITS, tree.row[waits])
    around = inherited(tree.nesting.parent, np.where(waits, np.arange(len(waits)), -1))
    return around >= 0


def _of_steps(trace: Trace) -> Ints:
    """The threads of the steps, as in `perfhooks.trace.tables.steps`, which takes polars."""
    marks = trace.named(Kind.ANNOTATION, Kind.OP, prefix=labels.STEP_MARK)
    if len(marks):
        return intervals.distinct(trace.thread[marks])
    calls = trace.rows(*HOST)
    return np.array([np.bincount(trace.thread[calls]).argmax()]) if len(calls) else calls
