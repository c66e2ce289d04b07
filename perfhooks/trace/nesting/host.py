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
    """The host slices and their nesting, sorted by thread and time. An entry is an index into `row`."""

    row: Ints
    thread: Column
    nesting: Nesting
    entry: Ints


class Paths(NamedTuple):
    node: Ints
    parents: Ints
    """Index of the parent of each node, or -1. Parents precede their children."""
    frames: Ints


MAX_LETTERS: Final = 32 << 20
"""Maximum total letters of all stacks or paths of a small trace, to bound the memory. Deep stacks are cut."""
MAX_LETTERS_PER_SLICE: Final = 300
"""Letters to add to `MAX_LETTERS` for each slice of the trace. The longest recorded stack has 825 letters."""


@cached_per_trace
def tree(trace: Trace) -> Tree:
    rows = trace.rows(*HOST)
    thread = trace.thread[rows]
    entry = np.full(len(trace) + 1, -1, np.int64)
    entry[rows] = np.arange(len(rows))
    return Tree(rows, thread, nest(thread, trace.start[rows], trace.end[rows]), entry)


@cached_per_trace
def after(trace: Trace) -> Ints:
    """Return the first entry that starts on the same thread after each entry has ended, or the thread's end index."""
    calls = tree(trace)
    start, next_entry = trace.start[calls.row], np.arange(1, len(calls.row) + 1)
    edges = [*np.flatnonzero(np.diff(calls.thread, prepend=-1)).tolist(), len(calls.row)]
    for first, last in pairwise(edges):
        next_begin = first + np.searchsorted(start[first:last], calls.nesting.end[first:last], "left")
        next_entry[first:last] = np.maximum(
            next_entry[first:last], next_begin
        )  # an entry of zero length is not after itself
    return next_entry


def paths(nesting: Nesting, frame: Ints, skipped: Flags) -> Paths:
    """Number the distinct call paths, parents first. Skipped entries have their parent's path."""
    deepest = int(nesting.depth.max(initial=0))
    numbered = _paths_by_level if len(frame) > 200 * (deepest + 1) else _paths_by_entry
    return numbered(nesting, frame, skipped)


def _paths_by_entry(nesting: Nesting, frame: Ints, skipped: Flags) -> Paths:
    count = int(frame.max(initial=0)) + 1
    numbers: dict[int, int] = {}
    node = [-1] * (len(frame) + 1)
    entry_frames = np.where(skipped, -1, frame).tolist()
    for entry, (parent, own_frame) in enumerate(zip(nesting.parent.tolist(), entry_frames, strict=True)):
        parent_node = node[parent]
        node[entry] = (
            parent_node if own_frame < 0 else numbers.setdefault((parent_node + 1) * count + own_frame, len(numbers))
        )
    parents, frames = np.divmod(np.fromiter(numbers, np.int64, len(numbers)), count)
    return Paths(np.array(node[:-1], np.int64), parents - 1, frames)


def _paths_by_level(nesting: Nesting, frame: Ints, skipped: Flags) -> Paths:
    unskipped = np.flatnonzero(~skipped)
    nearest = np.append(inherited(nesting.parent, np.where(skipped, -1, np.arange(len(frame)))), -1)
    parent_entry, frame = nearest[nesting.parent[unskipped]], frame[unskipped]
    node = np.full(len(nearest), -1, np.int64)
    parents, frames = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    node_count = 0
    for level in _levels(parent_entry, unskipped):
        parent_nodes, parent_index = distinct_places(node[parent_entry[level]] + 1)
        frame_names, frame_index = distinct_places(frame[level])
        pairs, index = distinct_places(parent_index * len(frame_names) + frame_index)
        node[unskipped[level]] = index + node_count
        parents.append(parent_nodes[pairs // len(frame_names)] - 1)
        frames.append(frame_names[pairs % len(frame_names)])
        node_count += len(pairs)
    return Paths(node[nearest[:-1]], np.concatenate(parents), np.concatenate(frames))


def _levels(parent: Ints, entries: Ints) -> Iterator[Ints]:
    index = np.full(int(entries.max(initial=-1)) + 2, -1, np.int64)
    index[entries] = np.arange(len(entries))
    depth = depths(index[parent])
    by_depth = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=0)) + 2))
    for first, last in pairwise(edges.tolist()):
        yield by_depth[first:last]


def summed_up(parents: Ints, values: Column) -> Column:
    total, ancestor = np.append(values, 0), np.append(parents, -1)
    while (ancestor >= 0).any():
        total = total + total.take(ancestor)
        ancestor = ancestor.take(ancestor)
    return total[:-1]


def summed_down(parents: Ints, values: Ints) -> Ints:
    total = values.tolist()
    for node, parent in zip(range(len(total) - 1, -1, -1), reversed(parents.tolist()), strict=True):
        if parent >= 0:
            total[parent] += total[node]
    return np.array(total, np.int64)


def depths(parents: Ints) -> Ints:
    return summed_up(parents, np.ones(len(parents), np.int64)) - 1


def max_letters(trace: Trace) -> int:
    return MAX_LETTERS + MAX_LETTERS_PER_SLICE * len(trace)


def writable_depth(parents: Ints, depth: Ints, length: Ints, max_letters: int) -> int:
    """Return the maximum depth at which all paths together have at most ``max_letters``, without root nodes."""
    if (int(depth.sum()) + len(depth)) * (int(length.max(initial=0)) + 1) <= max_letters:
        return int(depth.max(initial=0))
    path_length = summed_up(parents, (length + 1).astype(np.float64))
    written = np.cumsum(np.bincount(depth, weights=np.where(depth > 0, path_length, 0), minlength=1))
    return int(np.searchsorted(written, max_letters, "right")) - 1


def ancestors(parents: Ints, depth: Ints, max_depth: int) -> Ints:
    """Replace each node deeper than ``max_depth`` by its ancestor at this depth."""
    return inherited(parents, np.where(depth <= max_depth, np.arange(len(parents)), -1))


def joined(parents: Ints, names: list[str], separator: str) -> list[str]:
    texts: list[str] = []
    for parent, name in zip(parents.tolist(), names, strict=True):
        texts.append(f"{texts[parent]}{separator}{name}" if parent >= 0 else name)
    return texts


def innermost(trace: Trace, thread: Column, time: Ints) -> Ints:
    """Return the innermost entry of `tree` on each thread at a time in ns, or -1. An entry includes its end time."""
    calls = tree(trace)
    last_started = last_begun(calls.thread, trace.start[calls.row], thread, time)
    return still_open(calls.nesting, last_started, time)


@cached_per_trace
def launchers(trace: Trace) -> Ints:
    """Return the index in `tree` of the slice that launched each of `Trace.device_rows`, or -1.

    The slice is the launch call; if the trace lacks the call, the operator with the external id of the work.
    """
    launches = trace.launches
    without_launch = np.flatnonzero(launches < 0)
    row = launches.copy()
    row[without_launch] = torch_rules.named_operator(trace, trace.device_rows[without_launch])
    entries: Ints = tree(trace).entry[row]
    return entries
