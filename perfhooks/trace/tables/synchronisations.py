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
    """List the waits of the host for a device, and of a stream for another stream, earliest first: one row each.

    Rows are runtime calls that synchronise, copy calls that block (`waits.blocking`), and ``cuda_sync`` events. A call
    and a ``cuda_sync`` event with the same correlation id are one row. If no runtime calls were traced, calls of
    `operators.READERS` are the waits.

    ``host_ms`` is the time for which the call blocked the host; for a copy, minus the cost of a call that does not
    block. ``device_ms`` is the time of the ``cuda_sync`` event. ``operator`` is the outermost operator around the call.
    """
    wait_calls, copies_with_wait = _waiting_calls(trace), waits.blocking(trace)
    calls = np.concatenate([wait_calls, copies_with_wait.call])
    reported = trace.rows(Kind.SYNC)
    # an event without a waiting call is a separate row
    report = _same_correlation(trace, calls, reported)
    separate = reported[~np.isin(reported, report)]
    if not len(calls) + len(separate):
        return pl.DataFrame(schema=_SCHEMA)
    rows, report = np.concatenate([calls, separate]), np.concatenate([report, separate])
    call_or_none = np.concatenate([calls, _same_correlation(trace, separate, trace.rows(Kind.RUNTIME))])
    operator = _outermost_operators(trace, call_or_none)
    call = np.where(call_or_none >= 0, call_or_none, rows)
    copies = slice(len(wait_calls), len(calls))
    start, size = trace.start[call], np.full(len(call), -1)
    start[copies], size[copies] = copies_with_wait.start, trace.argument("nbytes")[copies_with_wait.copy]
    kinds = [word(trace.text(index)) for index in np.append(trace.argument("sync_kind"), -1)[report]]
    kinds[copies] = [kind or _BLOCKING for kind in kinds[copies]]
    columns = {
        "step": step_numbers(trace, start),
        "start_ms": since_start(trace, start),
        "call": list(map(trace.name_of, call.tolist())),
        "kind": kinds,
        "host_ms": where(np.arange(len(call)) < len(calls), (trace.end[call] - start) * MS),
        "device_ms": where(report >= 0, (trace.end - trace.start)[report] * MS),
        "operator": list(map(trace.name_of, operator.tolist())),
        "line": attribution.lines(trace, np.where(operator >= 0, operator, call_or_none), owners, otherwise=True),
        "bytes": where(size >= 0, size),
    }
    return pl.DataFrame(columns, schema=_SCHEMA, strict=False).sort("start_ms", maintain_order=True)


def _waiting_calls(trace: Trace) -> Ints:
    if len(trace.rows(Kind.RUNTIME)) or not trace.is_device_traced:
        return device.outermost_waits(trace)
    readers = trace.named(Kind.OP, names=operators.READERS)
    outer = device.holders(trace, readers, readers) if len(readers) else readers
    return readers[outer < 0]


def _same_correlation(trace: Trace, rows: Ints, candidates: Ints) -> Ints:
    return by_number(trace.correlation, candidates).of(trace.correlation[rows])


def _outermost_operators(trace: Trace, calls: Ints) -> Ints:
    ops = trace.rows(Kind.OP)
    operator = np.full(len(calls), -1, np.int64)
    has_call = np.flatnonzero(calls >= 0)
    if not len(ops) or not len(has_call):
        return operator
    rows = calls[has_call]
    named = torch_rules.named_operator(trace, rows)
    # calls outside of operators may have the external id of an unrelated operator
    is_around = (trace.kind[named] == Kind.OP) & (trace.start[named] <= trace.start[rows])
    is_around &= (named >= 0) & (trace.end[named] >= trace.start[rows])
    inner = np.where(is_around, named, device.holders(trace, rows, ops))
    inner = np.where(trace.kind[rows] == Kind.OP, rows, inner)
    ops = intervals.distinct(device.around(trace, inner[inner >= 0], ops), inner[inner >= 0])
    if not len(ops):
        return operator
    root = outermost(nest(trace.thread[ops], trace.start[ops], trace.end[ops]).parent)
    outer = ops[root[np.minimum(np.searchsorted(ops, inner), len(ops) - 1)]]
    operator[has_call] = np.where(inner >= 0, outer, -1)
    return operator
