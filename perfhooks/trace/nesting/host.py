"""What nests in what on the host: the one tree of calls that stacks, modules and memory are read from."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.trace.kinds import HOST
from perfhooks.trace.names import torch_rules
from perfhooks.trace.nesting.grouping import distinct as distinct_places
from perfhooks.trace.nesting.slices import Nesting, inherited, last_begun, nest, still_open
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.trace.model import Column, Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags


class Tree(NamedTuple):
    """The slices of the host and how they nest, one entry for each; sorted by thread and time."""

    row: Ints
    """The slice of the trace."""
    thread: Column
    nesting: Nesting
    entry: Ints
    """For each slice of the trace its entry here, or -1; one more -1 at the end, for what is no slice."""


class Paths(NamedTuple):
    """Distinct paths from the outside inwards: each is a node with a parent node and a frame."""

    node: Ints
    """The node of each entry; -1 where its path has no frames."""
    parents: Ints
    """For each node the one around it, or -1; always a smaller number."""
    frames: Ints
    """For each node what is innermost in it."""


_WIDE: Final = 200
"""Entries in a level of the tree, on average, from which on it pays to take a level at once: it takes 40 us and 0.1 us
an entry, where one by one an entry takes 0.24 us."""


@cached_per_trace
def tree(trace: Trace) -> Tree:
    """The tree of a trace."""
    rows = trace.rows(*HOST)
    thread = trace.thread[rows]
    entry = np.full(len(trace) + 1, -1, np.int64)
    entry[rows] = np.arange(len(rows))
    return Tree(rows, thread, nest(thread, trace.start[rows], trace.end[rows]), entry)


@cached_per_trace
def after(trace: Trace) -> Ints:
    """For each entry the first one of its thread that begins when it is over, or where those of its thread end."""
    calls = tree(trace)
    start, found = trace.start[calls.row], np.arange(1, len(calls.row) + 1)
    edges = [*np.flatnonzero(np.diff(calls.thread, prepend=-1)).tolist(), len(calls.row)]
    for first, last in pairwise(edges):
        begun = first + np.searchsorted(start[first:last], calls.nesting.end[first:last], "left")
        found[first:last] = np.maximum(found[first:last], begun)  # one without length is not after itself
    return found


def paths(nesting: Nesting, frame: Ints, skipped: Flags) -> Paths:
    """Number the distinct paths, those around a path before it; skipped entries have the path of their parent."""
    deepest = int(nesting.depth.max(initial=0))
    numbered = _by_levels if len(frame) > _WIDE * (deepest + 1) else _one_by_one
    return numbered(nesting, frame, skipped)


def _one_by_one(nesting: Nesting, frame: Ints, skipped: Flags) -> Paths:
    count = int(frame.max(initial=0)) + 1
    numbers: dict[int, int] = {}
    node = [-1] * (len(frame) + 1)  # the last entry is the parent of those that have none
    marked = np.where(skipped, -1, frame).tolist()
    for entry, (parent, mine) in enumerate(zip(nesting.parent.tolist(), marked, strict=True)):
        around = node[parent]
        node[entry] = around if mine < 0 else numbers.setdefault((around + 1) * count + mine, len(numbers))
    parents, frames = np.divmod(np.fromiter(numbers, np.int64, len(numbers)), count)
    return Paths(np.array(node[:-1], np.int64), parents - 1, frames)


def _by_levels(nesting: Nesting, frame: Ints, skipped: Flags) -> Paths:
    kept = np.flatnonzero(~skipped)
    nearest = np.append(inherited(nesting.parent, np.where(skipped, -1, np.arange(len(frame)))), -1)
    around, frame = nearest[nesting.parent[kept]], frame[kept]
    node = np.full(len(nearest), -1, np.int64)  # the last entry is the parent of those that have none
    parents, frames = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    known = 0
    for level in _levels(around, kept):
        outer, outside = distinct_places(node[around[level]] + 1)
        inner, inside = distinct_places(frame[level])
        pairs, place = distinct_places(outside * len(inner) + inside)  # few are possible, now that both are numbered
        node[kept[level]] = place + known
        parents.append(outer[pairs // len(inner)] - 1)
        frames.append(inner[pairs % len(inner)])
        known += len(pairs)
    return Paths(node[nearest[:-1]], np.concatenate(parents), np.concatenate(frames))


def _levels(around: Ints, kept: Ints) -> Iterator[Ints]:
    """The places of kept entries in groups, each after the one in which the entries around them are."""
    place = np.full(int(kept.max(initial=-1)) + 2, -1, np.int64)
    place[kept] = np.arange(len(kept))
    depth = depths(place[around])
    by_depth = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=0)) + 2))
    for first, last in pairwise(edges.tolist()):
        yield by_depth[first:last]


def summed_up(parents: Ints, values: Column) -> Column:
    """For each node of a forest its value and those of all nodes around it, together."""
    total, higher = np.append(values, 0), np.append(parents, -1)  # the last is around those around which none is
    while (higher >= 0).any():  # each round looks twice as far up as the one before
        total = total + total.take(higher)
        higher = higher.take(higher)
    return total[:-1]


def summed_down(parents: Ints, values: Ints) -> Ints:
    """For each node of a forest its value and those of all nodes below it, together."""
    total = values.tolist()
    for node, parent in zip(range(len(total) - 1, -1, -1), reversed(parents.tolist()), strict=True):
        if parent >= 0:
            total[parent] += total[node]
    return np.array(total, np.int64)


def depths(parents: Ints) -> Ints:
    """How many nodes lie around each node of a forest."""
    return summed_up(parents, np.ones(len(parents), np.int64)) - 1


def writable_depth(parents: Ints, depth: Ints, length: Ints, most: int) -> int:
    """How deep the nodes of a forest may be so that the texts of all of them, joined, have no more letters than that.

    A trace can nest so deep that what stands in it once would be written millions of times.

    Args:
        parents: for each node the one around it, or -1.
        depth: how many are around it.
        length: of the name of each.
        most: letters; names of nodes around which there are none do not count.
    """
    if (int(depth.sum()) + len(depth)) * (int(length.max(initial=0)) + 1) <= most:  # were all names as long as that
        return int(depth.max(initial=0))
    whole = summed_up(parents, (length + 1).astype(np.float64))  # the sum of all may not fit integers
    written = np.cumsum(np.bincount(depth, weights=np.where(depth > 0, whole, 0), minlength=1))
    return int(np.searchsorted(written, most, "right")) - 1


def ancestors(parents: Ints, depth: Ints, most: int) -> Ints:
    """For each node of a tree itself, or if it lies deeper than that, the node around it that does not."""
    return inherited(parents, np.where(depth <= most, np.arange(len(parents)), -1))


def joined(parents: Ints, names: list[str], separator: str) -> list[str]:
    """The text of each node of a tree: the names of all around it and its own, outermost first."""
    texts: list[str] = []
    for parent, name in zip(parents.tolist(), names, strict=True):
        texts.append(f"{texts[parent]}{separator}{name}" if parent >= 0 else name)
    return texts


def innermost(trace: Trace, thread: Column, time: Ints) -> Ints:
    """The innermost entry that is open on a thread at a time, both its ends included, or -1.

    Args:
        trace: any trace.
        thread: one index into `Trace.threads` for each question.
        time: and one time in nanoseconds.
    """
    calls = tree(trace)
    begun = last_begun(calls.thread, trace.start[calls.row], thread, time)
    return still_open(calls.nesting, begun, time)


@cached_per_trace
def launchers(trace: Trace) -> Ints:
    """The entry that launched each of `Trace.device_rows`: its call, else the operator it names, or -1."""
    launches = trace.launches
    lost = np.flatnonzero(launches < 0)
    row = launches.copy()
    row[lost] = torch_rules.named_operator(trace, trace.device_rows[lost])
    entries: Ints = tree(trace).entry[row]
    return entries
