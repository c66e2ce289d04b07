"""What a thread did at any time: the innermost slice of all that were open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.trace.nesting import host, intervals
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Ints, Trace

_FAR: Final = 2**62


class Flat(NamedTuple):
    """All of time, cut where the innermost slice of a thread changes."""

    start: Ints
    """Each ends where the next one begins; the first began before everything, and the last does not end."""
    entry: Column
    """Of `host.tree`; -1 where nothing is open."""


@cached_per_trace
def of_thread(trace: Trace, thread: int) -> Flat:
    """The innermost slice of a thread at any time.

    A slice is the innermost from its start to that of the next one; and what holds it from its end on, up to the next.
    """
    tree = host.tree(trace)
    first, last = np.searchsorted(tree.thread, [thread, thread + 1]).tolist()
    start, end = trace.start[tree.row[first:last]], tree.nesting.end[first:last]
    parent = tree.nesting.parent[first:last].astype(np.int32)
    around, following = np.maximum(parent - np.int32(first), -1), np.append(start, _FAR)
    after = np.minimum(following[host.after(trace)[first:last] - first], np.append(end, _FAR)[around])
    finish = np.minimum(following[1:], end)
    by_itself, again = np.flatnonzero(finish > start), np.flatnonzero(after > end)
    begin = np.concatenate([[-_FAR], start[by_itself], end[again]])
    owner = np.concatenate([np.full(1, -1, np.int32), (by_itself + first).astype(np.int32), parent[again]])
    order = np.argsort(begin, kind="stable")
    return Flat(begin[order], owner[order])


def cut(start: Ints, end: Ints, flat: Flat) -> tuple[Column, Ints, Ints, Column]:
    """Cut stretches of time, by time and disjoint, where the innermost slice changes.

    Returns:
        For each piece its stretch, when it begins and ends, and the entry of the slice.
    """
    first, last = np.searchsorted(flat.start, start, "right") - 1, np.searchsorted(flat.start, end, "left")
    count = last - first
    edge = np.cumsum(count)
    place = intervals.places(first, last)
    begin = flat.start[place]
    begin[edge - count] = start
    finish = np.append(begin[1:], 0)
    finish[edge - 1] = end
    return np.repeat(np.arange(len(start), dtype=np.int32), count), begin, finish, flat.entry[place]
