"""Operators that a dispatch mode or a subclass of tensors calls again: each is one call, and computes once."""

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
    """Return the innermost dispatcher around each entry of `host.tree`, or -1."""
    tree = host.tree(trace)
    is_dispatcher = np.zeros(len(tree.row), np.bool_)
    is_dispatcher[tree.entry[trace.named(Kind.OP, names=DISPATCHERS)]] = True
    inside = np.append(inherited(tree.nesting.parent, np.where(is_dispatcher, np.arange(len(tree.row)), -1)), -1)
    found: Ints = inside[tree.nesting.parent]
    return found


@cached_per_trace
def again(trace: Trace) -> tuple[Ints, Ints]:
    """Return the operators that are called again within themselves, and for each the call around the dispatcher."""
    tree = host.tree(trace)
    parent, name = np.append(tree.nesting.parent, -1), trace.name[tree.row]
    inner = np.flatnonzero((_dispatcher(trace) >= 0) & (trace.kind[tree.row] == Kind.OP))
    outer = parent[_dispatcher(trace)[inner]]
    while (far := np.flatnonzero((outer >= 0) & (name[outer] != name[inner]))).size:
        outer[far] = parent[outer[far]]
    found = outer >= 0
    return tree.row[inner[found]], tree.row[outer[found]]


def resolved(trace: Trace, rows: Ints, values: Ints) -> tuple[Ints, Flags]:
    """Return what calls compute or move if a dispatcher calls operators within them, and which of them count.

    A call takes the value of the calls of the same operator within its dispatcher. If its tensor is distributed, the
    inner calls are local, and the outer call has the shapes of all ranks. A call within a dispatcher does not count by
    itself if a call around the dispatcher has a value.

    Args:
        trace: Any trace.
        rows: Slices.
        values: What each computes or moves, or -1.
    """
    counts = np.ones(len(rows), np.bool_)
    inner_calls, holder = _inner_calls(trace, rows, values)
    found: Ints = values.copy()
    for outer in sorted(inner_calls, reverse=True):  # the inner calls of a call come behind it
        counts[inner_calls[outer]] = False
        same = [call for call in inner_calls[outer] if trace.name[rows[call]] == trace.name[rows[outer]]]
        # a distributed tensor first calls the operator on tensors without data, within a mode
        local = [call for call in same if call not in inner_calls] or same[-1:]
        call = outer if local else -1
        while call >= 0 and values[call] == values[outer]:  # and its wrappers
            found[call] = sum(found[each] for each in local)
            call = holder[call]
    return found, counts


def _inner_calls(trace: Trace, rows: Ints, values: Ints) -> tuple[dict[int, list[int]], list[int]]:
    """Return the calls with values within dispatchers, by the call around the dispatcher, and the holder of each call.

    The holder of a call is the innermost call with a value around it, with no dispatcher between them, or -1.
    """
    if not (_dispatcher(trace) >= 0).any():
        return {}, []
    tree, dispatcher = host.tree(trace), np.append(_dispatcher(trace), -1)
    entry, parent = tree.entry[rows], np.append(tree.nesting.parent, -1)
    place = np.full(len(tree.row), -1, np.int64)
    place[entry[values > 0]] = np.flatnonzero(values > 0)
    nearest = np.append(inherited(tree.nesting.parent, place), -1)
    around = nearest[parent[entry]]
    is_same = dispatcher[entry[around]] == dispatcher[entry]
    holder = np.where((around >= 0) & is_same, around, -1)
    outer = np.where(dispatcher[entry] >= 0, nearest[parent[dispatcher[entry]]], -1)
    calls = defaultdict(list)
    for call in np.flatnonzero((outer >= 0) & (values > 0)).tolist():
        calls[int(outer[call])].append(call)
    return dict(calls), holder.tolist()
