from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.trace.nesting.intervals import distinct, highest

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Flags, Ints


class Nesting(NamedTuple):
    parent: Ints
    """Innermost slice that contains this slice, or -1."""
    depth: Ints
    end: Ints
    """End in ns, after corrections of overlaps (see `nest`)."""
    own: Ints
    """Time of the slice outside of nested slices, in ns. Own times sum to the union of all slices."""


_MAX_CROSSED_PASSES: Final = 8
"""Maximum number of slices that begin inside crossed slices (which overlap a later slice without nesting), per slice of
the thread.
"""


_MAX_SINGLE_PARENTS: Final = 50


def nest(thread: Column, start: Ints, end: Ints) -> Nesting:
    """Return the nesting of slices, which are sorted as in a `Trace`.

    If two slices overlap without nesting, the earlier slice ends where the later slice begins, as in torch. A slice of
    zero length contains no slice.
    """
    parent = np.full(len(start), -1, np.int64)
    depth = np.zeros(len(start), np.int64)
    cut_end = end.copy()
    edges = [*np.flatnonzero(np.diff(thread, prepend=thread[:1] - 1)).tolist(), len(thread)]
    for first, last in pairwise(edges):
        part = slice(first, last)
        nested = _nest(start[part], end[part])
        parent[part] = np.where(nested[0] >= 0, nested[0] + first, -1)
        depth[part], cut_end[part] = nested[1], nested[2]
    return Nesting(parent, depth, cut_end, _own_times(parent, cut_end - start))


