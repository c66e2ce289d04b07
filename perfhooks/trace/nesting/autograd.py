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
    entry: Ints
    inside: Ints
    """Innermost autograd node that contains each entry of `host.tree`; a node contains itself. Entries outside of nodes
    have -1.
    """
    source: Ints


@cached_per_trace
def find(trace: Trace) -> Nodes:
    """Return the autograd nodes and the operators that created them.

    The trace links operators to nodes by flow events (``fwdbwd``). A node without such an event belongs to the last
    earlier operator with the same sequence number, as in Kineto. Nodes that accumulate gradients have no operator.
    """
    tree = host.tree(trace)
    is_node = (trace.kind[tree.row] == Kind.OP) & named(trace, NODE)[trace.name[tree.row]]
    entries = np.flatnonzero(is_node)
    inside = inherited(tree.nesting.parent, np.where(is_node, np.arange(len(is_node)), -1))
    source = _linked_operators(trace, inside)
    unlinked = entries[source[entries] < 0]
    source[unlinked] = _operators_by_sequence(trace, unlinked, inside)
    return Nodes(entries, inside, source)


def named(trace: Trace, prefix: str) -> Flags:
    """Return whether each of `Trace.names` begins with the prefix; one False for an empty trace."""
    return np.array([name.startswith(prefix) for name in trace.names] or [False], np.bool_)


def _linked_operators(trace: Trace, inside: Ints) -> Ints:
    source = np.full(len(inside), -1, np.int64)
    flows = trace.flows
    operator = host.innermost(trace, flows.thread, flows.time)
    node = np.append(inside, -1)[host.innermost(trace, flows.backward_thread, flows.backward_time)]
    is_linked = (operator >= 0) & (node >= 0)
    source[node[is_linked]] = operator[is_linked]
    return source


def _operators_by_sequence(trace: Trace, nodes: Ints, inside: Ints) -> Ints:
    tree = host.tree(trace)
    number = trace.argument("sequence")[tree.row]
    in_forward = trace.argument("forward_thread")[tree.row] <= 0
    operators = np.flatnonzero((number >= 0) & in_forward & (inside < 0))
    operators_and_nodes = np.concatenate([operators, nodes])
    if not len(operators):
        return np.full(len(nodes), -1, np.int64)
    order = np.lexsort((trace.start[tree.row[operators_and_nodes]], number[operators_and_nodes]))
    last = np.maximum.accumulate(np.where(order < len(operators), np.arange(len(order)), -1))
    before = operators_and_nodes[order[last]]
    is_match = (last >= 0) & (number[before] == number[operators_and_nodes[order]])
    source = np.empty(len(operators_and_nodes), np.int64)
    source[order] = np.where(is_match, before, -1)
    return np.where(number[nodes] >= 0, source[len(operators) :], -1)
