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
    row: Ints
    """Slice that determines the duration: a kernel or a host range."""
    record: Ints
    label: Ints


def table(trace: Trace) -> pl.DataFrame:
    """List the collectives, earliest first: a row for each communication kernel, or for a host range without kernels.

    Host ranges of gloo, MPI and UCC run the collective. Host ranges of device backends such as NCCL only launch the
    collective, and are listed only if no device was traced. ``duration_ms`` is null if the range was open at the end of
    the recording. ``bytes`` is the larger of the input and the output of one rank. ``exposed_ms`` is the time of the
    collective in which no device of the process computed.

    Bandwidths for S bytes, n ranks and the duration t, in 10^9 bytes per second, by
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md:

    * ``algorithm_gb_per_s`` = S / t
    * ``bus_gb_per_s`` = S / t x 2(n-1)/n for all_reduce; x (n-1)/n for all_gather, reduce_scatter, all_to_all, gather
      and scatter; x 1 for broadcast, reduce, send and recv.

    The duration t includes the wait for other ranks, so both bandwidths are lower bounds.
    """
    sources = _find_sources(trace)
    rows = sources.row
    if not len(rows):
        return pl.DataFrame(schema=_SCHEMA)
    span = trace.end[rows] - trace.start[rows]
    described = messages(trace, *sources, operators(trace))
    return pl.DataFrame(
        {
            "step": step_numbers(trace, _launch_times(trace, rows)),
            "start_ms": since_start(trace, trace.start[rows]),
            **{name: [getattr(message, name) for message in described] for name in Message._fields},
            "duration_ms": np.where((span > 0) | (trace.kind[rows] == Kind.KERNEL), span * MS, np.nan),
            "exposed_ms": _exposed_ms(trace, rows),
            **_bandwidth_columns(described, np.where(_is_transfer(trace, rows), span, 0).tolist()),
            **_device_columns(trace, rows),
        },
        schema_overrides=_SCHEMA,
        strict=False,
        nan_to_null=True,
    ).select(*_SCHEMA)


def of_window(trace: Trace) -> pl.Series:
    """Return which rows of `table` were launched during the recording of this rank."""
    rows = _find_sources(trace).row
    is_in_window = np.ones(len(rows), np.bool_)
    on_device = np.flatnonzero(trace.kind[rows] == Kind.KERNEL)
    is_in_window[on_device] = ~device.before_window(trace)[np.searchsorted(trace.device_rows, rows[on_device])]
    return pl.Series(is_in_window, dtype=pl.Boolean)


def rows(trace: Trace) -> Ints:
    return _find_sources(trace).row


@cached_per_trace
def operators(trace: Trace) -> list[str | None]:
    """Return the operator or label that launched each row of `table`; None for host ranges."""
    rows, work = _find_sources(trace).row, trace.device_rows
    on_device = np.flatnonzero(trace.kind[rows] == Kind.KERNEL)
    owner = device.owners(trace)[np.searchsorted(work, rows[on_device])]
    has_owner = np.flatnonzero(owner >= 0)
    named = trace.chosen(operation, Kind.OP, Kind.ANNOTATION)
    if len(has_owner) and len(named):
        holder = device.holders(trace, owner[has_owner], named)
        outer = (holder >= 0) & ~np.isin(owner[has_owner], named)
        owner[has_owner[outer]] = holder[outer]
    names: list[str | None] = [None] * len(rows)
    is_named = (owner >= 0) & ((trace.kind[owner] == Kind.OP) | np.isin(owner, named))
    for index, row in zip(on_device[is_named].tolist(), owner[is_named].tolist(), strict=True):
        names[index] = trace.name_of(row)
    return names


@cached_per_trace
def _find_sources(trace: Trace) -> _Sources:
    marks, record, label = _host_ranges(trace)
    work = trace.device_rows
    communicating = np.flatnonzero(device.communicates(trace))
    kernels = work[communicating]
    mark = _launching_range(trace, marks, device.owners(trace)[communicating], trace.launches[communicating])
    own_record = np.where(trace.argument("collective")[kernels] >= 0, kernels, np.append(record, -1)[mark])
    host = _independent_ranges(trace, marks, label, mark)
    columns = (
        np.concatenate([kernels, np.where(_runs_on_host(trace, label[host]), label[host], marks[host])]),
        np.concatenate([own_record, record[host]]),
        np.concatenate([np.append(label, -1)[mark], label[host]]),
    )
    order = np.argsort(trace.start[columns[0]], kind="stable")
    return _Sources(*(column[order] for column in columns))


