from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.model import Doubt
from perfhooks.trace.nesting.grouping import MAX_SPARSITY

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace

FRAME, CALLER = "frame", "caller"
CLOSED: Final = "closed"
"""Sparse column: time in ns by which the end of a frame was moved to an earlier time."""


def close(trace: Trace) -> None:
    """Correct the ends of Python frames that the recorder lost and set to the end of the recording.

    Add one of `Trace.doubts` for corrected frames. A frame ends before the next frame of the same caller begins, and
    not after the caller. Call this function before tables are computed.
    """
    _, numbers = trace.sparse(FRAME)
    rows = trace.rows(Kind.PYTHON)
    # torch also numbers the frames of other threads
    if 0 <= numbers.max(initial=-1) <= MAX_SPARSITY * len(rows):
        frame, caller = (trace.argument(name)[rows] for name in (FRAME, CALLER))
        before = trace.end[rows]
        for thread in _odd_threads(trace, rows, frame, caller):
            on_thread = trace.thread[rows] == thread
            _close_thread(trace, rows[on_thread], frame[on_thread].tolist(), caller[on_thread].tolist())
        distance = before - trace.end[rows]
        if count := int(np.count_nonzero(distance)):
            trace.sparse_columns[CLOSED] = rows[distance > 0], distance[distance > 0]
            text = f"{count} Python frames have no end; their ends were derived from their callers"
            trace.doubts.append(Doubt("frames-without-end", count, text))
    for name in (FRAME, CALLER):
        trace.sparse_columns.pop(name, None)


def _odd_threads(trace: Trace, rows: Ints, frame: Ints, caller: Ints) -> list[int]:
    thread, start, end = trace.thread[rows], trace.start[rows], trace.end[rows]
    depth = np.arange(len(rows))
    numbers = np.unique(thread)
    for first, last in zip(*(np.searchsorted(thread, numbers + offset).tolist() for offset in (0, 1)), strict=True):
        depth[first:last] -= np.searchsorted(np.sort(end[first:last]), start[first:last], "right")
    index = _index_by_number(frame)[np.clip(caller, -1, frame.max())]
    is_odd = (depth != depth[index] + 1) | (end > end[index])
    threads: list[int] = np.unique(thread[is_odd & (index >= 0) & (thread == thread[index])]).tolist()
    return threads


def _index_by_number(frame: Ints) -> Ints:
    indices = np.full(int(frame.max()) + 2, -1, np.int64)
    indices[frame] = np.arange(len(frame))
    indices[-1] = -1
    return indices


def _close_thread(trace: Trace, rows: Ints, frames: list[int], callers: list[int]) -> None:
    start, end = trace.start[rows].tolist(), trace.end[rows].tolist()
    stack: list[int] = []
    for index, caller in enumerate(callers):
        while stack and end[stack[-1]] <= start[index]:
            stack.pop()
        if caller in {frames[entry] for entry in stack}:
            while frames[stack[-1]] != caller:
                end[stack.pop()] = start[index]
            end[index] = min(end[index], end[stack[-1]])
        stack.append(index)
    trace.end[rows] = end
