from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import peaks, rates
from perfhooks.trace.limits.datasheets import TYPES
from perfhooks.trace.names import operators, ranges, work_kinds
from perfhooks.trace.nesting import autograd, device, host
from perfhooks.trace.nesting.grouping import summed
from perfhooks.trace.nesting.intervals import MOST
from perfhooks.trace.nesting.slices import inherited
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Flags, Ints, Trace

_COMPUTES: Final = ("gemms", "convolution", "attention", "moe", "ssm")


class Computed(NamedTuple):
    row: Ints
    flops: Ints
    least_ps: Ints
    """Minimum time in ps at the peak of the data type; 0 if the peak is unknown."""
    again: Flags
    """Whether the call repeats a part of the forward pass for activation checkpointing."""


@cached_per_trace
def computed(trace: Trace) -> Computed:
    """Return the outermost computing calls and their operations (FLOPs); none without recorded shapes."""
    calls, limits = rates.calls(trace), peaks.of_trace(trace)
    # calls during graph capture do not run: the graph runs at its replay
    ran = calls.time > 0
    outermost = np.flatnonzero((calls.flops > 0) & (calls.outer < 0) & ran)
    peak = np.array([*((0.0 if limits is None else limits.tflops.get(name, 0.0)) for name in TYPES), 0.0])
    speed = peak[calls.type[outermost]]
    row, flops = calls.row[outermost], calls.flops[outermost]
    least_ps = np.where(speed > 0, flops / np.where(speed > 0, speed, 1), 0).astype(np.int64)
    return Computed(row, flops, least_ps, _is_recomputed(trace, row))


def _is_recomputed(trace: Trace, rows: Ints) -> Flags:
    """Return which calls repeat the forward pass: in checkpoint nodes, or `operators.CALLED_BY_MODELS` in any node."""
    tree, nodes = host.tree(trace), autograd.find(trace)
    entry = tree.entry[rows]
    node = nodes.inside[entry]
    of_checkpoint = np.zeros(len(tree.row) + 1, np.bool_)
    of_checkpoint[tree.entry[trace.chosen(lambda name: ranges.CHECKPOINT in name, Kind.OP)]] = True
    model_calls = np.full(len(tree.row), -1, np.int64)
    entries = tree.entry[trace.named(Kind.OP, names=operators.CALLED_BY_MODELS)]
    entries = entries[trace.argument("sequence")[tree.row[entries]] >= 0]
    model_calls[entries] = entries
    model_call = inherited(tree.nesting.parent, model_calls)[entry]
    is_recomputed: Flags = (node >= 0) & (of_checkpoint[node] | (model_call > node))
    return is_recomputed


def of_steps(trace: Trace, step: Ints, work_step: Ints, wall: Ints) -> dict[str, Column]:
    """Return operations, MFU and HFU of each step; no columns without recorded shapes, NaN for unknown values.

    - ``tflop``: 10^12 operations of matrix products, convolutions and attention.
    - ``mfu_percent``: minimum time of the operations at peak rate, in percent of step duration x active devices,
      without recomputed calls (Chowdhery et al., PaLM, 2022, appendix B).
    - ``hfu_percent``: like ``mfu_percent``, with recomputed calls (Korthikanti et al., 2022).
    - ``known_percent``: percentage of the time of computing kernels whose operations are known.
    """
    computed_calls = computed(trace)
    if not len(computed_calls.row):
        return {}
    count = len(wall)
    available_ps = 1000 * np.maximum(wall, 1) * max(len(device.numbers(trace)), 1)
    by_peak, by_peak_once = (
        summed(step, computed_calls.least_ps, count),
        summed(np.where(computed_calls.again, -1, step), computed_calls.least_ps, count),
    )
    columns: dict[str, Column] = {"tflop": summed(step, computed_calls.flops, count) / 1e12}
    coverage = _covered_percent(trace, work_step, count) if trace.is_device_traced else np.full(count, 100.0)
    is_reported = (by_peak > 0) & (coverage >= 100 * MOST)
    columns["mfu_percent"] = np.where(is_reported, 100 * by_peak_once / available_ps, np.nan)
    columns["hfu_percent"] = np.where(is_reported, 100 * by_peak / available_ps, np.nan)
    return columns | ({"known_percent": coverage} if trace.is_device_traced else {})


def _covered_percent(trace: Trace, step: Ints, count: int) -> Column:
    calls, work = rates.calls(trace), trace.device_rows
    numbers = trace.names_of(Kind.KERNEL)
    computes = np.zeros(len(trace.names) + 1, np.bool_)
    computes[numbers] = [work_kinds.of_kernel(trace.names[number]) in _COMPUTES for number in numbers]
    computing_step = np.where(computes[trace.name[work]] & (trace.kind[work] == Kind.KERNEL), step, -1)
    has_flops = np.append(calls.flops > 0, False) & np.append(calls.type >= 0, False)
    outermost = np.append(inherited(calls.outer, np.where(calls.outer < 0, np.arange(len(calls.row)), -1)), -1)
    is_known = has_flops[outermost[calls.of_work]]
    time = device.own_times(trace)
    total_ns = summed(computing_step, time, count)
    covered_ns = summed(np.where(is_known, computing_step, -1), time, count)
    return np.where(total_ns > 0, 100 * covered_ns / np.maximum(total_ns, 1), np.nan)
