"""The table of synchronisations: where the host waited for a device, for how long, and who made it wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.trace.kinds import Kind
from perfhooks.trace.model import by_number
from perfhooks.trace.names import attribution, operators, torch_rules
from perfhooks.trace.names.messages import word
from perfhooks.trace.nesting import device, intervals, waits
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.nesting.slices import nest, outermost
from perfhooks.trace.tables.step_columns import since_start, step_numbers, where

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.names.origins import Owners

_BLOCKING: Final = "Blocking Copy"
_SCHEMA: Final = {
    "step": pl.Int64,
    "start_ms": pl.Float64,
    **dict.fromkeys(("call", "kind"), pl.String),
    **dict.fromkeys(("host_ms", "device_ms"), pl.Float64),
    **dict.fromkeys(("operator", "line"), pl.String),
    "bytes": pl.Int64,
}


def table(trace: Trace, *, owners: Owners = ()) -> pl.DataFrame:
    """List where the host waited for a device, or one stream for another, by time: one row each.

    Rows are the runtime calls that synchronise (`device.wait_calls`), calls of copies that block (`waits.blocking`),
    and the waits that the device's tracer reports itself (``cuda_sync`` events), joined by correlation where they are
    the same. Where a device was traced but no runtime call was, the operators that need a device's result stand in for
    the calls: `operators.READERS`, of those that nest the outermost.

    ``step`` is that in which it began; ``start_ms`` counts from the first slice of the trace. ``call`` is the call, or
    what stands in for it; ``kind`` the tracer's word for it (``Stream Sync``, ``Stream Wait Event``, ...) or ``Blocking
    Copy``. ``host_ms`` is how long the call held the host, of a copy beyond what such a call costs; null for what does
    not hold it. ``device_ms`` is what the tracer reports. ``operator`` is the outermost operator around the call;
    ``line`` the innermost line of the user around it (see `perfhooks.trace.names.attribution.lines`), else of anybody,
    which takes ``with_stack``; ``bytes`` what a copy that blocks moves.

    Args:
        trace: any trace.
        owners: whose code is whose, see `perfhooks.trace.names.attribution`.
    """
    plain, held = _calls(trace), waits.blocking(trace)
    calls = np.concatenate([plain, held.call])
    reported = trace.rows(Kind.SYNC)
    # a report that belongs to no call that waits is a row of its own, and knows the call that it belongs to
    twin = _twin(trace, calls, reported)
    own = reported[~np.isin(reported, twin)]
    if not len(calls) + len(own):
        return pl.DataFrame(schema=_SCHEMA)
    rows, twin = np.concatenate([calls, own]), np.concatenate([twin, own])
    asked = np.concatenate([calls, _twin(trace, own, trace.rows(Kind.RUNTIME))])
    operator = _operators(trace, asked)
    call = np.where(asked >= 0, asked, rows)
    copies = slice(len(plain), len(calls))
    start, size = trace.start[call], np.full(len(call), -1)
    start[copies], size[copies] = held.start, trace.argument("nbytes")[held.copy]
    kinds = [word(trace.text(index)) for index in np.append(trace.argument("sync_kind"), -1)[twin]]
    kinds[copies] = [kind or _BLOCKING for kind in kinds[copies]]
    columns = {
        "step": step_numbers(trace, start),
        "start_ms": since_start(trace, start),
        "call": list(map(trace.name_of, call.tolist())),
        "kind": kinds,
        "host_ms": where(np.arange(len(call)) < len(calls), (trace.end[call] - start) * MS),
        "device_ms": where(twin >= 0, (trace.end - trace.start)[twin] * MS),
        "operator": list(map(trace.name_of, operator.tolist())),
        "line": attribution.lines(trace, np.where(operator >= 0, operator, asked), owners, otherwise=True),
        "bytes": where(size >= 0, size),
    }
    return pl.DataFrame(columns, schema=_SCHEMA, strict=False).sort("start_ms", maintain_order=True)


def _calls(trace: Trace) -> Ints:
    if len(trace.rows(Kind.RUNTIME)) or not trace.is_device_traced:
        return device.outermost_waits(trace)
    readers = trace.named(Kind.OP, names=operators.READERS)
    outer = device.holders(trace, readers, readers) if len(readers) else readers
    return readers[outer < 0]


def _twin(trace: Trace, rows: Ints, others: Ints) -> Ints:
    """For each row the other that has its correlation, or -1."""
    return by_number(trace.correlation, others).of(trace.correlation[rows])


def _operators(trace: Trace, calls: Ints) -> Ints:
    """The outermost operator around each call, or -1; a call that is an operator is around itself."""
    ops = trace.rows(Kind.OP)
    found = np.full(len(calls), -1, np.int64)
    known = np.flatnonzero(calls >= 0)
    if not len(ops) or not len(known):
        return found
    rows = calls[known]
    named = torch_rules.named_operator(trace, rows)
    # calls outside of operators may bear the number of an unrelated one
    around = (trace.kind[named] == Kind.OP) & (trace.start[named] <= trace.start[rows])
    around &= (named >= 0) & (trace.end[named] >= trace.start[rows])
    inner = np.where(around, named, device.holders(trace, rows, ops))
    inner = np.where(trace.kind[rows] == Kind.OP, rows, inner)
    ops = intervals.distinct(device.around(trace, inner[inner >= 0], ops), inner[inner >= 0])
    if not len(ops):
        return found
    root = outermost(nest(trace.thread[ops], trace.start[ops], trace.end[ops]).parent)
    outer = ops[root[np.minimum(np.searchsorted(ops, inner), len(ops) - 1)]]
    found[known] = np.where(inner >= 0, outer, -1)
    return found