def _host_ranges(trace: Trace) -> tuple[Ints, Ints, Ints]:
    is_range = [name == RECORD or bool(LABEL.match(name)) for name in trace.names]
    rows = trace.rows(Kind.OP, Kind.ANNOTATION)
    marks = rows[np.array([*is_range, False])[trace.name[rows]]]
    parent = nest(trace.thread[marks], trace.start[marks], trace.end[marks]).parent
    is_record = np.array([name == RECORD for name in trace.names] or [False])[trace.name[marks]]
    record, label = np.where(is_record, marks, -1), np.where(is_record, -1, marks)
    inner = np.flatnonzero(~is_record & (parent >= 0))[::-1]  # the first of several labels is written last
    inner = inner[is_record[parent[inner]]]
    record[inner] = marks[parent[inner]]
    label[parent[inner]] = marks[inner]
    return marks, record, label


def _launching_range(trace: Trace, marks: Ints, owner: Ints, launch: Ints) -> Ints:
    ranges = np.full(len(owner), -1, np.int64)
    if not len(marks):
        return ranges
    for anchor in (launch, owner):
        unresolved = np.flatnonzero((ranges < 0) & (anchor >= 0))
        holder = device.holders(trace, anchor[unresolved], marks) if len(unresolved) else anchor[unresolved]
        holder = np.where(np.isin(anchor[unresolved], marks), anchor[unresolved], holder)
        ranges[unresolved] = np.where(holder >= 0, np.searchsorted(marks, holder), -1)
    return ranges


def _independent_ranges(trace: Trace, marks: Ints, label: Ints, launching: Ints) -> Ints:
    if not len(marks):
        return marks
    root = outermost(nest(trace.thread[marks], trace.start[marks], trace.end[marks]).parent)
    outer = intervals.distinct(root)
    unused = outer[~np.isin(outer, root[launching[launching >= 0]])]
    shown: Ints = unused[_runs_on_host(trace, label[unused]) | (not trace.is_device_traced)]
    # other records are the creation of a process group, or a wait
    arguments = trace.argument("collective")[marks[shown]].tolist()
    return shown[
        [label[mark] >= 0 or bool(operation(trace.text(text))) for mark, text in zip(shown, arguments, strict=True)]
    ]


def _runs_on_host(trace: Trace, label: Ints) -> Flags:
    is_host_name = [name.startswith(ON_HOST) for name in trace.names]
    flags: Flags = np.array([*is_host_name, False])[np.append(trace.name, len(is_host_name))[label]]
    return flags


def _is_transfer(trace: Trace, rows: Ints) -> Flags:
    is_collective: Flags = (trace.kind[rows] == Kind.KERNEL) | _runs_on_host(trace, rows)
    return is_collective


def _bandwidth_columns(described: list[Message], span: list[int]) -> dict[str, list[float | None]]:
    algorithm: list[float | None] = []
    bus: list[float | None] = []
    for message, nanos in zip(described, span, strict=True):
        factor = bus_factor(message.operation, message.group_size)
        speed = message.bytes / nanos if message.bytes and nanos > 0 and message.operation != "barrier" else None
        algorithm.append(speed)
        bus.append(None if speed is None or factor is None else speed * factor)
    return {"algorithm_gb_per_s": algorithm, "bus_gb_per_s": bus}


def bus_factor(name: str | None, ranks: int | None) -> float | None:
    if name in _BUS_ALL:
        return 1.0
    if ranks is None or (name != "all_reduce" and name not in _BUS_SHARE):
        return None
    return (2 if name == "all_reduce" else 1) * (ranks - 1) / ranks


def _launch_times(trace: Trace, rows: Ints) -> Ints:
    time: Ints = trace.start[rows].copy()
    work = trace.device_rows
    on_device = np.flatnonzero(trace.kind[rows] == Kind.KERNEL)
    time[on_device] = device.launch_times(trace)[np.searchsorted(work, rows[on_device])]
    return time


def _exposed_ms(trace: Trace, rows: Ints) -> pl.Series:
    work = trace.device_rows[device.classes(trace) == device.CLASSES.index("compute")]
    compute = intervals.of_slices(trace, work)
    start, end = trace.start[rows], trace.end[rows]
    exposed = (end - start - intervals.within(compute, start, end)) * MS
    return where(trace.kind[rows] == Kind.KERNEL, exposed)


def _device_columns(trace: Trace, rows: Ints) -> dict[str, pl.Series]:
    on_device = trace.kind[rows] == Kind.KERNEL
    number = np.where(on_device, device.devices(trace, rows), -1)
    streams = [str(trace.threads[thread].tid) for thread in trace.thread[rows]]
    return {"device": where(number >= 0, number), "stream": where(on_device, streams)}
