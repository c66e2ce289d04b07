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

LIMITS: Final = ("compute", "memory", "latency")
SUMS: Final = (
    *("flops", "flops_ns", "bytes", "bytes_ns", "flops_of_bytes", "bytes_of_flops", "least_ps", "least_ns"),
    *(f"{limit}_ns" for limit in LIMITS),
    *("ceiling_ps", "ceiling_ns"),
)

_WRAPPERS: Final = frozenset((operators.CONV2D, *operators.GENERAL_CONVOLUTIONS, *operators.FUSED_ATTENTION))
"""Operators inside which autocast converts tensors, so kernels may compute in another type than the operator's inputs
have.
"""
_MULTIPLIES: Final = ("gemms", "convolution", "attention")
_TYPES: Final = {name: index for index, name in enumerate(TYPES)}
_FLOAT32, _TF32, _FLOAT8 = _TYPES["float32"], _TYPES["tf32"], _TYPES["float8"]


class CallCosts(NamedTuple):
    """Operator calls with known operations or bytes, sorted by thread and time. Unknown values are -1."""

    row: Ints
    flops: Ints
    bytes: Ints
    """Minimum bytes to read and write."""
    type: Column
    """Index in `datasheets.TYPES` of the type of the computation; -1 if the call only moves data."""
    outer: Ints
    time: Ints
    """Time of device work of this and nested calls, in ns. If no device was traced: duration of the call."""
    kernels: Ints
    """Number of kernels, copies and memsets of this and nested calls. If no device was traced: 1."""
    of_work: Ints


@cached_per_trace
def calls(trace: Trace) -> CallCosts:
    """Return the costs of all operator calls; none without recorded shapes."""
    rows = trace.rows(Kind.OP) if "dims" in trace.arguments else np.empty(0, np.int64)
    flops_, _ = redispatch.resolved(trace, rows, per_call(trace, rows, flops.COUNTED))
    bytes_, _ = redispatch.resolved(trace, rows, traffic.per_call(trace, rows))
    has_costs = np.flatnonzero((flops_ > 0) | (bytes_ > 0))
    rows, flops_, bytes_ = rows[has_costs], np.where(flops_ > 0, flops_, -1)[has_costs], bytes_[has_costs]
    tree = host.tree(trace)
    entry, parent = tree.entry[rows], tree.nesting.parent
    index = np.full(len(tree.row) + 1, -1, np.int64)
    index[entry] = np.arange(len(rows))
    holder = np.append(inherited(parent, index[:-1]), -1)
    outer = holder[parent[entry]]
    launched_by = tree.entry[device.owners(trace)]
    of_work = holder[launched_by]
    if trace.is_device_traced:
        time = _add_nested_calls(outer, summed(of_work, device.own_times(trace), len(rows)))
        kernels = _add_nested_calls(outer, np.bincount(of_work[of_work >= 0], minlength=len(rows)))
    else:
        time, kernels = tree.nesting.end[entry] - trace.start[rows], np.ones(len(rows), np.int64)
    kind = _computing_types(trace, rows, flops_, of_work)
    for _ in range(4):  # maximum depth: conv2d, convolution, _convolution, cudnn_convolution
        nested = np.flatnonzero((outer >= 0) & (flops_ > 0) & (flops_ == np.append(flops_, -1)[outer]))
        nested = nested[_is_wrapper(trace)[trace.name[rows[outer[nested]]]]]
        kind[outer[nested]], bytes_[outer[nested]] = kind[nested], bytes_[nested]
    bytes_[np.isin(np.arange(len(rows)), _calls_across_links(trace, of_work, outer))] = -1
    return CallCosts(rows, flops_, bytes_, kind, outer, time, kernels, of_work)


def _add_nested_calls(outer: Ints, values: Ints) -> Ints:
    # nested calls follow the outer call
    total: Ints = values.copy()
    nested = np.flatnonzero(outer >= 0)[::-1]
    for call, holder in zip(nested.tolist(), outer[nested].tolist(), strict=True):
        total[holder] += total[call]
    return total


def _is_wrapper(trace: Trace) -> Flags:
    return np.array([name in _WRAPPERS for name in trace.names] or [False], np.bool_)


def _calls_across_links(trace: Trace, of_work: Ints, outer: Ints) -> Ints:
    work = trace.device_rows
    is_within = trace.chosen(lambda name: device_work.WITHIN_DEVICE in name, Kind.COPY)
    across = np.flatnonzero((trace.kind[work] == Kind.COPY) & ~np.isin(work, is_within) & (of_work >= 0))
    copies = np.unique(of_work[across])
    return np.union1d(copies, outer[copies])


