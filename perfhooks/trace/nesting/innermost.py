"""What a thread did at any time: the innermost slice of all that were open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.trace.nesting import host, intervals
from perfhooks.trace.once import once

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Ints, Trace

_FAR: Final = 2**62


class Flat(NamedTuple):
    """All of time, cut where the innermost slice of a thread changes."""

    start: Ints
    end: Ints
    entry: Column
    """Of `host.tree`; -1 where nothing is open."""


@once
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
    finish = np.concatenate([following[:1], finish[by_itself], after[again]])
    owner = np.concatenate([np.full(1, -1, np.int32), (by_itself + first).astype(np.int32), parent[again]])
    order = np.argsort(begin, kind="stable")
    return Flat(begin[order], finish[order], owner[order])


def overlaps(start: Ints, end: Ints, others: Ints, ends: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Where each stretch of one disjoint set overlaps one of another: both, and from when to when; all by time."""
    first, last = np.searchsorted(ends, start, "right"), np.searchsorted(others, end, "left")
    found = np.flatnonzero(last > first)
    count = (last - first)[found]
    edge = np.cumsum(count)
    of, place = np.repeat(found, count), intervals.places(first[found], last[found])
    begin, finish = others[place], ends[place]
    # only the outermost ones reach beyond their stretch
    begin[edge - count] = np.maximum(begin[edge - count], start[found])
    finish[edge - 1] = np.minimum(finish[edge - 1], end[found])
    return of, begin, finish, place
