"""The rules by which torch.profiler makes its table of operators, one function each.

Source: ``torch/autograd/profiler.py`` (``_parse_kineto_results``) and ``torch/autograd/profiler_util.py`` of torch
2.15; the rules themselves have not changed since 2.4.
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

# c10's DeviceType: what torch books as memory of the host, and as memory of "the" device
_HOST_TYPES: Final = (0, 2, 5)  # CPU, MKLDNN, IDEEP
_DEVICE_TYPES: Final = (1, 6, 12, 20)  # CUDA, HIP, XPU, PrivateUse1


def shown_name(name: str) -> str:
    """The name under which an event is counted: all steps are one."""
    return f"{STEP_MARK[:-1]}*" if name.startswith(STEP_MARK) else name


def hidden(trace: Trace, rows: Ints) -> Flags:
    """Which slices the table leaves out."""
    return np.array([name in ranges.HIDDEN for name in trace.names] or [False], np.bool_)[trace.name[rows]]


def tree_threads(trace: Trace, rows: Ints) -> Ints:
    """The thread on which each slice takes part in the tree of calls.

    A runtime call joins the thread of the operator that its external id names. One that names none stays out, for its
    thread is numbered otherwise than that of operators; unless no call names any, which is the fault of the recorder.
    """
    thread = trace.thread[rows].astype(np.int64)
    calls = np.flatnonzero(trace.kind[rows] == Kind.RUNTIME)
    owner = named_operator(trace, rows[calls])
    if (owner >= 0).any():
        apart = thread[calls] + len(trace.threads)
        thread[calls] = np.where(owner >= 0, trace.thread[owner], apart)
    return thread


def named_operator(trace: Trace, rows: Ints) -> Ints:
    """The operator or label whose external id a slice bears, or -1."""
    return _by_external_id(trace).of(trace.external[rows])


@cached_per_trace
def _by_external_id(trace: Trace) -> Numbered:
    return by_number(trace.external, trace.rows(Kind.OP, Kind.ANNOTATION))


def merged_into(parent: Ints, name: Column) -> Ints:
    """The slice as whose part each one is counted: an only child that is named as its parent is no call of its own."""
    children = np.bincount(parent[parent >= 0], minlength=len(parent))
    only = (parent >= 0) & (name[parent] == name) & (children[parent] == 1)
    return outermost(np.where(only, parent, -1))


def memory_within(events: Instants, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Bytes of the host and of devices that were allocated, less those released, while each slice ran.

    By anybody: torch asks for the time only, both ends included, and not for the thread.
    """
    first, last = np.searchsorted(events.time, start, "left"), np.searchsorted(events.time, end, "right")
    host, device = (np.concatenate(([0], np.cumsum(size))) for size in memory_sizes(events))
    return host[last] - host[first], device[last] - device[first]


def memory_sizes(events: Instants) -> tuple[Ints, Ints]:
    """The bytes of each event, for the host and for devices."""
    host = np.where(np.isin(events.device_type, _HOST_TYPES), events.size, 0)
    device = np.where(np.isin(events.device_type, _DEVICE_TYPES), events.size, 0)
    return host, device


def homeless_memory(events: Instants, start: Ints, end: Ints) -> Flags:
    """Which memory events lie in no slice, both ends of a slice included; they make the row ``[memory]``."""
    covered = intervals.union(start, end + 1)
    begun = np.searchsorted(covered[:, 0], events.time, "right")
    homeless: Flags = begun == np.searchsorted(covered[:, 1], events.time, "right")
    return homeless


@cached_per_trace
def shown_names(trace: Trace) -> tuple[list[str], Ints]:
    """The distinct names of the table, and for each name of the trace its place among them."""
    found: dict[str, int] = {}
    places = [found.setdefault(shown_name(name), len(found)) for name in trace.names]
    return list(found), np.array(places, np.int64)