def _computing_types(trace: Trace, rows: Ints, computed: Ints, of_work: Ints) -> Ints:
    text = trace.argument("types")[rows]
    numbers, position = distinct(text + 1)
    kind = np.array([_first_type(trace.text(number)) for number in (numbers - 1).tolist()], np.int64)[position]
    kind[computed <= 0] = -1
    if not trace.is_device_traced:
        return kind
    name, _ = peaks.device(trace)
    limits = peaks.of_trace(trace)
    has_tf32 = limits is None or "tf32" in limits.tflops
    # on AMD devices only an environment variable enables TF32
    is_float32_default = not has_tf32 or name.startswith("AMD")
    is_float32 = kind == _FLOAT32
    if is_float32.any():
        uses_tf32 = np.isin(np.arange(len(rows)), _calls_of_kernels(trace, of_work, device_work.TF32))
        uses_plain = np.isin(np.arange(len(rows)), _calls_of_kernels(trace, of_work, device_work.FLOAT32_GEMM))
        kind[is_float32] = np.select([uses_tf32, uses_plain | is_float32_default], [_TF32, _FLOAT32], -1)[is_float32]
    return kind


def _calls_of_kernels(trace: Trace, of_work: Ints, pattern: str) -> Ints:
    rows = trace.searched(pattern, Kind.KERNEL)
    return np.unique(of_work[np.searchsorted(trace.device_rows, rows)])


def _first_type(types: object) -> int:
    for text in types if isinstance(types, list) else ():
        name = tensor_types.name_of(text)
        if name is not None:
            return _FLOAT8 if name.startswith("float8") else _TYPES.get(name, -1)
    return -1


def columns(sums: dict[str, Ints]) -> dict[str, pl.Series]:
    """Return the rates and the limit of each row, from the sums of `of_calls` or `of_work`.

    Rates use the duration of the launched device work, or of the calls if no device was traced.

    - ``tflops_per_s``: 10^12 operations per second, of calls in `flops.COUNTED`; null if above the peak of the device.
    - ``gb_per_s``: 10^9 bytes per second, of calls with known minimum traffic (`traffic`).
    - ``flops_per_byte``: operations per byte, of calls whose operations and bytes are known.
    - ``limit_percent``: the minimum time that the device needs, in percent of the measured time, by the roofline model
      of Williams, Waterman and Patterson, 2009. The value may exceed 100, because bytes may come from caches.
    - ``limit``: ``compute`` or ``memory``, whichever takes longer; ``latency`` if kernels take less than 10 us, and
      the minimum time is less than half of the measured time.
    """
    flops_, bytes_, flops_of_bytes, least = (sums[name] for name in ("flops", "bytes", "flops_of_bytes", "least_ps"))
    limit_ns = np.stack([sums[f"{limit}_ns"] for limit in LIMITS])
    largest = limit_ns.argmax(axis=0)
    is_dominant = 2 * limit_ns.max(axis=0, initial=0) > np.maximum(sums["least_ns"], 1)
    is_above = is_above_peak(sums)
    least = np.where(is_above, 0, least)
    is_dominant &= ~is_above
    return {
        "tflops_per_s": _ratio(np.where(is_above, 0, flops_), 1000 * sums["flops_ns"]),
        "gb_per_s": _ratio(bytes_, sums["bytes_ns"]),
        "flops_per_byte": _ratio(flops_of_bytes, sums["bytes_of_flops"]),
        "limit_percent": _ratio(least, 10 * sums["least_ns"]),
        "limit": pl.Series([*LIMITS, None], dtype=pl.String)[np.where(is_dominant, largest, len(LIMITS))],
    }


def is_above_peak(sums: dict[str, Ints]) -> Flags:
    """Return which rows took less time than their operations need at the peak of the device.

    Causes are missing device work, or formulas that count too many operations (causal attention).
    """
    above: Flags = sums["ceiling_ps"] > 1000 * sums["ceiling_ns"]
    return above


def _ratio(above: Ints, below: Ints) -> pl.Series:
    is_known = (above > 0) & (below > 0)
    return pl.Series(np.where(is_known, above / np.maximum(below, 1), np.nan), nan_to_null=True)


