"""How fast operators and kernels were, and how far from what the device can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import flops, peaks, redispatch, traffic
from perfhooks.trace.limits.datasheets import TYPES
from perfhooks.trace.limits.recorded_calls import per_call
from perfhooks.trace.names import device_work, operators, tensor_types, work_kinds
from perfhooks.trace.nesting import device, host, missing_work
from perfhooks.trace.nesting.grouping import distinct, summed
from perfhooks.trace.nesting.slices import inherited
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.limits.datasheets import Peaks
    from perfhooks.trace.model import Column, Flags, Ints, Trace

COLUMNS: Final = {
    **dict.fromkeys(("tflops_per_s", "gb_per_s", "flops_per_byte", "limit_percent"), pl.Float64),
    "limit": pl.String,
}
"""What tables say of it, see `columns`."""

LIMITS: Final = ("compute", "memory", "latency")
SUMS: Final = (
    *("flops", "flops_ns", "bytes", "bytes_ns", "flops_of_bytes", "bytes_of_flops", "least_ps", "least_ns"),
    *(f"{limit}_ns" for limit in LIMITS),
    *("ceiling_ps", "ceiling_ns"),
)
"""What `columns` needs."""
SHORT_NS: Final = 10_000
"""A kernel that does nothing takes 2 to 3 us on the device; of 10 us that is a quarter."""
FILLED: Final = 0.5
"""Of its limit: what reaches half of it is no matter of latency, however short."""

_WRAPPERS: Final = frozenset((operators.CONV2D, *operators.GENERAL_CONVOLUTIONS, *operators.FUSED_ATTENTION))
"""They call what computes, on tensors that may have been cast before."""
_MULTIPLIES: Final = ("gemms", "convolution", "attention")
_TYPES: Final = {name: place for place, name in enumerate(TYPES)}
_FLOAT32, _TF32, _FLOAT8 = _TYPES["float32"], _TYPES["tf32"], _TYPES["float8"]


class Measured(NamedTuple):
    """Calls of operators of which is known what they compute or move; by thread and time."""

    row: Ints
    """The slice of the trace."""
    flops: Ints
    """Floating point operations, or -1."""
    bytes: Ints
    """Bytes that it moves at least, or -1."""
    type: Column
    """In which it computes, of `datasheets.TYPES`; -1 where that is not known, or it only moves."""
    outer: Ints
    """The innermost of these calls that holds it, or -1."""
    time: Ints
    """Nanoseconds of the work of devices that it launched, with what it called; without a device its own."""
    kernels: Ints
    """How many pieces of such work; without a device 1."""
    of_work: Ints
    """For each of `Trace.device_rows` the innermost of these calls that launched it, or -1."""


@cached_per_trace
def calls(trace: Trace) -> Measured:
    """What a trace shows of that; nothing without recorded shapes."""
    rows = trace.rows(Kind.OP) if "dims" in trace.arguments else np.empty(0, np.int64)
    computed, _ = redispatch.resolved(trace, rows, per_call(trace, rows, flops.COUNTED))
    moved, _ = redispatch.resolved(trace, rows, traffic.per_call(trace, rows))
    chosen = np.flatnonzero((computed > 0) | (moved > 0))
    rows, computed, moved = rows[chosen], np.where(computed > 0, computed, -1)[chosen], moved[chosen]
    tree = host.tree(trace)
    entry, parent = tree.entry[rows], tree.nesting.parent
    place = np.full(len(tree.row) + 1, -1, np.int64)
    place[entry] = np.arange(len(rows))
    holder = np.append(inherited(parent, place[:-1]), -1)
    outer = holder[parent[entry]]
    launched_by = tree.entry[device.owners(trace)]
    of_work = holder[launched_by]
    if trace.is_device_traced:
        time = _with_inner(outer, summed(of_work, device.own_times(trace), len(rows)))
        kernels = _with_inner(outer, np.bincount(of_work[of_work >= 0], minlength=len(rows)))
    else:
        time, kernels = tree.nesting.end[entry] - trace.start[rows], np.ones(len(rows), np.int64)
    kind = _types(trace, rows, computed, of_work)
    for _ in range(_DEEPEST):
        inner = np.flatnonzero((outer >= 0) & (computed > 0) & (computed == np.append(computed, -1)[outer]))
        inner = inner[_is_wrapper(trace)[trace.name[rows[outer[inner]]]]]
        kind[outer[inner]], moved[outer[inner]] = kind[inner], moved[inner]
    moved[np.isin(np.arange(len(rows)), _across_links(trace, of_work, outer))] = -1
    return Measured(rows, computed, moved, kind, outer, time, kernels, of_work)


_DEEPEST: Final = 4
"""``conv2d``, ``convolution``, ``_convolution``, ``cudnn_convolution``."""


def _with_inner(outer: Ints, values: Ints) -> Ints:
    """The value of each call and of all those in it, which follow it; few calls hold another one."""
    total: Ints = values.copy()
    inner = np.flatnonzero(outer >= 0)[::-1]
    for call, holder in zip(inner.tolist(), outer[inner].tolist(), strict=True):
        total[holder] += total[call]
    return total


def _is_wrapper(trace: Trace) -> Flags:
    return np.array([name in _WRAPPERS for name in trace.names] or [False], np.bool_)


def _across_links(trace: Trace, of_work: Ints, outer: Ints) -> Ints:
    """The calls that copy between devices, or a device and the host: no memory limits them, but what lies between."""
    work = trace.device_rows
    is_within = trace.chosen(lambda name: device_work.WITHIN_DEVICE in name, Kind.COPY)
    across = np.flatnonzero((trace.kind[work] == Kind.COPY) & ~np.isin(work, is_within) & (of_work >= 0))
    found = np.unique(of_work[across])
    return np.union1d(found, outer[found])


def _types(trace: Trace, rows: Ints, computed: Ints, of_work: Ints) -> Ints:
    """In which type each call computes: that of its first tensor, and of float32 what its kernels say."""
    text = trace.argument("types")[rows]
    used, place = distinct(text + 1)  # -1 is none
    kind = np.array([_first_type(trace.text(each)) for each in (used - 1).tolist()], np.int64)[place]
    kind[computed <= 0] = -1
    if not trace.is_device_traced:
        return kind
    name, _ = peaks.device(trace)
    known = peaks.of_trace(trace)
    has_tf32 = known is None or "tf32" in known.tflops
    is_told = not has_tf32 or name.startswith("AMD")  # there it has to be asked for in the environment
    single = kind == _FLOAT32
    if single.any():
        tensor = np.isin(np.arange(len(rows)), _calls_of(trace, of_work, device_work.TF32))
        plain = np.isin(np.arange(len(rows)), _calls_of(trace, of_work, device_work.FLOAT32_GEMM)) | is_told
        kind[single] = np.select([tensor, plain], [_TF32, _FLOAT32], -1)[single]
    return kind


def _calls_of(trace: Trace, of_work: Ints, pattern: str) -> Ints:
    """The calls that launched kernels with such names."""
    rows = trace.searched(pattern, Kind.KERNEL)
    return np.unique(of_work[np.searchsorted(trace.device_rows, rows)])


def _first_type(types: object) -> int:
    for spelled in types if isinstance(types, list) else ():
        name = tensor_types.name_of(spelled)
        if name is not None:
            return _FLOAT8 if name.startswith("float8") else _TYPES.get(name, -1)
    return -1


def columns(sums: dict[str, Ints]) -> dict[str, pl.Series]:
    """Say how fast something was, from the sums of `of_calls` or `of_work`.

    ``tflops_per_s`` are 10^12 floating point operations a second, over the calls of which they are known: products of
    matrices, convolutions and attention (`flops.COUNTED`), causal attention in full. ``gb_per_s`` are 10^9 bytes a
    second, over the calls of which is known what they move at least (`traffic`), ``flops_per_byte`` both. Time is that
    of the work of devices that these calls launched; where no device was traced, of the calls.

    ``limit_percent`` is the time that the device needs at least, of the time that it took: operations by the peak of
    their type, or bytes by that of memory, whichever takes longer (the roofline model of Williams, Waterman and
    Patterson, 2009). It may be above 100, as bytes may come from caches. ``limit`` is which of both takes longer,
    ``compute`` or ``memory``; ``latency`` if kernels take less than 10 us and not half of that is needed. It is that of
    most of the time. What is not known is null, as the peaks are of most devices (`peaks`). So is a rate above the peak
    of the device (`is_above_peak`).
    """
    flops_, bytes_, both, least = (sums[name] for name in ("flops", "bytes", "flops_of_bytes", "least_ps"))
    of = np.stack([sums[f"{limit}_ns"] for limit in LIMITS])
    most = of.argmax(axis=0)
    is_told = 2 * of.max(axis=0, initial=0) > np.maximum(sums["least_ns"], 1)
    is_above = is_above_peak(sums)
    least = np.where(is_above, 0, least)
    is_told &= ~is_above
    return {
        "tflops_per_s": _ratio(np.where(is_above, 0, flops_), 1000 * sums["flops_ns"]),
        "gb_per_s": _ratio(bytes_, sums["bytes_ns"]),
        "flops_per_byte": _ratio(both, sums["bytes_of_flops"]),
        "limit_percent": _ratio(least, 10 * sums["least_ns"]),
        "limit": pl.Series([*LIMITS, None], dtype=pl.String).gather(np.where(is_told, most, len(LIMITS))),
    }


def is_above_peak(sums: dict[str, Ints]) -> Flags:
    """Return which operations need more time at the peak of the device than they took.

    No device is faster than its peak. So device work is missing, or fewer operations were computed than the formula
    says: causal attention counts in full.
    """
    above: Flags = sums["ceiling_ps"] > 1000 * sums["ceiling_ns"]
    return above


def _ratio(above: Ints, below: Ints) -> pl.Series:
    known = (above > 0) & (below > 0)
    return pl.Series(above / np.maximum(below, 1), dtype=pl.Float64).set(pl.Series(~known, dtype=pl.Boolean), None)


@cached_per_trace
def of_calls(trace: Trace) -> dict[str, Ints]:
    """What `columns` needs, for each of `calls`: sums over any of them that do not hold each other may be taken."""
    found = calls(trace)
    is_lost = not trace.is_device_traced and len(missing_work.lost_launches(trace)) > 0
    time = np.zeros_like(found.time) if is_lost else found.time  # the time of launches is not that of work
    return _sums(trace, found, np.arange(len(found.row)), time, found.kernels)


@cached_per_trace
def of_work(trace: Trace) -> dict[str, Ints]:
    """The same for each of `Trace.device_rows`, through the operator that launched it.

    What a call computes is known of a kernel only if it launched no other one that does such work: of several that
    multiply, none is told what is its part.
    """
    found, work = calls(trace), trace.device_rows
    names = [work_kinds.of_kernel(trace.names[name]) in _MULTIPLIES for name in trace.names_of(Kind.KERNEL)]
    multiplies = np.zeros(len(trace.names) + 1, np.bool_)
    multiplies[trace.names_of(Kind.KERNEL)] = names
    main = multiplies[trace.name[work]] & (trace.kind[work] == Kind.KERNEL)
    outermost = _outermost(found.outer)
    call = np.append(outermost, -1)[found.of_work]
    count = len(found.row)
    alone = np.bincount(call[call >= 0], minlength=count) == 1
    single = np.bincount(call[(call >= 0) & main], minlength=count) == 1
    computes = np.append(found.flops > 0, False)[call]
    chosen = np.append(alone, False)[call] | (computes & main & np.append(single, False)[call])
    place = np.flatnonzero(chosen & (call >= 0))
    sums = _sums(trace, found, call[place], device.own_times(trace)[place], np.ones(len(place), np.int64))
    whole = {}
    for name, values in sums.items():
        whole[name] = np.zeros(len(work), np.int64)
        whole[name][place] = values
    return whole


def _outermost(outer: Ints) -> Ints:
    """The outermost call around each one, or itself."""
    return inherited(outer, np.where(outer < 0, np.arange(len(outer)), -1))


def _sums(trace: Trace, found: Measured, call: Ints, time: Ints, kernels: Ints) -> dict[str, Ints]:
    """What is summed of some calls, or pieces of their work: numbers, and the time of those that have them."""
    known = peaks.of_trace(trace)
    computed, moved = found.flops[call], found.bytes[call]
    has_flops, has_bytes = (computed > 0) & (time > 0), (moved > 0) & (time > 0)
    both = has_flops & has_bytes
    compute, memory = _least(trace, known, found, call)
    ceiling, _ = _least(trace, peaks.ceiling(trace), found, call)
    least = np.maximum(compute, memory)
    has_least = (least > 0) & (time > 0)
    is_short = (time < SHORT_NS * kernels) & (least < FILLED * 1000 * time)
    is_compute = has_least & ~is_short & (compute >= memory) & has_bytes
    is_memory = has_least & ~is_short & (memory > compute)
    counted = (
        *((has_flops, computed), (has_flops, time), (has_bytes, moved), (has_bytes, time)),
        *((both, computed), (both, moved), (has_least, least), (has_least, time)),
        *((is_compute, time), (is_memory, time), (has_least & is_short, time)),
        *((has_flops & (ceiling > 0), ceiling), (has_flops & (ceiling > 0), time)),
    )
    return {name: np.where(where, values, 0) for name, (where, values) in zip(SUMS, counted, strict=True)}


def _least(trace: Trace, known: Peaks | None, found: Measured, call: Ints) -> tuple[Ints, Ints]:
    """The picoseconds that a device needs at least to compute and to move; both 0 where either is not known."""
    if known is None:
        return np.zeros(len(call), np.int64), np.zeros(len(call), np.int64)
    peak = np.array([*(known.tflops.get(name, 0.0) for name in TYPES), 0.0])[found.type[call]]
    compute = np.where(peak > 0, found.flops[call] / np.where(peak > 0, peak, 1), 0)
    moves = np.array([traffic.is_memory_only(name) for name in trace.names] or [False])[trace.name[found.row[call]]]
    memory = np.maximum(found.bytes[call], 0) * 1000 / known.gb_per_s
    told = (compute > 0) | moves
    return np.where(told, compute, 0).astype(np.int64), np.where(told, memory, 0).astype(np.int64)
