"""Which operator of the forward pass made which node of the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names.ranges import NODE
from perfhooks.trace.nesting import host
from perfhooks.trace.nesting.slices import inherited
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags


class Nodes(NamedTuple):
    """The autograd nodes among the entries of `host.tree`."""

    entry: Ints
    """Which entries are nodes, ascending."""
    inside: Ints
    """For each entry, the innermost node that holds it, or is it, or -1; entries."""
    source: Ints
    """For each entry that is a node, the operator that made it, or -1; entries. -1 for all other entries."""


@cached_per_trace
def find(trace: Trace) -> Nodes:
    """The nodes of a trace and what made them.

    That is the operator at the other end of the forward-backward link, else the last one before the node that bears its
    sequence number (which is how Kineto makes the links). Nodes that accumulate gradients have neither.
    """
    tree = host.tree(trace)
    is_node = (trace.kind[tree.row] == Kind.OP) & named(trace, NODE)[trace.name[tree.row]]
    entries = np.flatnonzero(is_node)
    inside = inherited(tree.nesting.parent, np.where(is_node, np.arange(len(is_node)), -1))
    source = _linked(trace, inside)
    unlinked = entries[source[entries] < 0]
    source[unlinked] = _of_same_number(trace, unlinked, inside)
    return Nodes(entries, inside, source)


def named(trace: Trace, prefix: str) -> Flags:
    """Which of `Trace.names` begin so; at least one value."""
    return np.array([name.startswith(prefix) for name in trace.names] or [False], np.bool_)


def _linked(trace: Trace, inside: Ints) -> Ints:
    """The operator of each node by the links of the trace."""
    source = np.full(len(inside), -1, np.int64)
    flows = trace.flows
    operator = host.innermost(trace, flows.thread, flows.time)
    node = np.append(inside, -1)[host.innermost(trace, flows.backward_thread, flows.backward_time)]
    known = (operator >= 0) & (node >= 0)
    source[node[known]] = operator[known]
    return source


def _of_same_number(trace: Trace, nodes: Ints, inside: Ints) -> Ints:
    """For some nodes, the last operator before each that bears its sequence number, or -1."""
    tree = host.tree(trace)
    number = trace.argument("sequence")[tree.row]
    in_forward = trace.argument("forward_thread")[tree.row] <= 0
    operators = np.flatnonzero((number >= 0) & in_forward & (inside < 0))
    both = np.concatenate([operators, nodes])
    if not len(operators):
        return np.full(len(nodes), -1, np.int64)
    order = np.lexsort((trace.start[tree.row[both]], number[both]))
    last = np.maximum.accumulate(np.where(order < len(operators), np.arange(len(order)), -1))
    before = both[order[last]]
    same = (last >= 0) & (number[before] == number[both[order]])
    source = np.empty(len(both), np.int64)
    source[order] = np.where(same, before, -1)
    return np.where(number[nodes] >= 0, source[len(operators) :], -1)
