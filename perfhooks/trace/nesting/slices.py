"""Which slice lies in which: parents, depths and self times, without a step of Python for every slice."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.trace.nesting.intervals import distinct, highest

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Flags, Ints


class Nesting(NamedTuple):
    """How slices nest, one entry for each, in the order in which they were given."""

    parent: Ints
    """The innermost slice that holds this one, or -1."""
    depth: Ints
    """How many hold it."""
    end: Ints
    """Where it ends; for a slice that a later one crosses, where that one begins."""
    own: Ints
    """Its nanoseconds that lie in none of its children; over a thread they sum to the union of its slices."""


_FEW_CROSSINGS: Final = 8
"""Passes over the slices of a thread in search of those that cross, before they are looked at one by one."""


_NEAR: Final = 50
"""Slices to look at one after the other, outwards: more than lie around nearly all, and each takes little."""


def nest(thread: Column, start: Ints, end: Ints) -> Nesting:
    """Find out how slices nest; torch's rule where they overlap without nesting.

    torch keeps a stack of open slices for each thread, and takes from it all that end before the next slice does. So a
    slice that another one crosses ends, for what comes later, where that one begins; and a slice without length, which
    ends where it begins, holds nothing.

    Args:
        thread: where each slice lies. Slices are sorted by thread, start and end (longest first), as in a `Trace`.
        start: first nanosecond.
        end: first nanosecond after it.
    """
    parent = np.full(len(start), -1, np.int64)
    depth = np.zeros(len(start), np.int64)
    shown = end.copy()
    edges = [*np.flatnonzero(np.diff(thread, prepend=thread[:1] - 1)).tolist(), len(thread)]
    for first, last in pairwise(edges):
        part = slice(first, last)
        nested = _nest(start[part], end[part])
        parent[part] = np.where(nested[0] >= 0, nested[0] + first, -1)
        depth[part], shown[part] = nested[1], nested[2]
    return Nesting(parent, depth, shown, _own(parent, shown - start))


def _nest(start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    nested = _nest_thread(start, end)
    if nested is None and (shown := _cut(start, end)) is not None:
        nested = _nest_thread(start, shown)
    return nested or _nest_crossing(start, end)


def _cut(start: Ints, end: Ints) -> Ints | None:
    """Where the slices of one thread end if each ends where the first one begins that crosses it; None if many do."""
    last = np.searchsorted(start, end, "left")
    holding = np.flatnonzero(last > np.arange(1, len(start) + 1))  # before their ends another one begins
    after, last = holding + 1, last[holding]
    crossed = highest(end, after, last) > end[holding]
    after, width = after[crossed], (last - after)[crossed]
    if width.sum() > _FEW_CROSSINGS * len(start):
        return None
    row = holding[crossed]
    # all that begin in each of these, one after the other; the first that outlasts it
    begun = np.cumsum(width) - width
    inner = np.arange(int(width.sum())) + np.repeat(after - begun, width)
    longer = np.flatnonzero(end[inner] > np.repeat(end[row], width))
    shown: Ints = end.copy()
    shown[row] = start[inner[longer[np.searchsorted(longer, begun)]]] if len(row) else start[:0]
    return shown


def _nest_thread(start: Ints, end: Ints) -> tuple[Ints, Ints, Ints] | None:
    """Nest one thread's slices by counting; None if they cross each other."""
    count = len(start)
    long = end > start  # a slice without length holds nothing
    depth = np.cumsum(long) - long - _ended(end[long], start)
    by_depth = np.argsort(_narrow(depth), kind="stable")
    level = depth[by_depth] * count
    # One that lies deeper than the slice before it lies in that one. Any other has the parent of the last one as deep.
    first = np.zeros(count, np.int64)
    first[1:] = np.where(depth[1:] > depth[:-1], np.arange(1, count), 0)
    parent = np.empty(count, np.int64)
    parent[by_depth] = np.maximum.accumulate(level + first[by_depth]) - level - 1
    return (parent, depth, end) if (end <= np.append(end, np.iinfo(np.int64).max)[parent]).all() else None


def _ended(end: Ints, time: Ints) -> Ints:
    """How many slices have ended at each of some ascending times, by merging: both sides are sorted, or nearly so."""
    merged = np.argsort(np.concatenate([np.sort(end, kind="stable"), time]), kind="stable")
    return np.flatnonzero(merged >= len(end)) - np.arange(len(time))


def _narrow(depth: Ints) -> Ints:
    """The same numbers in two bytes each if they fit: numpy then sorts them by counting, ten times as fast."""
    return depth.astype(np.int16) if int(depth.max(initial=0)) <= np.iinfo(np.int16).max else depth