def _nest(start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    nested = _nest_thread(start, end)
    if nested is None and (cut_end := _cut(start, end)) is not None:
        nested = _nest_thread(start, cut_end)
    return nested or _nest_crossing(start, end)


def _cut(start: Ints, end: Ints) -> Ints | None:
    """Return the end of each slice, or the start of the first slice that crosses its end; None if many slices cross."""
    last = np.searchsorted(start, end, "left")
    container = np.flatnonzero(last > np.arange(1, len(start) + 1))
    after, last = container + 1, last[container]
    crossed = highest(end, after, last) > end[container]
    after, width = after[crossed], (last - after)[crossed]
    if width.sum() > _MAX_CROSSED_PASSES * len(start):
        return None
    row = container[crossed]
    # of the slices that begin in a crossed slice, the first with a later end crosses it
    group_start = np.cumsum(width) - width
    inner = np.arange(int(width.sum())) + np.repeat(after - group_start, width)
    outlasting = np.flatnonzero(end[inner] > np.repeat(end[row], width))
    cut_end: Ints = end.copy()
    cut_end[row] = start[inner[outlasting[np.searchsorted(outlasting, group_start)]]] if len(row) else start[:0]
    return cut_end


def _nest_thread(start: Ints, end: Ints) -> tuple[Ints, Ints, Ints] | None:
    count = len(start)
    long = end > start
    depth = np.cumsum(long) - long - _count_ended(end[long], start)
    by_depth = np.argsort(_narrow(depth), kind="stable")
    level = depth[by_depth] * count
    # A slice deeper than its predecessor is the child of this; others have the parent of the last slice of equal depth.
    first = np.zeros(count, np.int64)
    first[1:] = np.where(depth[1:] > depth[:-1], np.arange(1, count), 0)
    parent = np.empty(count, np.int64)
    parent[by_depth] = np.maximum.accumulate(level + first[by_depth]) - level - 1
    return (parent, depth, end) if (end <= np.append(end, np.iinfo(np.int64).max)[parent]).all() else None


def _count_ended(end: Ints, time: Ints) -> Ints:
    merged = np.argsort(np.concatenate([np.sort(end, kind="stable"), time]), kind="stable")
    return np.flatnonzero(merged >= len(end)) - np.arange(len(time))


def _narrow(depth: Ints) -> Ints:
    return depth.astype(np.int16) if int(depth.max(initial=0)) <= np.iinfo(np.int16).max else depth


def _nest_crossing(start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    parents, depths = [-1] * len(start), [0] * len(start)
    starts, ends = start.tolist(), end.tolist()
    cut_end = end.copy()
    opened: list[int] = []
    for row, (begin, finish) in enumerate(zip(starts, ends, strict=True)):
        while opened and (begin >= ends[opened[-1]] or finish > ends[opened[-1]]):
            closed = opened.pop()
            if ends[closed] > begin:
                cut_end[closed] = begin
        if opened:
            parents[row], depths[row] = opened[-1], len(opened)
        opened.append(row)
    return np.array(parents, np.int64), np.array(depths, np.int64), cut_end


def _own_times(parent: Ints, length: Ints) -> Ints:
    own = np.append(length, 0)
    np.subtract.at(own, parent, length)
    return own[:-1]


def outermost(parent: Ints) -> Ints:
    root: Ints = np.where(parent >= 0, parent, np.arange(len(parent)))
    while not np.array_equal(parent_of_root := root[root], root):
        root = parent_of_root
    return root


def inherited(parent: Ints, own: Ints) -> Ints:
    """Replace each value -1 by the value of the nearest ancestor that has another value."""
    if not (own >= 0).any():
        return np.full(len(own), -1, np.int64)
    count = len(own)
    source = np.append(np.where(own >= 0, np.arange(count), parent), -1)
    while True:
        ancestor = source.take(source)
        if np.array_equal(ancestor, source):
            return np.append(own, -1).take(source[:-1])
        source = ancestor


def nearest(parent: Ints, entry: Ints, is_selected: Flags) -> Ints:
    holder: Ints = entry.copy()
    pending = np.flatnonzero(holder >= 0)
    pending = pending[~is_selected[holder[pending]]]
    for _ in range(_MAX_SINGLE_PARENTS):
        if not len(pending):
            return holder
        holder[pending] = parent[holder[pending]]
        pending = pending[holder[pending] >= 0]
        pending = pending[~is_selected[holder[pending]]]
    holder[pending] = inherited(parent, np.where(is_selected, np.arange(len(parent)), -1))[holder[pending]]
    return holder


def last_begun(thread: Column, start: Ints, query_thread: Column, time: Ints) -> Ints:
    """Return the last slice that starts on each queried thread at or before the queried time, or -1.

    ``thread`` and ``start`` of the slices are sorted as in a `Trace`.
    """
    last_started = np.full(len(time), -1, np.int64)
    order = np.argsort(query_thread, kind="stable")
    numbers = distinct(query_thread)
    edges = np.append(np.searchsorted(query_thread[order], numbers), len(query_thread)).tolist()
    begin, end = (np.searchsorted(thread, numbers + more).tolist() for more in (0, 1))
    for first, last, (a, b) in zip(begin, end, pairwise(edges), strict=True):
        queries = order[a:b]
        index = first + np.searchsorted(start[first:last], time[queries], "right") - 1
        last_started[queries] = np.where(index >= first, index, -1)
    return last_started


def still_open(nesting: Nesting, entry: Ints, time: Ints) -> Ints:
    """Replace each entry that ended before its ``time`` by the nearest ancestor that is still open, or -1."""
    holder: Ints = entry.copy()
    ended = np.flatnonzero((holder >= 0) & (nesting.end[holder] < time)) if len(nesting.end) else holder[:0]
    for _ in range(_MAX_SINGLE_PARENTS):
        if not len(ended):
            return holder
        holder[ended] = nesting.parent[holder[ended]]
        ended = ended[(holder[ended] >= 0) & (nesting.end[holder[ended]] < time[ended])]
    jumps = [np.append(nesting.parent, -1)] if len(ended) else []
    while jumps and (jumps[-1] >= 0).any():
        jumps.append(jumps[-1][jumps[-1]])
    for jump in reversed(jumps):
        ancestor = jump[holder[ended]]
        is_ended = (ancestor >= 0) & (nesting.end[ancestor] < time[ended])
        holder[ended] = np.where(is_ended, ancestor, holder[ended])
    holder[ended] = np.append(nesting.parent, -1)[holder[ended]]
    return holder
