"""Operator calls that a dispatch mode or a tensor subclass repeats inside themselves, so that both count once."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names.operators import DISPATCHERS
from perfhooks.trace.nesting import host
from perfhooks.trace.nesting.slices import inherited
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Flags, Ints, Trace


@cached_per_trace
def _dispatcher(trace: Trace) -> Ints:
    tree = host.tree(trace)
    is_dispatcher = np.zeros(len(tree.row), np.bool_)
    is_dispatcher[tree.entry[trace.named(Kind.OP, names=DISPATCHERS)]] = True
    innermost = np.append(inherited(tree.nesting.parent, np.where(is_dispatcher, np.arange(len(tree.row)), -1)), -1)
    outer: Ints = innermost[tree.nesting.parent]
    return outer


@cached_per_trace
def _dispatched(trace: Trace) -> Ints:
    tree = host.tree(trace)
    parent = tree.nesting.parent[tree.entry[trace.named(Kind.OP, names=DISPATCHERS)]]
    return tree.row[parent[parent >= 0]]


@cached_per_trace
def again(trace: Trace) -> tuple[Ints, Ints]:
    """Return operators that a Python dispatcher calls again inside a call of the same operator, and the outer calls."""
    tree = host.tree(trace)
    parent, name = np.append(tree.nesting.parent, -1), trace.name[tree.row]
    inner = np.flatnonzero((_dispatcher(trace) >= 0) & (trace.kind[tree.row] == Kind.OP))
    outer = parent[_dispatcher(trace)[inner]]
    while (differing := np.flatnonzero((outer >= 0) & (name[outer] != name[inner]))).size:
        outer[differing] = parent[outer[differing]]
    has_outer = outer >= 0
    return tree.row[inner[has_outer]], tree.row[outer[has_outer]]


def resolved(trace: Trace, rows: Ints, values: Ints) -> tuple[Ints, Flags]:
    """Return the operations or bytes of calls, and which calls are no repetitions.

    If a dispatcher repeats a call, the outer call gets the sum of the repeated calls.
    """
    counts = np.ones(len(rows), np.bool_)
    inner_calls, holder = _inner_calls(trace, rows, values)
    is_dispatched = np.isin(rows, _dispatched(trace))
    total: Ints = values.copy()
    for outer in sorted(inner_calls, reverse=True):
        counts[inner_calls[outer]] = False
        repeated = [call for call in inner_calls[outer] if trace.name[rows[call]] == trace.name[rows[outer]]]
        # a distributed tensor calls the operator first on meta tensors, through another dispatcher
        local = [call for call in repeated if not is_dispatched[call]] or repeated[-1:]
        call = outer if local else -1
        while call >= 0 and values[call] == values[outer]:
            total[call] = sum(total[inner] for inner in local)
            call = holder[call]
    return total, counts


def _inner_calls(trace: Trace, rows: Ints, values: Ints) -> tuple[dict[int, list[int]], list[int]]:
    """Return the calls inside the dispatcher of each outer call, and the innermost call around each call."""
    if not (_dispatcher(trace) >= 0).any():
        return {}, []
    tree, dispatcher = host.tree(trace), np.append(_dispatcher(trace), -1)
    entry, parent = tree.entry[rows], np.append(tree.nesting.parent, -1)
    index = np.full(len(tree.row), -1, np.int64)
    index[entry[values > 0]] = np.flatnonzero(values > 0)
    nearest = np.append(inherited(tree.nesting.parent, index), -1)
    outer_call = nearest[parent[entry]]
    is_same = dispatcher[entry[outer_call]] == dispatcher[entry]
    holder = np.where((outer_call >= 0) & is_same, outer_call, -1)
    outer = np.where(dispatcher[entry] >= 0, nearest[parent[dispatcher[entry]]], -1)
    calls = defaultdict(list)
    for call in np.flatnonzero((outer >= 0) & (values > 0)).tolist():
        calls[int(outer[call])].append(call)
    return dict(calls), holder.tolist()
