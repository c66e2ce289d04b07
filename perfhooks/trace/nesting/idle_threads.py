"""Detection of threads that only wait, because such threads would fill half of a flame graph."""

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
    # the standard library by file and function, then C functions
    r"(?:^|/)threading\.py\(\d+\): (?:wait|wait_for|acquire|join|_wait_for_tstate_lock)$"
    r"|(?:^|/)queue\.py\(\d+\): get$|(?:^|/)selectors\.py\(\d+\): select$"
    r"|(?:^|/)multiprocessing/\w+\.py\(\d+\): (?:wait|poll|_poll|recv|recv_bytes|_recv|_recv_bytes|accept|get|acquire)$"
    r"|^<(?:built-in )?(?:method|function) '?(?:acquire|select|poll|sleep|wait|accept|recv|recv_into)\b"
    r"|^<built-in method get of _queue\.SimpleQueue"
    # perfhooks' watcher entered its wait in C before the recording, so the wait has no frame
    r"|(?:^|/)perfhooks/record/watch/watcher\.py\(\d+\): _run$"
)


@cached_per_trace
def waiting(trace: Trace) -> Flags:
    """Return whether each entry of `host.tree` is a wait for a lock, queue, file or timer, or a call inside a wait.

    Waits on the thread that runs the steps do not count, because they delay the training.
    """
    tree = host.tree(trace)
    is_wait = (trace.kind[tree.row] == Kind.PYTHON) & ~np.isin(tree.thread, _step_threads(trace))
    is_wait[is_wait] = trace.matching(_WAITS, tree.row[is_wait])
    enclosing_wait = inherited(tree.nesting.parent, np.where(is_wait, np.arange(len(is_wait)), -1))
    return enclosing_wait >= 0


def _step_threads(trace: Trace) -> Ints:
    marks = trace.named(Kind.ANNOTATION, Kind.OP, prefix=labels.STEP_MARK)
    if len(marks):
        return intervals.distinct(trace.thread[marks])
    calls = trace.rows(*HOST)
    return np.array([np.bincount(trace.thread[calls]).argmax()]) if len(calls) else calls
