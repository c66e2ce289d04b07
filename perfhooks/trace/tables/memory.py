"""Memory over time, and who had allocated what was alive at the peak."""

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
"""The row of what was allocated at the peak, but not while the trace was recorded."""
OUTSIDE: Final = "(outside)"
"""The operator of what was allocated while none ran."""

_MS: Final = 1_000_000  # nanoseconds in a millisecond
# c10's DeviceType, in the words of torch.device
_DEVICE_TYPES: Final = (
    *("cpu", "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip", "fpga", "maia", "xla", "vulkan", "metal", "xpu"),
    *("mps", "meta", "hpu", "ve", "lazy", "ipu", "mtia", "privateuseone"),
)
_MOST_DEVICES: Final = 64
"""Of one process; four times what the largest machines have."""

_BYTES: Final = dict.fromkeys(("allocated_bytes", "reserved_bytes"), pl.Int64)
_OVER_TIME: Final = {"time_ms": pl.Float64, "device": pl.String, **_BYTES}
_PEAK: Final = {"device": pl.String, "time_ms": pl.Float64, "step": pl.Int64, **_BYTES}
_ALIVE: Final = {
    **dict.fromkeys(("device", "operator", "source"), pl.String),
    **dict.fromkeys(("count", "bytes"), pl.Int64),
}


class _Usage(NamedTuple):
    """The memory events of one device, by time."""

    device: str
    is_host: bool
    event: Ints
    """Which of `Trace.instants`."""
    allocated: Ints
    """Bytes allocated after each."""


def over_time(trace: Trace) -> pl.DataFrame:
    """Give the memory of each device after every allocation and release, by device and time.

    ``time_ms`` counts from the first event of the trace, ``device`` is torch's name (``cpu``, ``cuda:0``),
    ``allocated_bytes`` is what its allocator has handed out and ``reserved_bytes`` what it holds (null for the host,
    where torch does not count it). Both are the allocator's own totals, so on a device they include what was allocated
    before the recording; torch's allocator of the host counts only while it is recorded. In traces without totals (of
    torch before 1.10), ``allocated_bytes`` is the sum since the recording began.
    """
    frames = [pl.DataFrame(schema=_OVER_TIME)]
    for usage in _usages(trace):
        columns = {
            "time_ms": _since_start(trace, trace.instants.time[usage.event]),
            "device": pl.Series([usage.device], dtype=pl.String).new_from_index(0, len(usage.event)),
            "allocated_bytes": usage.allocated,
            "reserved_bytes": None if usage.is_host else _known(trace.instants.reserved[usage.event]),
        }
        frames.append(pl.DataFrame(columns, schema=_OVER_TIME))
    return pl.concat(frames)


def _known(values: Ints) -> pl.Series:
    """Return totals of an allocator as a column; it writes -1 for one that it does not count."""
    return where(values >= 0, values)


def thinned(table: pl.DataFrame, rows: int = 2000) -> pl.DataFrame:
    """Keep about ``rows`` rows of `over_time` a device: of every stretch the first, the least and the greatest.

    A drawing of what is kept looks the same, and the peak is in it.

    Args:
        table: what `over_time` gives.
        rows: how many rows to keep for each device, at least; three for each stretch.
    """
    kept, begin = [np.empty(0, np.int64)], 0
    for length in table["device"].rle().struct.field("len").to_list():
        level = table["allocated_bytes"][begin : begin + length].to_numpy()
        kept.append(begin + _telling(level, rows))
        begin += length
    return table[np.concatenate(kept)]


