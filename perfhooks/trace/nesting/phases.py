"""The forward and the backward pass of a step that nobody labelled, from what autograd writes into a trace."""

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
    """Whether a thread has anything of either pass."""
    return len(intervals.clip(_run(trace), *extent)) > 0 or len(_on(trace, thread, _makers(trace))) > 0


def forward(trace: Trace, thread: int, breaks: Ints | None) -> Intervals:
    """The operators of a thread that made a node of autograd, and what lies between them.

    Args:
        trace: any trace.
        thread: that of the step.
        breaks: moments at which something else begins or ends, ascending, so that nothing is joined over them; None
            joins nothing.
    """
    rows = _on(trace, thread, _makers(trace))
    found = intervals.of_slices(trace, rows)
    return found if breaks is None else _joined(found, breaks)


def backward(trace: Trace, thread: int, extent: tuple[int, int], breaks: Ints) -> Intervals:
    """From the first to the last node of autograd, on whatever threads they run, with what lies between.

    Args:
        trace: any trace.
        thread: that of the step; between two nodes of one pass it runs no operator, as it is in the nodes or waits.
        extent: when it is there.
        breaks: moments at which something else begins or ends, ascending.
    """
    found = intervals.clip(_run(trace), *extent)
    if not len(found):
        return found
    return _joined(found, intervals.distinct(breaks, trace.start[_on(trace, thread, _outside(trace))]))


@cached_per_trace
def _makers(trace: Trace) -> Ints:
    """The outermost operators that made a node, on all threads."""
    nodes = autograd.find(trace)
    source = nodes.source[nodes.entry]
    return host.tree(trace).row[intervals.distinct(outermost_operators(trace)[source[source >= 0]])]


@cached_per_trace
def _run(trace: Trace) -> Intervals:
    """When nodes run, on any thread."""
    rows = host.tree(trace).row[autograd.find(trace).entry]
    return intervals.of_slices(trace, rows)


@cached_per_trace
def _outside(trace: Trace) -> Ints:
    """The operators that run in no node."""
    tree = host.tree(trace)
    rows: Ints = tree.row[(trace.kind[tree.row] == Kind.OP) & (autograd.find(trace).inside < 0)]
    return rows


def _on(trace: Trace, thread: int, rows: Ints) -> Ints:
    """Those of some slices, ascending, that lie on a thread."""
    first, last = np.searchsorted(rows, np.searchsorted(trace.thread, [thread, thread + 1]))
    return rows[first:last]


def outermost(trace: Trace, rows: Ints) -> Ints:
    """Those of some slices, ascending, that lie in no other of them."""
    found: Ints = rows[nest(trace.thread[rows], trace.start[rows], trace.end[rows]).depth == 0]
    return found


@cached_per_trace
def outermost_operators(trace: Trace) -> Ints:
    """For each entry of the tree, the outermost operator that holds it or is it; itself where none does."""
    tree = host.tree(trace)
    own = np.where(trace.kind[tree.row] == Kind.OP, np.arange(len(tree.row)), -1)
    return slices.outermost(np.append(inherited(tree.nesting.parent, own), -1)[tree.nesting.parent])


def _joined(found: Intervals, breaks: Ints) -> Intervals:
    """Intervals with the gaps between them closed in which nothing else begins or ends."""
    if not len(found):
        return found
    before, after = found[:-1, 1], found[1:, 0]
    closed = np.searchsorted(breaks, before, "left") == np.searchsorted(breaks, after, "left")
    first = np.flatnonzero(np.concatenate(([True], ~closed)))
    last = np.append(first[1:], len(found)) - 1
    return np.stack([found[first, 0], found[last, 1]], axis=1)
