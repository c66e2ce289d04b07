"""Forward and backward pass of an unlabelled step, inferred from autograd's records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.nesting import autograd, host, intervals, slices
from perfhooks.trace.nesting.slices import inherited, nest
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Intervals


def are_on(trace: Trace, thread: int, extent: tuple[int, int]) -> bool:
    return (
        len(intervals.clip(_node_intervals(trace), *extent)) > 0
        or len(_on_thread(trace, thread, _node_creators(trace))) > 0
    )


def forward(trace: Trace, thread: int, breaks: Ints | None) -> Intervals:
    """Return the intervals of operators that create autograd nodes, and of the gaps between these operators.

    Gaps with one of ``breaks`` (begins and ends of other parts) are excluded. None excludes all gaps.
    """
    rows = _on_thread(trace, thread, _node_creators(trace))
    creating = intervals.of_slices(trace, rows)
    return creating if breaks is None else _close_gaps(creating, breaks)


def backward(trace: Trace, thread: int, extent: tuple[int, int], breaks: Ints) -> Intervals:
    """Return the intervals of autograd nodes on any thread, and of the gaps between these nodes.

    Gaps that contain one of ``breaks`` (see `forward`), or an operator outside of autograd, are excluded.
    """
    running = intervals.clip(_node_intervals(trace), *extent)
    if not len(running):
        return running
    return _close_gaps(running, _ends_of_nodes(trace, thread, breaks))


def backward_in_calls(trace: Trace, thread: int, breaks: Ints) -> Intervals:
    """Return `backward` of the autograd nodes on this thread."""
    nodes = intervals.distinct(host.tree(trace).row[autograd.find(trace).entry])
    running = intervals.of_slices(trace, _on_thread(trace, thread, nodes))
    return _close_gaps(running, _ends_of_nodes(trace, thread, breaks))


@cached_per_trace
def _node_creators(trace: Trace) -> Ints:
    nodes = autograd.find(trace)
    source = nodes.source[nodes.entry]
    return host.tree(trace).row[intervals.distinct(outermost_operators(trace)[source[source >= 0]])]


@cached_per_trace
def _node_intervals(trace: Trace) -> Intervals:
    rows = host.tree(trace).row[autograd.find(trace).entry]
    return intervals.of_slices(trace, rows)


def _ends_of_nodes(trace: Trace, thread: int, breaks: Ints) -> Ints:
    return intervals.distinct(breaks, trace.start[_on_thread(trace, thread, _operators_outside_nodes(trace))])


@cached_per_trace
def _operators_outside_nodes(trace: Trace) -> Ints:
    tree = host.tree(trace)
    rows: Ints = tree.row[(trace.kind[tree.row] == Kind.OP) & (autograd.find(trace).inside < 0)]
    return rows


def _on_thread(trace: Trace, thread: int, rows: Ints) -> Ints:
    first, last = np.searchsorted(rows, np.searchsorted(trace.thread, [thread, thread + 1]))
    return rows[first:last]


def outermost(trace: Trace, rows: Ints) -> Ints:
    roots: Ints = rows[nest(trace.thread[rows], trace.start[rows], trace.end[rows]).depth == 0]
    return roots


@cached_per_trace
def outermost_operators(trace: Trace) -> Ints:
    """Return the outermost operator around each entry of `host.tree`; without one, the entry itself."""
    tree = host.tree(trace)
    own = np.where(trace.kind[tree.row] == Kind.OP, np.arange(len(tree.row)), -1)
    return slices.outermost(np.append(inherited(tree.nesting.parent, own), -1)[tree.nesting.parent])


def _close_gaps(gapped: Intervals, breaks: Ints) -> Intervals:
    if not len(gapped):
        return gapped
    gap_start, gap_end = gapped[:-1, 1], gapped[1:, 0]
    closed = np.searchsorted(breaks, gap_start, "left") == np.searchsorted(breaks, gap_end, "left")
    first = np.flatnonzero(np.concatenate(([True], ~closed)))
    last = np.append(first[1:], len(gapped)) - 1
    return np.stack([gapped[first, 0], gapped[last, 1]], axis=1)
