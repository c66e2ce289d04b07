from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.trace.kinds import Kind
from perfhooks.trace.nesting import device, waits
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.tables.step_columns import since_start, step_numbers, where

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags

_SCHEMA: Final = {
    "step": pl.Int64,
    "start_ms": pl.Float64,
    "device": pl.Int64,
    "stream": pl.String,
    **dict.fromkeys(("kind", "source", "target"), pl.String),
    "bytes": pl.Int64,
    **dict.fromkeys(("duration_ms", "gb_per_s"), pl.Float64),
    "blocking": pl.Boolean,
    "host_ms": pl.Float64,
    "operator": pl.String,
}


def table(trace: Trace) -> pl.DataFrame:
    """List the copies from, to and within devices, earliest first.

    ``source`` or ``target`` is ``host`` if the recorder does not separate pinned from pageable memory. ``blocking`` is
    true if the call always waits, if pageable memory blocked the call (`waits.blocking`), or if the operator waited for
    the device after the call. ``host_ms`` is the time of the call, including the wait.
    """
    work = trace.device_rows
    copies = np.flatnonzero(trace.kind[work] == Kind.COPY)
    copies = copies[np.argsort(trace.start[work[copies]], kind="stable")]
    if not len(copies):
        return pl.DataFrame(schema=_SCHEMA)
    rows, owner = work[copies], device.owners(trace)[copies]
    call, number = trace.calls[copies], device.devices(trace, rows)
    size, span = trace.argument("nbytes")[rows], trace.end[rows] - trace.start[rows]
    columns = {
        "step": step_numbers(trace, device.launch_times(trace)[copies]),
        "start_ms": since_start(trace, trace.start[rows]),
        "device": where(number >= 0, number),
        "stream": [str(trace.threads[thread].tid) for thread in trace.thread[rows]],
        **waits.copy_kinds(trace, rows),
        "bytes": where(size >= 0, size),
        "duration_ms": span * MS,
        "gb_per_s": np.where((size >= 0) & (span > 0), size / np.maximum(span, 1), np.nan),
        "blocking": _is_blocking(trace, trace.launches[copies], call, owner),
        "host_ms": _call_ms(trace, call),
        "operator": list(map(trace.name_of, owner.tolist())),
    }
    return pl.DataFrame(columns, schema_overrides=_SCHEMA, nan_to_null=True).select(*_SCHEMA)


def _call_ms(trace: Trace, call: Ints) -> Column:
    alone = (call >= 0) & ~np.isin(call, device.launch_calls(trace))
    return np.where(alone, (trace.end - trace.start)[call] * MS, np.nan)


def _is_blocking(trace: Trace, launch: Ints, call: Ints, owner: Ints) -> pl.Series:
    synchronising = device.wait_calls(trace)
    is_waiting = np.isin(call, synchronising) | _has_later_wait(trace, synchronising, launch, owner)
    is_waiting |= np.isin(call, waits.blocking(trace).call)
    return where((launch >= 0) & bool(len(trace.rows(Kind.RUNTIME))), is_waiting)


def _has_later_wait(trace: Trace, calls: Ints, launch: Ints, owner: Ints) -> Flags:
    if not len(calls):
        return np.zeros(len(launch), np.bool_)
    # slices are sorted, so the first wait after the launch is the next row among the waits
    next_index = np.searchsorted(calls, launch, "right")
    first = calls[np.minimum(next_index, len(calls) - 1)]
    is_on_thread: Column = (next_index < len(calls)) & (trace.thread[first] == trace.thread[launch])
    is_inside = (owner >= 0) & (trace.kind[owner] == Kind.OP) & (trace.start[first] < trace.end[owner])
    operator = device.holders(trace, first, trace.rows(Kind.OP))
    is_around = (operator >= 0) & (trace.start[operator] <= trace.start[launch])
    has_wait: Flags = is_on_thread & (is_inside | is_around)
    return has_wait
