"""How much of what devices can compute a step used: MFU, HFU, and of how much of its work that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import peaks, rates
from perfhooks.trace.limits.datasheets import TYPES
from perfhooks.trace.names import operators, ranges, work_kinds
from perfhooks.trace.nesting import autograd, device, host
from perfhooks.trace.nesting.grouping import summed
from perfhooks.trace.nesting.slices import inherited
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Flags, Ints, Trace

_PS: Final = 1000
"""Picoseconds in a nanosecond."""
ENOUGH: Final = 80.0
"""Percent of the time that is known, from which on the sum says something of the whole."""
_COMPUTES: Final = ("gemms", "convolution", "attention", "moe", "ssm")
"""Kinds of kernels that do what is counted, whether or not it is known."""


class Computed(NamedTuple):
    """What was computed, one entry for each call that counts by itself."""

    row: Ints
    """The slice of the trace."""
    flops: Ints
    least_ps: Ints
    """How long one device needs for it at the peak of its type; 0 where that is not known."""
    again: Flags
    """Whether it was computed before, in the forward pass, and is so again for its gradient."""


@cached_per_trace
def computed(trace: Trace) -> Computed:
    """What the operators of a trace computed, each operation once; nothing without recorded shapes."""
    calls, known = rates.calls(trace), peaks.of_trace(trace)
    # what is captured into a graph runs when that is replayed, and not here
    ran = calls.time > 0
    chosen = np.flatnonzero((calls.flops > 0) & (calls.outer < 0) & ran)
    peak = np.array([*((0.0 if known is None else known.tflops.get(name, 0.0)) for name in TYPES), 0.0])
    speed = peak[calls.type[chosen]]
    row, flops = calls.row[chosen], calls.flops[chosen]
    least = np.where(speed > 0, flops / np.where(speed > 0, speed, 1), 0).astype(np.int64)
    return Computed(row, flops, least, _again(trace, row))


def _again(trace: Trace, rows: Ints) -> Flags:
    """Which calls recompute the forward pass within the backward pass, as activation checkpoints have it.

    They lie in a node of autograd: directly in that of a checkpoint, or in an operator that a model calls, which nodes
    do not, and that bears a sequence number, as only what will have a gradient does.
    """
    tree, nodes = host.tree(trace), autograd.find(trace)
    entry = tree.entry[rows]
    node = nodes.inside[entry]
    of_checkpoint = np.zeros(len(tree.row) + 1, np.bool_)
    of_checkpoint[tree.entry[trace.chosen(lambda name: ranges.CHECKPOINT in name, Kind.OP)]] = True
    called = np.full(len(tree.row), -1, np.int64)
    callers = tree.entry[trace.named(Kind.OP, names=operators.CALLED_BY_MODELS)]
    callers = callers[trace.argument("sequence")[tree.row[callers]] >= 0]
    called[callers] = callers
    caller = inherited(tree.nesting.parent, called)[entry]
    again: Flags = (node >= 0) & (of_checkpoint[node] | (caller > node))
    return again


def of_steps(trace: Trace, step: Ints, work_step: Ints, wall: Ints) -> dict[str, Column]:
    """Say of each step what it computed, and how much of what its devices could have computed meanwhile that is.

    Args:
        trace: any trace.
        step: the step of each of `computed`, or -1.
        work_step: that of each of `Trace.device_rows`.
        wall: the nanoseconds of each step.

    Returns:
        Columns, empty without recorded shapes. ``tflop``, 10^12 operations of products, convolutions and attention.
        ``mfu_percent``, the time that they need at the peaks of their types, each by its own, of the wall times the
        devices that worked; what is recomputed for gradients counts in ``hfu_percent`` alone (Chowdhery et al., PaLM,
        2022, appendix B; Korthikanti et al., 2022). ``known_percent``, of the time of kernels that do such work
        how much is known: of the rest neither knows, so below `ENOUGH` they are not told. NaN is what is not known.
    """
    found = computed(trace)
    if not len(found.row):
        return {}
    count = len(wall)
    spent = _PS * np.maximum(wall, 1) * max(len(np.unique(device.devices(trace, trace.device_rows))), 1)
    by_peak, own = summed(step, found.least_ps, count), summed(np.where(found.again, -1, step), found.least_ps, count)
    columns: dict[str, Column] = {"tflop": summed(step, found.flops, count) / 1e12}
    known = _known(trace, work_step, count) if trace.is_device_traced else np.full(count, 100.0)
    is_told = (by_peak > 0) & (known >= ENOUGH)
    columns["mfu_percent"] = np.where(is_told, 100 * own / spent, np.nan)
    columns["hfu_percent"] = np.where(is_told, 100 * by_peak / spent, np.nan)
    return columns | ({"known_percent": known} if trace.is_device_traced else {})


def _known(trace: Trace, step: Ints, count: int) -> Column:
    calls, work = rates.calls(trace), trace.device_rows
    numbers = trace.names_of(Kind.KERNEL)
    computes = np.zeros(len(trace.names) + 1, np.bool_)
    computes[numbers] = [work_kinds.of_kernel(trace.names[each]) in _COMPUTES for each in numbers]
    mine = np.where(computes[trace.name[work]] & (trace.kind[work] == Kind.KERNEL), step, -1)
    inside = np.append(calls.flops > 0, False) & np.append(calls.type >= 0, False)
    outermost = np.append(inherited(calls.outer, np.where(calls.outer < 0, np.arange(len(calls.row)), -1)), -1)
    is_known = inside[outermost[calls.of_work]]
    time = device.own_times(trace)
    whole, known = summed(mine, time, count), summed(np.where(is_known, mine, -1), time, count)
    return np.where(whole > 0, 100 * known / np.maximum(whole, 1), np.nan)