@cached_per_trace
def of_calls(trace: Trace) -> dict[str, Ints]:
    """Return the values of `SUMS` for each of `calls`. An outer call includes its nested calls."""
    costs = calls(trace)
    is_lost = not trace.is_device_traced and len(missing_work.lost_launches(trace)) > 0
    # if device work was lost, only the time of launches remains
    time = np.zeros_like(costs.time) if is_lost else costs.time
    return _terms(trace, costs, np.arange(len(costs.row)), time, costs.kernels)


@cached_per_trace
def of_work(trace: Trace) -> dict[str, Ints]:
    """Return the values of `SUMS` for each of `Trace.device_rows`, from the launching operator.

    Operations are unknown if the call launched several kernels for matrix products.
    """
    costs, work = calls(trace), trace.device_rows
    names = [work_kinds.of_kernel(trace.names[name]) in _MULTIPLIES for name in trace.names_of(Kind.KERNEL)]
    multiplies = np.zeros(len(trace.names) + 1, np.bool_)
    multiplies[trace.names_of(Kind.KERNEL)] = names
    is_multiply = multiplies[trace.name[work]] & (trace.kind[work] == Kind.KERNEL)
    outermost = _outermost(costs.outer)
    call = np.append(outermost, -1)[costs.of_work]
    count = len(costs.row)
    has_one_work = np.bincount(call[call >= 0], minlength=count) == 1
    has_one_kernel = np.bincount(call[(call >= 0) & is_multiply], minlength=count) == 1
    computes = np.append(costs.flops > 0, False)[call]
    is_known = np.append(has_one_work, False)[call] | (computes & is_multiply & np.append(has_one_kernel, False)[call])
    positions = np.flatnonzero(is_known & (call >= 0))
    sums = _terms(trace, costs, call[positions], device.own_times(trace)[positions], np.ones(len(positions), np.int64))
    terms = {}
    for name, values in sums.items():
        terms[name] = np.zeros(len(work), np.int64)
        terms[name][positions] = values
    return terms


def _outermost(outer: Ints) -> Ints:
    return inherited(outer, np.where(outer < 0, np.arange(len(outer)), -1))


def _terms(trace: Trace, costs: CallCosts, call: Ints, time: Ints, kernels: Ints) -> dict[str, Ints]:
    limits = peaks.of_trace(trace)
    flops_, bytes_ = costs.flops[call], costs.bytes[call]
    has_flops, has_bytes = (flops_ > 0) & (time > 0), (bytes_ > 0) & (time > 0)
    has_both = has_flops & has_bytes
    compute, memory = _minimum_ps(trace, limits, costs, call)
    ceiling, _ = _minimum_ps(trace, peaks.ceiling(trace), costs, call)
    least = np.maximum(compute, memory)
    has_least = (least > 0) & (time > 0)
    is_short = (time < device.LATENCY_NS * kernels) & (2 * least < 1000 * time)
    is_compute = has_least & ~is_short & (compute >= memory) & has_bytes
    is_memory = has_least & ~is_short & (memory > compute)
    values_by_sum = (
        *((has_flops, flops_), (has_flops, time), (has_bytes, bytes_), (has_bytes, time)),
        *((has_both, flops_), (has_both, bytes_), (has_least, least), (has_least, time)),
        *((is_compute, time), (is_memory, time), (has_least & is_short, time)),
        *((has_flops & (ceiling > 0), ceiling), (has_flops & (ceiling > 0), time)),
    )
    return {
        name: np.where(is_counted, values, 0) for name, (is_counted, values) in zip(SUMS, values_by_sum, strict=True)
    }


def _minimum_ps(trace: Trace, limits: Peaks | None, costs: CallCosts, call: Ints) -> tuple[Ints, Ints]:
    if limits is None:
        return np.zeros(len(call), np.int64), np.zeros(len(call), np.int64)
    type_peak = np.array([*(limits.tflops.get(name, 0.0) for name in TYPES), 0.0])[costs.type[call]]
    compute = np.where(type_peak > 0, costs.flops[call] / np.where(type_peak > 0, type_peak, 1), 0)
    moves = np.array([traffic.is_memory_only(name) for name in trace.names] or [False])[trace.name[costs.row[call]]]
    memory = np.maximum(costs.bytes[call], 0) * 1000 / limits.gb_per_s
    is_known = (compute > 0) | moves
    return np.where(is_known, compute, 0).astype(np.int64), np.where(is_known, memory, 0).astype(np.int64)
