"""Rules of torch.profiler for its table of operators, one function per rule.

Source: ``torch/autograd/profiler.py`` (``_parse_kineto_results``) and ``torch/autograd/profiler_util.py`` of torch
2.15. The rules are the same since torch 2.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.core.labels import STEP_MARK
from perfhooks.trace.kinds import Kind
from perfhooks.trace.model import Numbered, by_number
from perfhooks.trace.names import ranges
from perfhooks.trace.nesting import intervals
from perfhooks.trace.nesting.slices import outermost
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Instants, Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags

_HOST_TYPES: Final = (0, 2, 5)
_DEVICE_TYPES: Final = (1, 6, 12, 20)


def shown_name(name: str) -> str:
    return f"{STEP_MARK[:-1]}*" if name.startswith(STEP_MARK) else name


def hidden(trace: Trace, rows: Ints) -> Flags:
    return np.array([name in ranges.HIDDEN for name in trace.names] or [False], np.bool_)[trace.name[rows]]


def tree_threads(trace: Trace, rows: Ints) -> Ints:
    """Return the thread of each slice in the tree of calls.

    A runtime call gets the thread of the operator with the same external id; without such an operator, a separate
    thread.
    """
    thread = trace.thread[rows].astype(np.int64)
    calls = np.flatnonzero(trace.kind[rows] == Kind.RUNTIME)
    owner = named_operator(trace, rows[calls])
    if (owner >= 0).any():
        apart = thread[calls] + len(trace.threads)
        thread[calls] = np.where(owner >= 0, trace.thread[owner], apart)
    return thread


def named_operator(trace: Trace, rows: Ints) -> Ints:
    """Return the operator or label with the external id of each slice, or -1."""
    return _by_external_id(trace).of(trace.external[rows])


@cached_per_trace
def _by_external_id(trace: Trace) -> Numbered:
    return by_number(trace.external, trace.rows(Kind.OP, Kind.ANNOTATION))


def merged_into(parent: Ints, name: Column) -> Ints:
    """Return the call into which each call is merged: torch merges an only child with a parent of the same name."""
    children = np.bincount(parent[parent >= 0], minlength=len(parent))
    is_merged = (parent >= 0) & (name[parent] == name) & (children[parent] == 1)
    return outermost(np.where(is_merged, parent, -1))


def memory_within(events: Instants, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the allocated minus the released bytes during each slice, on the host and on devices.

    Torch counts memory events of all threads from the start to the end of the slice.
    """
    first, last = np.searchsorted(events.time, start, "left"), np.searchsorted(events.time, end, "right")
    host, device = (np.concatenate(([0], np.cumsum(size))) for size in memory_sizes(events))
    return host[last] - host[first], device[last] - device[first]


def memory_sizes(events: Instants) -> tuple[Ints, Ints]:
    host = np.where(np.isin(events.device_type, _HOST_TYPES), events.size, 0)
    device = np.where(np.isin(events.device_type, _DEVICE_TYPES), events.size, 0)
    return host, device


def memory_outside(events: Instants, start: Ints, end: Ints) -> Flags:
    """Return which memory events occur outside of all slices, for torch's row ``[memory]``."""
    union = intervals.union(start, end + 1)
    started = np.searchsorted(union[:, 0], events.time, "right")
    is_outside: Flags = started == np.searchsorted(union[:, 1], events.time, "right")
    return is_outside


@cached_per_trace
def shown_names(trace: Trace) -> tuple[list[str], Ints]:
    numbers: dict[str, int] = {}
    indices = [numbers.setdefault(shown_name(name), len(numbers)) for name in trace.names]
    return list(numbers), np.array(indices, np.int64)