def _telling(level: Ints, rows: int) -> Ints:
    """The places of the first, the least and the greatest level of every stretch, and of the last of all."""
    count = len(level)
    if count <= rows:
        return np.arange(count)
    stretch = np.arange(count) * max(rows // 3, 1) // count
    begins = np.flatnonzero(np.diff(stretch, prepend=-1))
    kept = [begins, np.array([count - 1])]
    for extreme in (np.minimum, np.maximum):
        extremes = np.flatnonzero(level == extreme.reduceat(level, begins)[stretch])
        kept.append(extremes[np.searchsorted(extremes, begins)])  # of several equal ones the first
    return intervals.distinct(*kept)


def peak(trace: Trace) -> pl.DataFrame:
    """Say for each device when its allocated memory was highest, and how high: one row for each.

    ``time_ms`` counts from the first event of the trace, ``step`` is the step in which it was (null outside of any),
    ``allocated_bytes`` the peak, the first of several equal ones, and ``reserved_bytes`` what the allocator held at
    most (null for the host); as in `over_time`.
    """
    rows = []
    every = step_marks.find(trace)
    for usage in _usages(trace):
        top = int(usage.allocated.argmax())
        time = trace.instants.time[usage.event[top : top + 1]]
        step = int(step_marks.step_of(every, time)[0])
        reserved = None if usage.is_host else _known(trace.instants.reserved[usage.event]).max()
        number = every.number[step] if step >= 0 else None
        rows.append((usage.device, _since_start(trace, time)[0], number, int(usage.allocated[top]), reserved))
    return pl.DataFrame(rows, schema=_PEAK, orient="row")


def alive_at_peak(trace: Trace, *, owners: Owners = ()) -> pl.DataFrame:
    """Say for each device who had allocated the memory that was alive at its peak, most bytes first.

    One row for each ``operator`` and, where Python frames were recorded, ``source``: ``count`` allocations of
    ``bytes`` together that were not released before the peak. The operator is the innermost that ran on the thread of
    the allocation, but for those that only hand out memory (``aten::empty`` and its like) the one that called them;
    what was allocated while no operator ran is ``(outside)``. The source is the innermost Python function of the
    user, as ``file.py(12): function`` with its first line, and of an installed package where it runs in one
    (`whose.lines`); else the innermost.

    What was allocated at the peak and not by these, a row ``before the recording`` has (with ``count`` null), so that
    the bytes of a device sum to the peak of `peak`, exactly.

    Args:
        trace: any trace.
        owners: whose code is whose, see `perfhooks.trace.names.attribution`.
    """
    frames = [pl.DataFrame(schema=_ALIVE)]
    for usage in _usages(trace):
        top = int(usage.allocated.argmax())
        events = _not_released(trace, usage.event[: top + 1])
        operator, source = _makers(trace, events, owners)
        sizes = {"operator": operator, "source": source, "bytes": trace.instants.size[events]}
        grouped = (
            pl.DataFrame(sizes, schema={name: _ALIVE[name] for name in sizes})
            .group_by("operator", "source")
            .agg(pl.len().cast(pl.Int64).alias("count"), pl.col("bytes").sum())
        )
        # as arrays, for which damaged sizes beyond 63 bits are no error
        rest = usage.allocated[top : top + 1] - np.array([grouped["bytes"].sum()])
        before = pl.DataFrame({"operator": [BEFORE], "bytes": rest}).head(int(rest.any()))
        table = pl.concat([grouped, before], how="diagonal").select(
            pl.lit(usage.device).alias("device"), *list(_ALIVE)[1:]
        )
        frames.append(table.sort("bytes", "operator", "source", descending=[True, False, False]))
    return pl.concat(frames)


@cached_per_trace
def _usages(trace: Trace) -> Sequence[_Usage]:
    """Each device that has memory events; of more than any machine has, those with the most."""
    return list(_each_usage(trace))


def _each_usage(trace: Trace) -> Iterator[_Usage]:
    events = trace.instants
    pairs = np.stack([events.device_type, events.device])
    # most events are of the device of the one before: only where they are not, pairs are compared
    begins = np.flatnonzero(np.append(True, (pairs[:, 1:] != pairs[:, :-1]).any(axis=0))[: pairs.shape[1]])
    devices, run = np.unique(pairs[:, begins], axis=1, return_inverse=True)
    place = np.repeat(run.ravel(), np.diff(begins, append=pairs.shape[1]))
    counts = np.bincount(place, minlength=devices.shape[1])
    of_each = np.split(np.argsort(place, kind="stable"), np.cumsum(counts)[:-1])
    for device in np.sort(np.argsort(-counts, kind="stable")[:_MOST_DEVICES]).tolist():
        kind, number = devices[:, device].tolist()
        mine = of_each[device]
        known = mine[events.allocated[mine] >= 0]
        name = _DEVICE_TYPES[kind] if 0 <= kind < len(_DEVICE_TYPES) else f"device-{kind}"
        name = name if number < 0 else f"{name}:{number}"
        if len(known):
            yield _Usage(name, kind == 0, known, events.allocated[known])
        else:
            yield _Usage(name, kind == 0, mine, np.cumsum(events.size[mine]))


def _since_start(trace: Trace, time: Ints) -> Ints:
    first = min(times.min() for times in (trace.start, trace.instants.time) if len(times))
    since: Ints = (time - first) / _MS
    return since


def _not_released(trace: Trace, events: Ints) -> Ints:
    """Those of some events of one device that are the last of their address, and allocations."""
    address = trace.instants.address[events]
    order = np.argsort(address, kind="stable")
    last = np.append(address[order][1:] != address[order][:-1], True)[: len(order)]
    ends = np.sort(events[order[last]])
    alive: Ints = ends[trace.instants.size[ends] > 0]
    return alive


def _makers(trace: Trace, events: Ints, owners: Owners) -> tuple[list[str], list[str | None]]:
    """The operator and the source of each allocation."""
    tree = host.tree(trace)
    parent, kind, name = tree.nesting.parent, trace.kind[tree.row], trace.name[tree.row]
    entry = host.innermost(trace, trace.instants.thread[events], trace.instants.time[events])
    hands_out = np.array([bool(operators.ALLOCATORS.search(text)) for text in trace.names] or [False])[name]
    is_op = kind == Kind.OP
    operator = _nearest(parent, entry, name, (is_op & ~hands_out, is_op))
    names = [*trace.names, None]
    return [names[number] or OUTSIDE for number in operator], _sources(trace, entry, owners)


def _sources(trace: Trace, entry: Ints, owners: Owners) -> list[str | None]:
    """The line of the user in which each entry lies, as `whose.lines` says it; else that of anybody but us."""
    tree = host.tree(trace)
    is_frame, name = trace.kind[tree.row] == Kind.PYTHON, trace.name[tree.row]
    around = []
    for origins in PREFERENCE:
        wanted = is_frame & attribution.names_of(trace, origins, owners)[name]
        around.append(np.append(tree.row, -1)[nearest(tree.nesting.parent, entry, wanted)].tolist())
    return [attribution.describe_frames(trace, *entries) for entries in zip(*around, strict=True)]


def _nearest(parent: Ints, entry: Ints, name: Ints, choices: tuple[np.ndarray, ...]) -> list[int]:
    """The name of the innermost entry of the first choice that is open around each entry, else of the next, else -1."""
    innermost = np.full(len(entry), -1, np.int64)
    for wanted in choices:
        innermost = np.where(innermost >= 0, innermost, np.append(name, -1)[nearest(parent, entry, wanted)])
    return [int(name_number) for name_number in innermost]
