from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import attribution, operators
from perfhooks.trace.names.origins import PREFERENCE
from perfhooks.trace.nesting import host, intervals, step_marks
from perfhooks.trace.nesting.slices import nearest
from perfhooks.trace.once import cached_per_trace
from perfhooks.trace.tables.step_columns import where

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.names.origins import Owners

BEFORE: Final = "before the recording"
OUTSIDE: Final = "(outside)"

# c10's DeviceType, by the names of torch.device
_DEVICE_TYPES: Final = (
    *("cpu", "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip", "fpga", "maia", "xla", "vulkan", "metal", "xpu"),
    *("mps", "meta", "hpu", "ve", "lazy", "ipu", "mtia", "privateuseone"),
)

_BYTES: Final = dict.fromkeys(("allocated_bytes", "reserved_bytes"), pl.Int64)
_OVER_TIME: Final = {"time_ms": pl.Float64, "device": pl.String, **_BYTES}
_PEAK: Final = {"device": pl.String, "time_ms": pl.Float64, "step": pl.Int64, **_BYTES}
_ALIVE: Final = {
    **dict.fromkeys(("device", "operator", "source"), pl.String),
    **dict.fromkeys(("count", "bytes"), pl.Int64),
}


class _Usage(NamedTuple):
    device: str
    is_host: bool
    event: Ints
    allocated: Ints


def over_time(trace: Trace) -> pl.DataFrame:
    """Return the memory of each device after every allocation and release, sorted by device and time.

    Values are totals of the allocator. For torch before 1.10, which records no totals, ``allocated_bytes`` is the
    change since the recording began.
    """
    frames = [pl.DataFrame(schema=_OVER_TIME)]
    for usage in _usages(trace):
        columns = {
            "time_ms": _since_start(trace, trace.instants.time[usage.event]),
            "device": pl.Series([usage.device], dtype=pl.String).new_from_index(0, len(usage.event)),
            "allocated_bytes": usage.allocated,
            "reserved_bytes": None if usage.is_host else _total_column(trace.instants.reserved[usage.event]),
        }
        frames.append(pl.DataFrame(columns, schema=_OVER_TIME))
    return pl.concat(frames)


def _total_column(values: Ints) -> pl.Series:
    return where(values >= 0, values)


def thinned(table: pl.DataFrame, rows: int = 2000) -> pl.DataFrame:
    """Reduce `over_time` to about ``rows`` rows per device: the first, lowest and highest row of each section."""
    row_numbers, begin = [np.empty(0, np.int64)], 0
    for length in table["device"].rle().struct.field("len").to_list():
        level = table["allocated_bytes"][begin : begin + length].to_numpy()
        row_numbers.append(begin + _extreme_rows(level, rows))
        begin += length
    return table[np.concatenate(row_numbers)]