def _nest_crossing(start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Nest one thread's slices with torch's stack, slice by slice."""
    parents, depths = [-1] * len(start), [0] * len(start)
    starts, ends = start.tolist(), end.tolist()
    shown = end.copy()
    opened: list[int] = []
    for row, (begin, finish) in enumerate(zip(starts, ends, strict=True)):
        while opened and (begin >= ends[opened[-1]] or finish > ends[opened[-1]]):
            closed = opened.pop()
            if ends[closed] > begin:
                shown[closed] = begin
        if opened:
            parents[row], depths[row] = opened[-1], len(opened)
        opened.append(row)
    return np.array(parents, np.int64), np.array(depths, np.int64), shown


def _own(parent: Ints, length: Ints) -> Ints:
    own = np.append(length, 0)  # the last one holds what nothing holds: its place is -1
    np.subtract.at(own, parent, length)
    return own[:-1]


def outermost(parent: Ints) -> Ints:
    """For each entry the outermost one around it, itself where none is.

    Args:
        parent: one that is around each, or -1.
    """
    root: Ints = np.where(parent >= 0, parent, np.arange(len(parent)))
    while not np.array_equal(higher := root[root], root):
        root = higher
    return root


def inherited(parent: Ints, own: Ints) -> Ints:
    """The value of each entry, or where that is -1, of the innermost entry around it that has one.

    Args:
        parent: the entry around each one, or -1.
        own: a value of each entry, or -1.
    """
    if not (own >= 0).any():
        return np.full(len(own), -1, np.int64)
    count = len(own)
    source = np.append(np.where(own >= 0, np.arange(count), parent), -1)  # the last is what -1 is the place of
    while True:
        further = source.take(source)
        if np.array_equal(further, source):
            return np.append(own, -1).take(source[:-1])
        source = further


def nearest(parent: Ints, entry: Ints, wanted: Flags) -> Ints:
    """For each of some entries the innermost one around it, or itself, that is wanted, or -1.

    Args:
        parent: the entry around each one, or -1.
        entry: some of them, or -1.
        wanted: which of all are.
    """
    holder: Ints = entry.copy()
    far = np.flatnonzero(holder >= 0)
    far = far[~wanted[holder[far]]]
    for _ in range(_NEAR):
        if not len(far):
            return holder
        holder[far] = parent[holder[far]]
        far = far[holder[far] >= 0]
        far = far[~wanted[holder[far]]]
    holder[far] = inherited(parent, np.where(wanted, np.arange(len(parent)), -1))[holder[far]]
    return holder


def last_begun(thread: Column, start: Ints, asked: Column, time: Ints) -> Ints:
    """Return the last slice of a thread that starts at or before each of some times, or -1.

    Args:
        thread: Thread of each slice. Slices are sorted by thread and start.
        start: Start of each slice.
        asked: One thread for each time.
        time: The times, in nanoseconds.
    """
    found = np.full(len(time), -1, np.int64)
    order = np.argsort(asked, kind="stable")
    numbers = distinct(asked)
    edges = np.append(np.searchsorted(asked[order], numbers), len(asked)).tolist()
    begin, end = (np.searchsorted(thread, numbers + more).tolist() for more in (0, 1))
    for first, last, (a, b) in zip(begin, end, pairwise(edges), strict=True):
        here = order[a:b]
        place = first + np.searchsorted(start[first:last], time[here], "right") - 1
        found[here] = np.where(place >= first, place, -1)
    return found


def still_open(nesting: Nesting, entry: Ints, time: Ints) -> Ints:
    """For each slice the innermost one around it, or itself, that does not end before a time, or -1.

    Args:
        nesting: how slices nest.
        entry: some of them, or -1.
        time: one time for each, not before it begins.
    """
    holder: Ints = entry.copy()
    over = np.flatnonzero((holder >= 0) & (nesting.end[holder] < time)) if len(nesting.end) else holder[:0]
    for _ in range(_NEAR):
        if not len(over):
            return holder
        holder[over] = nesting.parent[holder[over]]
        over = over[(holder[over] >= 0) & (nesting.end[holder[over]] < time[over])]
    jumps = [np.append(nesting.parent, -1)] if len(over) else []
    while jumps and (jumps[-1] >= 0).any():  # each one twice as far up as the one before
        jumps.append(jumps[-1][jumps[-1]])
    for jump in reversed(jumps):  # ends are later the further up, so what is over is passed in ever shorter jumps
        further = jump[holder[over]]
        passed = (further >= 0) & (nesting.end[further] < time[over])
        holder[over] = np.where(passed, further, holder[over])
    holder[over] = np.append(nesting.parent, -1)[holder[over]]
    return holder
