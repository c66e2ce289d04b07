from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfhooks.trace.bounds import MAX_NUMBER
from perfhooks.trace.nesting import host, intervals
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Ints, Trace


class Flat(NamedTuple):
    """Timeline of one thread, as intervals that each have one innermost slice."""

    start: Ints
    """Start of each interval; minus infinity for the first interval. The last interval has no end."""
    entry: Column
    """Innermost slice of each interval, as an entry of `host.tree`, or -1."""


@cached_per_trace
def of_thread(trace: Trace, thread: int) -> Flat:
    tree = host.tree(trace)
    first, last = np.searchsorted(tree.thread, [thread, thread + 1]).tolist()
    start, end = trace.start[tree.row[first:last]], tree.nesting.end[first:last]
    parent = tree.nesting.parent[first:last].astype(np.int32)
    parent_index, next_start = np.maximum(parent - np.int32(first), -1), np.append(start, MAX_NUMBER)
    after = np.minimum(next_start[host.after(trace)[first:last] - first], np.append(end, MAX_NUMBER)[parent_index])
    finish = np.minimum(next_start[1:], end)
    non_empty, with_return = np.flatnonzero(finish > start), np.flatnonzero(after > end)
    begin = np.concatenate([[-MAX_NUMBER], start[non_empty], end[with_return]])
    owner = np.concatenate([np.full(1, -1, np.int32), (non_empty + first).astype(np.int32), parent[with_return]])
    order = np.argsort(begin, kind="stable")
    return Flat(begin[order], owner[order])


def cut(start: Ints, end: Ints, flat: Flat) -> tuple[Column, Ints, Ints, Column]:
    """Cut intervals where the innermost slice changes; return input index, start, end and slice of each piece."""
    first, last = np.searchsorted(flat.start, start, "right") - 1, np.searchsorted(flat.start, end, "left")
    count = last - first
    edge = np.cumsum(count)
    index = intervals.places(first, last)
    begin = flat.start[index]
    begin[edge - count] = start
    finish = np.append(begin[1:], 0)
    finish[edge - 1] = end
    return np.repeat(np.arange(len(start), dtype=np.int32), count), begin, finish, flat.entry[index]