def _extreme_rows(level: Ints, rows: int) -> Ints:
    count = len(level)
    if count <= rows:
        return np.arange(count)
    section = np.arange(count) * max(rows // 3, 1) // count
    begins = np.flatnonzero(np.diff(section, prepend=-1))
    selected = [begins, np.array([count - 1])]
    for extreme in (np.minimum, np.maximum):
        extremes = np.flatnonzero(level == extreme.reduceat(level, begins)[section])
        selected.append(extremes[np.searchsorted(extremes, begins)])
    return intervals.distinct(*selected)


def peak(trace: Trace) -> pl.DataFrame:
    """Return the first peak of allocated memory of each device, and the maximum reserved memory."""
    rows = []
    marks = step_marks.find(trace)
    for usage in _usages(trace):
        top = int(usage.allocated.argmax())
        time = trace.instants.time[usage.event[top : top + 1]]
        step = int(step_marks.step_of(marks, time)[0])
        reserved = None if usage.is_host else _total_column(trace.instants.reserved[usage.event]).max()
        number = marks.number[step] if step >= 0 else None
        rows.append((usage.device, _since_start(trace, time)[0], number, int(usage.allocated[top]), reserved))
    return pl.DataFrame(rows, schema=_PEAK, orient="row")


def alive_at_peak(trace: Trace, *, owners: Owners = ()) -> pl.DataFrame:
    """Return the allocations alive at the peak of each device, most bytes first.

    ``operator`` is the innermost operator on the thread of the allocation that does more than allocate memory.
    ``source`` is the innermost Python function, if possible of the user. The row ``before the recording`` has earlier
    allocations, so the bytes of a device sum to `peak`.
    """
    frames = [pl.DataFrame(schema=_ALIVE)]
    for usage in _usages(trace):
        top = int(usage.allocated.argmax())
        events = _alive_events(trace, usage.event[: top + 1])
        operator, source = _allocation_sources(trace, events, owners)
        sizes = {"operator": operator, "source": source, "bytes": trace.instants.size[events]}
        grouped = (
            pl.DataFrame(sizes, schema={name: _ALIVE[name] for name in sizes})
            .group_by("operator", "source")
            .agg(pl.len().cast(pl.Int64).alias("count"), pl.col("bytes").sum())
        )
        # arrays, because damaged sizes beyond 63 bits overflow there without an error
        unrecorded_bytes = usage.allocated[top : top + 1] - np.array([grouped["bytes"].sum()])
        unrecorded = pl.DataFrame({"operator": [BEFORE], "bytes": unrecorded_bytes}).head(int(unrecorded_bytes.any()))
        table = pl.concat([grouped, unrecorded], how="diagonal").select(
            pl.lit(usage.device).alias("device"), *list(_ALIVE)[1:]
        )
        frames.append(table.sort("bytes", "operator", "source", descending=[True, False, False]))
    return pl.concat(frames)


@cached_per_trace
def _usages(trace: Trace) -> Sequence[_Usage]:
    return list(_iterate_usages(trace))


def _iterate_usages(trace: Trace) -> Iterator[_Usage]:
    events = trace.instants
    pairs = np.stack([events.device_type, events.device])
    begins = np.flatnonzero(np.append(True, (pairs[:, 1:] != pairs[:, :-1]).any(axis=0))[: pairs.shape[1]])
    devices, run = np.unique(pairs[:, begins], axis=1, return_inverse=True)
    index = np.repeat(run.ravel(), np.diff(begins, append=pairs.shape[1]))
    counts = np.bincount(index, minlength=devices.shape[1])
    of_each = np.split(np.argsort(index, kind="stable"), np.cumsum(counts)[:-1])
    for device in np.sort(np.argsort(-counts, kind="stable")[:64]).tolist():
        kind, number = devices[:, device].tolist()
        device_events = of_each[device]
        with_total = device_events[events.allocated[device_events] >= 0]
        name = _DEVICE_TYPES[kind] if 0 <= kind < len(_DEVICE_TYPES) else f"device-{kind}"
        name = name if number < 0 else f"{name}:{number}"
        if len(with_total):
            yield _Usage(name, kind == 0, with_total, events.allocated[with_total])
        else:
            yield _Usage(name, kind == 0, device_events, np.cumsum(events.size[device_events]))


def _since_start(trace: Trace, time: Ints) -> Ints:
    first = min(times.min() for times in (trace.start, trace.instants.time) if len(times))
    since: Ints = (time - first) / 1_000_000
    return since


def _alive_events(trace: Trace, events: Ints) -> Ints:
    address = trace.instants.address[events]
    order = np.argsort(address, kind="stable")
    last = np.append(address[order][1:] != address[order][:-1], True)[: len(order)]
    ends = np.sort(events[order[last]])
    alive: Ints = ends[trace.instants.size[ends] > 0]
    return alive


def _allocation_sources(trace: Trace, events: Ints, owners: Owners) -> tuple[list[str], list[str | None]]:
    tree = host.tree(trace)
    parent, kind, name = tree.nesting.parent, trace.kind[tree.row], trace.name[tree.row]
    entry = host.innermost(trace, trace.instants.thread[events], trace.instants.time[events])
    hands_out = np.array([bool(operators.ALLOCATORS.search(text)) for text in trace.names] or [False])[name]
    is_op = kind == Kind.OP
    operator = _nearest_names(parent, entry, name, (is_op & ~hands_out, is_op))
    names = [*trace.names, None]
    return [names[number] or OUTSIDE for number in operator], _source_lines(trace, entry, owners)


def _source_lines(trace: Trace, entry: Ints, owners: Owners) -> list[str | None]:
    tree = host.tree(trace)
    is_frame, name = trace.kind[tree.row] == Kind.PYTHON, trace.name[tree.row]
    around = []
    for origins in PREFERENCE:
        is_candidate = is_frame & attribution.names_of(trace, origins, owners)[name]
        around.append(np.append(tree.row, -1)[nearest(tree.nesting.parent, entry, is_candidate)].tolist())
    return [attribution.describe_frames(trace, *entries) for entries in zip(*around, strict=True)]


def _nearest_names(parent: Ints, entry: Ints, name: Ints, choices: tuple[np.ndarray, ...]) -> list[int]:
    innermost = np.full(len(entry), -1, np.int64)
    for is_candidate in choices:
        innermost = np.where(innermost >= 0, innermost, np.append(name, -1)[nearest(parent, entry, is_candidate)])
    return [int(name_number) for name_number in innermost]
