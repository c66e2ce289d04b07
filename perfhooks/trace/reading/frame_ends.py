"""Python frames that were never closed: the recorder lost their ends, and lets them last until it stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.model import Doubt

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace

FRAME, CALLER = "frame", "caller"
"""The arguments that name a frame and its caller."""
CLOSED: Final = "closed"
"""By how much frames end earlier than in the file, in nanoseconds."""


_MOST_NUMBERS: Final = 16
"""Numbers of frames for each frame of a file: torch counts the frames of all threads. More are damaged."""


def close(trace: Trace) -> None:
    """End each frame that was never closed, and add a doubt about it.

    A frame names its caller. So a frame that is open beside that caller has ended before, and no frame lasts longer
    than its caller.

    Args:
        trace: Any trace, before anything is computed of it. Ends change.
    """
    _, numbers = trace.sparse(FRAME)
    rows = trace.rows(Kind.PYTHON)
    if 0 <= numbers.max(initial=-1) <= _MOST_NUMBERS * len(rows):
        frame, caller = (trace.argument(name)[rows] for name in (FRAME, CALLER))
        before = trace.end[rows]
        for thread in _threads(trace, rows, frame, caller):
            mine = trace.thread[rows] == thread
            _close_thread(trace, rows[mine], frame[mine].tolist(), caller[mine].tolist())
        cut = before - trace.end[rows]
        if count := int(np.count_nonzero(cut)):
            trace.given[CLOSED] = rows[cut > 0], cut[cut > 0]
            text = f"{count} Python frames were never closed: they end where their callers go on"
            trace.doubts.append(Doubt("frames-without-end", count, text))
    for name in (FRAME, CALLER):
        trace.given.pop(name, None)


def _threads(trace: Trace, rows: Ints, frame: Ints, caller: Ints) -> list[int]:
    """Return the threads on which a frame is not one level below its caller, or ends after it."""
    thread, start, end = trace.thread[rows], trace.start[rows], trace.end[rows]
    depth = np.arange(len(rows))
    numbers = np.unique(thread)
    for first, last in zip(*(np.searchsorted(thread, numbers + more).tolist() for more in (0, 1)), strict=True):
        depth[first:last] -= np.searchsorted(np.sort(end[first:last]), start[first:last], "right")
    place = _places(frame)[np.clip(caller, -1, frame.max())]
    is_odd = (depth != depth[place] + 1) | (end > end[place])
    threads: list[int] = np.unique(thread[is_odd & (place >= 0) & (thread == thread[place])]).tolist()
    return threads


def _places(frame: Ints) -> Ints:
    """Return the place of each number of a frame, and -1 for other numbers."""
    places = np.full(int(frame.max()) + 2, -1, np.int64)
    places[frame] = np.arange(len(frame))
    places[-1] = -1
    return places


def _close_thread(trace: Trace, rows: Ints, frames: list[int], callers: list[int]) -> None:
    """Close the frames of one thread, which come by start."""
    start, end = trace.start[rows].tolist(), trace.end[rows].tolist()
    opened: list[int] = []
    for place, caller in enumerate(callers):
        while opened and end[opened[-1]] <= start[place]:
            opened.pop()
        if caller in {frames[other] for other in opened}:
            while frames[opened[-1]] != caller:
                end[opened.pop()] = start[place]
            end[place] = min(end[place], end[opened[-1]])
        opened.append(place)
    trace.end[rows] = end
