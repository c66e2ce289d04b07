"""The table of copies: from where to where, how many bytes how fast, and whether the host waited."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.trace import device
from perfhooks.trace.kinds import Kind
from perfhooks.trace.step_columns import MS, since_start, step_numbers

if TYPE_CHECKING:
    from perfhooks.trace.intervals import Flags
    from perfhooks.trace.model import Column, Ints, Trace

# Memcpy HtoD (Pageable -> Device); the kinds are those of CUPTI's and ROCm's activity records
_NAME: Final = re.compile(r"\b([HDAP]to[HDAP])\b(?:.*\((\w+) -> (\w+)\))?")

_SCHEMA: Final = {
    "step": pl.Int64,
    "start_ms": pl.Float64,
    "device": pl.Int64,
    "stream": pl.String,
    **dict.fromkeys(("kind", "source", "target"), pl.String),
    "bytes": pl.Int64,
    **dict.fromkeys(("duration_ms", "gb_per_s"), pl.Float64),
    "blocking": pl.Boolean,
    "operator": pl.String,
}


def table(trace: Trace) -> pl.DataFrame:
    """List the copies that devices made, by time: one row each.

    ``step`` is that in which it was launched; ``start_ms`` counts from the first slice of the trace. ``kind`` is
    ``HtoD``, ``DtoH``, ``DtoD``, ``PtoP`` or ``HtoH``, ``source`` and ``target`` are the kinds of memory (``pageable``,
    ``pinned``, ``device``, ``host`` where the recorder does not tell pinned from pageable), all from the name that
    Kineto gives it. ``gb_per_s`` = bytes / duration, in 10^9 bytes a second.

    ``blocking`` says whether the host waited for it: its call waits by itself (plain ``cudaMemcpy``), or it is a copy
    of pageable memory whose call lasted until the copy was done, or the operator that made it waited for the device
    afterwards, before it ended. Null where the launch is not known. ``operator`` is the one that launched it.

    Args:
        trace: any trace.
    """
    work = trace.device_rows
    chosen = np.flatnonzero(trace.kind[work] == Kind.COPY)
    chosen = chosen[np.argsort(trace.start[work[chosen]], kind="stable")]
    rows, owner = work[chosen], device.owners(trace)[chosen]
    kinds = _kinds(trace, rows)
    size, span = trace.argument("nbytes")[rows], trace.end[rows] - trace.start[rows]
    columns = {
        "step": step_numbers(trace, device.launch_times(trace)[chosen]),
        "start_ms": since_start(trace, trace.start[rows]),
        "device": device.devices(trace, rows),
        "stream": [str(trace.threads[thread].tid) for thread in trace.thread[rows]],
        **kinds,
        "bytes": size,
        "duration_ms": span * MS,
        "gb_per_s": np.where((size >= 0) & (span > 0), size / np.maximum(span, 1), np.nan),
        "blocking": _blocking(trace, trace.launches[chosen], rows, owner, _may_hold(kinds)),
        "operator": [trace.names[trace.name[row]] if row >= 0 else None for row in owner.tolist()],
    }
    found = pl.DataFrame(columns, schema_overrides=_SCHEMA, nan_to_null=True)
    unknown = [pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(name) for name in ("device", "bytes")]
    return found.with_columns(unknown).select(*_SCHEMA)


def _kinds(trace: Trace, rows: Ints) -> dict[str, list[str | None]]:
    parts: dict[int, tuple[str | None, ...]] = {}
    for name in np.unique(trace.name[rows]).tolist():
        match = _NAME.search(trace.names[name])
        kind, source, target = match.groups() if match else (None, None, None)
        parts[name] = (kind, source and source.lower(), target and target.lower())
    found = [parts[name] for name in trace.name[rows].tolist()]
    return {key: [each[place] for each in found] for place, key in enumerate(("kind", "source", "target"))}


def _may_hold(kinds: dict[str, list[str | None]]) -> Flags:
    """Which copies read or write memory that is not known to be pinned, so that even an asynchronous call may wait."""
    pairs = zip(kinds["source"], kinds["target"], strict=True)
    return np.array([bool({"pageable", "host", None} & set(pair)) for pair in pairs], np.bool_)


def _blocking(trace: Trace, launch: Ints, rows: Ints, owner: Ints, may_hold: Flags) -> list[bool | None]:
    if not len(rows):
        return []
    waits = device.wait_calls(trace)
    held = np.isin(launch, waits) | _waited(trace, waits, launch, owner)
    held |= may_hold & (trace.end[launch] >= trace.end[rows])
    return [bool(each) if known else None for each, known in zip(held, launch >= 0, strict=True)]


def _waited(trace: Trace, waits: Ints, launch: Ints, owner: Ints) -> Flags:
    """Whether a call that waits begins after each launch, on its thread, and before the operator around it ends."""
    if not len(waits):
        return np.zeros(len(launch), np.bool_)
    # slices are sorted by thread and start, so the first wait after the launch is the next row among the waits
    after = np.searchsorted(waits, launch, "right")
    first = waits[np.minimum(after, len(waits) - 1)]
    same: Column = (after < len(waits)) & (trace.thread[first] == trace.thread[launch])
    found: Flags = same & (owner >= 0) & (trace.start[first] < trace.end[owner])
    return found
