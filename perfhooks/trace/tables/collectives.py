"""The table of collectives: how much each one moved, how fast, and how much of it no computation hid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names.communication import LABEL, ON_HOST, RECORD
from perfhooks.trace.names.messages import Message, messages, operation
from perfhooks.trace.nesting import device, intervals
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.nesting.slices import nest, outermost
from perfhooks.trace.once import cached_per_trace
from perfhooks.trace.tables.step_columns import since_start, step_numbers, where

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags

_BUS_SHARE: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_BUS_ALL: Final = ("broadcast", "reduce", "send", "recv", "send_recv")

_SCHEMA: Final = {
    "step": pl.Int64,
    "start_ms": pl.Float64,
    **dict.fromkeys(("operation", "name", "backend", "group", "group_description"), pl.String),
    "group_size": pl.Int64,
    "dtype": pl.String,
    "bytes": pl.Int64,
    **dict.fromkeys(("duration_ms", "exposed_ms", "algorithm_gb_per_s", "bus_gb_per_s"), pl.Float64),
    "device": pl.Int64,
    "stream": pl.String,
}


class _Sources(NamedTuple):
    """Where to read about each collective; one entry for each row of the table, -1 where there is none."""

    row: Ints
    """What took the time: a kernel, or a range on the host."""
    record: Ints
    """The slice with the arguments of a collective."""
    label: Ints
    """The range of the backend around it, whose inputs are the tensors."""


def table(trace: Trace) -> pl.DataFrame:
    """List the collectives, by time: a row for each kernel that communicates, else for each range of the host.

    ``step`` is that in which it was launched; ``start_ms`` counts from the first slice of the trace. ``operation`` is
    ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``reduce``, ``all_to_all``, ``send``, ``recv``,
    ``gather``, ``scatter`` or ``barrier``, by the arguments, else by the label of the backend, by the kernel's name, or
    by the name of the operator around the launch. Ranges of the host (``nccl:...``, ``gloo:...``,
    ``record_param_comms``) are rows where no kernel was launched in them: those of gloo, MPI and UCC are the
    collective itself, others only ask for it and are rows only if no device was traced. ``group``,
    ``group_description`` and ``group_size`` tell the process group.

    ``duration_ms`` is null where the range was still open when recording ended: torch 2.4 gives it a length of 0.
    ``bytes`` is the size of the message as nccl-tests counts it: the larger of what one rank puts in and what it gets
    out, elements times the size of their type. ``exposed_ms`` is the part of the duration in which no kernel computed,
    on any device of the process; null on the host. With S bytes, n ranks and t the duration, in 10^9 bytes a second,
    by https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md:

    * ``algorithm_gb_per_s`` = S / t
    * ``bus_gb_per_s`` = S / t x 2(n-1)/n for all_reduce; x (n-1)/n for all_gather, reduce_scatter, all_to_all, gather
      and scatter; x 1 for broadcast, reduce, send and recv.

    t includes the wait for other ranks, so both are lower bounds. They are null where a range of the host only asks.

    Args:
        trace: any trace.
    """
    sources = _sources(trace)
    rows = sources.row
    if not len(rows):
        return pl.DataFrame(schema=_SCHEMA)
    span = trace.end[rows] - trace.start[rows]
    told = messages(trace, *sources, operators(trace))
    return pl.DataFrame(
        {
            "step": step_numbers(trace, _asked(trace, rows)),
            "start_ms": since_start(trace, trace.start[rows]),
            **{name: [getattr(each, name) for each in told] for name in Message._fields},
            "duration_ms": np.where((span > 0) | (trace.kind[rows] == Kind.KERNEL), span * MS, np.nan),
            "exposed_ms": _exposed(trace, rows),
            **_bandwidths(told, np.where(_moves(trace, rows), span, 0).tolist()),
            **_places(trace, rows),
        },
        schema_overrides=_SCHEMA,
        strict=False,
        nan_to_null=True,
    ).select(*_SCHEMA)


def of_window(trace: Trace) -> pl.Series:
    """For each row of `table`, whether it was launched since recording began (`device.before_window`).

    Ranks begin to record at different moments: those launched before may be in the trace of one and not of another, and
    have no step to be told apart by. So only the others can be compared between ranks.
    """
    rows = _sources(trace).row
    found = np.ones(len(rows), np.bool_)
    on_device = np.flatnonzero(trace.kind[rows] == Kind.KERNEL)
    found[on_device] = ~device.before_window(trace)[np.searchsorted(trace.device_rows, rows[on_device])]
    return pl.Series(found, dtype=pl.Boolean)


def rows(trace: Trace) -> Ints:
    """Return for each row of `table` the slice that took its time."""
    return _sources(trace).row


@cached_per_trace
def operators(trace: Trace) -> list[str | None]:
    """Return for each row of `table` the name of the operator that launched it.

    That is the innermost one, or label, whose name is that of a collective, else the innermost operator. None for
    ranges of the host.
    """
    rows, work = _sources(trace).row, trace.device_rows
    on_device = np.flatnonzero(trace.kind[rows] == Kind.KERNEL)
    owner = device.owners(trace)[np.searchsorted(work, rows[on_device])]
    known = np.flatnonzero(owner >= 0)
    named = trace.chosen(operation, Kind.OP, Kind.ANNOTATION)
    if len(known) and len(named):
        holder = device.holders(trace, owner[known], named)
        outer = (holder >= 0) & ~np.isin(owner[known], named)
        owner[known[outer]] = holder[outer]
    names: list[str | None] = [None] * len(rows)
    is_told = (owner >= 0) & ((trace.kind[owner] == Kind.OP) | np.isin(owner, named))
    for place, row in zip(on_device[is_told].tolist(), owner[is_told].tolist(), strict=True):
        names[place] = trace.name_of(row)
    return names


@cached_per_trace
def _sources(trace: Trace) -> _Sources:
    marks, record, label = _marks(trace)
    work = trace.device_rows
    chosen = np.flatnonzero(device.communicates(trace))
    kernels = work[chosen]
    mark = _mark_of(trace, marks, device.owners(trace)[chosen], trace.launches[chosen])
    own = np.where(trace.argument("collective")[kernels] >= 0, kernels, np.append(record, -1)[mark])
    host = _host_rows(trace, marks, label, mark)
    found = (
        np.concatenate([kernels, np.where(_runs_on_host(trace, label[host]), label[host], marks[host])]),
        np.concatenate([own, record[host]]),
        np.concatenate([np.append(label, -1)[mark], label[host]]),
    )
    order = np.argsort(trace.start[found[0]], kind="stable")
    return _Sources(*(column[order] for column in found))


def _marks(trace: Trace) -> tuple[Ints, Ints, Ints]:
    """The ranges of collectives on the host; for each, the one with the arguments, and the one with the tensors."""
    wanted = [name == RECORD or bool(LABEL.match(name)) for name in trace.names]
    rows = trace.rows(Kind.OP, Kind.ANNOTATION)
    marks = rows[np.array([*wanted, False])[trace.name[rows]]]
    parent = nest(trace.thread[marks], trace.start[marks], trace.end[marks]).parent
    is_record = np.array([name == RECORD for name in trace.names] or [False])[trace.name[marks]]
    record, label = np.where(is_record, marks, -1), np.where(is_record, -1, marks)
    inner = np.flatnonzero(~is_record & (parent >= 0))[::-1]  # of several, the first shall win
    inner = inner[is_record[parent[inner]]]
    record[inner] = marks[parent[inner]]
    label[parent[inner]] = marks[inner]
    return marks, record, label


def _mark_of(trace: Trace, marks: Ints, owner: Ints, launch: Ints) -> Ints:
    """For each kernel the place of the range that launched it, or -1."""
    found = np.full(len(owner), -1, np.int64)
    if not len(marks):
        return found
    for anchor in (launch, owner):
        known = np.flatnonzero((found < 0) & (anchor >= 0))
        holder = device.holders(trace, anchor[known], marks) if len(known) else anchor[known]
        # one that is a range itself holds the launch
        holder = np.where(np.isin(anchor[known], marks), anchor[known], holder)
        found[known] = np.where(holder >= 0, np.searchsorted(marks, holder), -1)
    return found


def _host_rows(trace: Trace, marks: Ints, label: Ints, used: Ints) -> Ints:
    """The places of those outermost ranges that are collectives themselves, or stand for some that were not traced."""
    if not len(marks):
        return marks
    root = outermost(nest(trace.thread[marks], trace.start[marks], trace.end[marks]).parent)
    outer = intervals.distinct(root)
    free = outer[~np.isin(outer, root[used[used >= 0]])]
    shown: Ints = free[_runs_on_host(trace, label[free]) | (not trace.is_device_traced)]
    # a record may be of something else: the making of a group, a wait
    said = trace.argument("collective")[marks[shown]].tolist()
    return shown[
        [label[each] >= 0 or bool(operation(trace.text(text))) for each, text in zip(shown, said, strict=True)]
    ]


def _runs_on_host(trace: Trace, label: Ints) -> Flags:
    ours = [name.startswith(ON_HOST) for name in trace.names]
    found: Flags = np.array([*ours, False])[np.append(trace.name, len(ours))[label]]
    return found


def _moves(trace: Trace, rows: Ints) -> Flags:
    """Whether each row is the collective itself, not only the call that asks for it."""
    found: Flags = (trace.kind[rows] == Kind.KERNEL) | _runs_on_host(trace, rows)
    return found


def _bandwidths(told: list[Message], span: list[int]) -> dict[str, list[float | None]]:
    plain: list[float | None] = []
    bus: list[float | None] = []
    for message, nanos in zip(told, span, strict=True):
        factor = bus_factor(message.operation, message.group_size)
        speed = message.bytes / nanos if message.bytes and nanos > 0 and message.operation != "barrier" else None
        plain.append(speed)
        bus.append(None if speed is None or factor is None else speed * factor)
    return {"algorithm_gb_per_s": plain, "bus_gb_per_s": bus}


def bus_factor(name: str | None, ranks: int | None) -> float | None:
    """What the algorithm bandwidth of a collective is to be multiplied by, to compare it with that of the hardware.

    Args:
        name: the collective, as in the column ``operation``.
        ranks: the size of the process group.
    """
    if name in _BUS_ALL:
        return 1.0
    if ranks is None or (name != "all_reduce" and name not in _BUS_SHARE):
        return None
    return (2 if name == "all_reduce" else 1) * (ranks - 1) / ranks


def _asked(trace: Trace, rows: Ints) -> Ints:
    """When each row was launched."""
    time: Ints = trace.start[rows].copy()
    work = trace.device_rows
    on_device = np.flatnonzero(trace.kind[rows] == Kind.KERNEL)
    time[on_device] = device.launch_times(trace)[np.searchsorted(work, rows[on_device])]
    return time


def _exposed(trace: Trace, rows: Ints) -> pl.Series:
    work = trace.device_rows[device.classes(trace) == device.CLASSES.index("compute")]
    compute = intervals.of_slices(trace, work)
    start, end = trace.start[rows], trace.end[rows]
    free = (end - start - intervals.within(compute, start, end)) * MS
    return where(trace.kind[rows] == Kind.KERNEL, free)


def _places(trace: Trace, rows: Ints) -> dict[str, pl.Series]:
    on_device = trace.kind[rows] == Kind.KERNEL
    number = np.where(on_device, device.devices(trace, rows), -1)
    streams = [str(trace.threads[thread].tid) for thread in trace.thread[rows]]
    return {"device": where(number >= 0, number), "stream": where(on_device, streams)}
