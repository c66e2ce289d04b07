"""What nests in what on the host: the one tree of calls that stacks, modules and memory are read from."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from perfhooks.trace import torch_rules
from perfhooks.trace.kinds import HOST
from perfhooks.trace.nesting import Nesting, nest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.trace.intervals import Flags
    from perfhooks.trace.model import Column, Ints, Trace


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
    parents: list[int]
    """For each node the one around it, or -1; always a smaller number."""
    frames: list[int]


_TREES: Final[WeakKeyDictionary[Trace, Tree]] = WeakKeyDictionary()


def tree(trace: Trace) -> Tree:
    """The tree of a trace; made once, as long as the trace lives."""
    if trace not in _TREES:
        rows = trace.rows(*HOST)
        thread = trace.thread[rows]
        entry = np.full(len(trace) + 1, -1, np.int64)
        entry[rows] = np.arange(len(rows))
        _TREES[trace] = Tree(rows, thread, nest(thread, trace.start[rows], trace.end[rows]), entry)
    return _TREES[trace]


def inherited(parent: Ints, own: Ints) -> Ints:
    """The value of each entry, or where that is -1, of the innermost entry around it that has one.

    Args:
        parent: the entry around each one, or -1.
        own: a value of each entry, or -1.
    """
    count = len(own)
    value = np.append(own, -1)
    source = np.append(np.where(own >= 0, np.arange(count), np.where(parent >= 0, parent, count)), count)
    while True:
        further = source[source]
        if np.array_equal(further, source):
            found: Ints = value[source[:-1]]
            return found
        source = further


def paths(nesting: Nesting, frame: Ints, skipped: Flags) -> Paths:
    """Number the distinct paths, from the outermost entries inwards; skipped entries have the path of their parent."""
    kept = np.flatnonzero(~skipped)
    nearest = np.append(inherited(nesting.parent, np.where(skipped, -1, np.arange(len(frame)))), -1)
    around = nearest[nesting.parent[kept]]
    count = int(frame.max(initial=0)) + 1
    node = np.full(len(frame) + 1, -1, np.int64)  # the last entry is the parent of those that have none
    parents: list[int] = []
    frames: list[int] = []
    for level in _levels(around, kept):
        keys, place = np.unique((node[around[level]] + 1) * count + frame[kept[level]], return_inverse=True)
        node[kept[level]] = place + len(parents)
        parents += (keys // count - 1).tolist()
        frames += (keys % count).tolist()
    return Paths(node[nearest[:-1]], parents, frames)


def _levels(around: Ints, kept: Ints) -> Iterator[Ints]:
    """The places of kept entries in groups, each after the one in which the entries around them are."""
    place = np.full(int(kept.max(initial=-1)) + 2, -1, np.int64)
    place[kept] = np.arange(len(kept))
    depth, higher = (around >= 0).astype(np.int64), place[around]
    while (higher >= 0).any():  # each round looks twice as far up as the one before
        depth += np.append(depth, 0)[higher]
        higher = np.append(higher, -1)[higher]
    by_depth = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=0)) + 2))
    for first, last in pairwise(edges.tolist()):
        yield by_depth[first:last]


def joined(found: Paths, names: list[str], separator: str) -> list[str]:
    """The text of each node: the names of its frames, outermost first."""
    texts: list[str] = []
    for parent, frame in zip(found.parents, found.frames, strict=True):
        texts.append(f"{texts[parent]}{separator}{names[frame]}" if parent >= 0 else names[frame])
    return texts


def innermost(trace: Trace, thread: Column, time: Ints) -> Ints:
    """The innermost entry that is open on a thread at a time, both its ends included, or -1.

    Args:
        trace: any trace.
        thread: one index into `Trace.threads` for each question.
        time: and one time in nanoseconds.
    """
    calls = tree(trace)
    start = trace.start[calls.row]
    found = np.full(len(time), -1, np.int64)
    for each in np.unique(thread).tolist():
        here = np.flatnonzero(thread == each)
        first, last = np.searchsorted(calls.thread, [each, each + 1])
        place = first + np.searchsorted(start[first:last], time[here], "right") - 1
        found[here] = np.where(place >= first, place, -1)
    asking = np.flatnonzero(found >= 0)
    while len(asking):
        over = calls.nesting.end[found[asking]] < time[asking]
        asking = asking[over]
        found[asking] = calls.nesting.parent[found[asking]]
        asking = asking[found[asking] >= 0]
    return found


def launchers(trace: Trace) -> Ints:
    """The entry that launched each of `Trace.device_rows`: its call, else the operator it names, or -1."""
    launches = trace.launches
    lost = np.flatnonzero(launches < 0)
    row = launches.copy()
    row[lost] = torch_rules.named_operator(trace, trace.device_rows[lost])
    found: Ints = tree(trace).entry[row]
    return found
