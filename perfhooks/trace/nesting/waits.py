"""Copies that hold the host: their calls wait for the device, though they are called asynchronous."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import device_work, runtime_calls
from perfhooks.trace.nesting import device, intervals
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags


class Held(NamedTuple):
    """Copies in whose calls the host waited, one entry for each, by call."""

    call: Ints
    """The slice of the runtime call."""
    copy: Ints
    """The slice of the copy."""
    start: Ints
    """From when on the call waited, in nanoseconds: its own start and what such a call costs without a wait."""
    end: Ints
    """Until when: the end of the call."""


@cached_per_trace
def held(trace: Trace) -> Held:
    """The copies in whose calls the host waited for the device.

    CUDA copies from and to pageable memory by way of a buffer of its own, so that ``cudaMemcpyAsync`` returns only when
    all has been read from it or written to it ("API synchronization behavior" of CUDA's manual); ``.item()`` and
    ``.cpu()`` are such copies. A call has waited if the memory is not known to be pinned, and the copy began before the
    call returned::

        host    |---- cudaMemcpyAsync -----|          pageable: the host waits
                 own|~~~~~~ held ~~~~~~~~~~|
        device  |---- earlier work ---||copy|

        host    |call|                                pinned: the call returns, and the copy comes later
        device  |---- earlier work ---||copy|

    Calls that synchronise in any case (`device.wait_calls`) are not listed.

    Args:
        trace: any trace.
    """
    work, calls = trace.device_rows, trace.calls
    chosen = np.flatnonzero((trace.kind[work] == Kind.COPY) & (calls >= 0))
    call, first = np.unique(calls[chosen], return_index=True)
    copy = work[chosen][first]
    waited = _may_hold(trace, copy) & (trace.start[copy] < trace.end[call])
    waited &= ~np.isin(call, device.wait_calls(trace)) & ~trace.matching(runtime_calls.ASYNCHRONOUS, call)
    call, copy = call[waited], copy[waited]
    start = trace.start[call] + (_own_cost(trace) if len(call) else 0)
    longer = start < trace.end[call]
    return Held(call[longer], copy[longer], start[longer], trace.end[call][longer])


def copy_kinds(trace: Trace, rows: Ints) -> dict[str, list[str | None]]:
    """The direction of each copy (``HtoD``) and the kinds of memory, as ``kind``, ``source`` and ``target``."""
    parts: dict[int, tuple[str | None, ...]] = {}
    for name in intervals.distinct(trace.name[rows]).tolist():
        match = device_work.COPY.search(trace.names[name])
        kind, source, target = match.groups() if match else (None, None, None)
        parts[name] = (kind, source and source.lower(), target and target.lower())
    found = [parts[name] for name in trace.name[rows].tolist()]
    return {key: [each[place] for each in found] for place, key in enumerate(("kind", "source", "target"))}


def _may_hold(trace: Trace, rows: Ints) -> Flags:
    """Which copies read or write memory that is not known to be pinned."""
    kinds = copy_kinds(trace, rows)
    pairs = zip(kinds["source"], kinds["target"], strict=True)
    return np.array([bool({"pageable", "host", None} & set(pair)) for pair in pairs], np.bool_)


def _own_cost(trace: Trace) -> int:
    """What a call costs that asks for a copy and returns before it begins, in nanoseconds: the median.

    Where there is none, the same of calls that ask for other work; 0 where there is none of these either.
    """
    known = trace.calls >= 0
    work, calls = trace.device_rows[known], trace.calls[known]
    free = trace.start[work] >= trace.end[calls]
    for chosen in (free & (trace.kind[work] == Kind.COPY), free):
        if chosen.any():
            return int(np.median((trace.end - trace.start)[calls[chosen]]))
    return 0
