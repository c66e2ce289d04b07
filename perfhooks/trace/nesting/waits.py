"""Copy calls that block the host although their names say asynchronous."""

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


class BlockingCopies(NamedTuple):
    call: Ints
    copy: Ints
    start: Ints
    """Start of the call plus the cost of a call without a wait, in ns."""
    end: Ints


@cached_per_trace
def blocking(trace: Trace) -> BlockingCopies:
    """Return the copies whose calls blocked the host until the device began the copy.

    CUDA copies pageable memory through a buffer, so even ``cudaMemcpyAsync`` blocks the host ("API synchronization
    behavior" in CUDA's manual). A call counts as blocking if the memory may be pageable and the copy began before the
    call returned.
    """
    work, calls = trace.device_rows, trace.calls
    copies_with_call = np.flatnonzero((trace.kind[work] == Kind.COPY) & (calls >= 0))
    call, first = np.unique(calls[copies_with_call], return_index=True)
    copy = work[copies_with_call][first]
    is_blocking = _may_block(trace, copy) & (trace.start[copy] < trace.end[call])
    is_blocking &= ~np.isin(call, device.wait_calls(trace)) & ~trace.matching(runtime_calls.ASYNCHRONOUS, call)
    call, copy = call[is_blocking], copy[is_blocking]
    start = trace.start[call] + (_call_cost(trace) if len(call) else 0)
    has_wait = start < trace.end[call]
    return BlockingCopies(call[has_wait], copy[has_wait], start[has_wait], trace.end[call][has_wait])


def copy_kinds(trace: Trace, rows: Ints) -> dict[str, list[str | None]]:
    """Return ``kind`` (for example ``HtoD``), and the memory kinds ``source`` and ``target``, of each copy."""
    parts: dict[int, tuple[str | None, ...]] = {}
    for name in intervals.distinct(trace.name[rows]).tolist():
        match = device_work.COPY.search(device_work.LONG_COPY.sub(r"\1to\2", trace.names[name]))
        kind, source, target = match.groups() if match else (None, None, None)
        parts[name] = (kind, source and source.lower(), target and target.lower())
    by_row = [parts[name] for name in trace.name[rows].tolist()]
    return {key: [values[index] for values in by_row] for index, key in enumerate(("kind", "source", "target"))}


def _may_block(trace: Trace, rows: Ints) -> Flags:
    kinds = copy_kinds(trace, rows)
    pairs = zip(kinds["source"], kinds["target"], strict=True)
    return np.array([bool({"pageable", "host", None} & set(pair)) for pair in pairs], np.bool_)


def _call_cost(trace: Trace) -> int:
    """Return the median time in ns of copy calls, or else launches, that return before their device work begins."""
    has_call = trace.calls >= 0
    work, calls = trace.device_rows[has_call], trace.calls[has_call]
    is_early = trace.start[work] >= trace.end[calls]
    for calls_without_wait in (is_early & (trace.kind[work] == Kind.COPY), is_early):
        if calls_without_wait.any():
            return int(np.median((trace.end - trace.start)[calls[calls_without_wait]]))
    return 0
