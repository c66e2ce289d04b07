from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.core import labels
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import part_names, ranges, work_kinds
from perfhooks.trace.nesting import device, intervals, parts
from perfhooks.trace.nesting.grouping import groups, summed
from perfhooks.trace.nesting.slices import inherited, nest
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags

CATEGORIES: Final = work_kinds.KINDS
_INDEX_OF: Final = {kind: index for index, kind in enumerate(CATEGORIES)}
GEMMS, CONVOLUTION, ATTENTION = (_INDEX_OF[kind] for kind in ("gemms", "convolution", "attention"))
ELEMENTWISE, REDUCTION, INDEXING = (_INDEX_OF[kind] for kind in ("elementwise", "reduction", "indexing"))
QUANTISATION, COMMUNICATION, COPIES = (_INDEX_OF[kind] for kind in ("quantisation", "communication", "copies"))
OPTIMIZER, OTHER = (_INDEX_OF[kind] for kind in ("optimizer", "other"))

_NODE: Final = re.compile(rf"^(?:.*[: ])?{ranges.BACKWARD_CLASS}")

_SCHEMA: Final = {
    "category": pl.String,
    "kernels": pl.Int64,
    **dict.fromkeys(("device_ms", "device_percent"), pl.Float64),
    "calls": pl.Int64,
    **dict.fromkeys(("host_ms", "host_percent"), pl.Float64),
    "names": pl.String,
}


class _Calls(NamedTuple):
    row: Ints
    category: Column
    counts: Flags
    own: Ints


class _WorkTimes(NamedTuple):
    category: Column
    name: Column
    span: Ints


def table(trace: Trace) -> pl.DataFrame:
    """Return the time of each kind of work: one row for each of `CATEGORIES` in the trace, most time first.

    The first matching rule decides the category of device work. The own time of operators follows the same rules:

    1. ``communication`` and ``copies`` (with memsets): class of the work in the table of kernels;
    2. ``attention``: an attention operator is around the launch;
    3. ``optimizer``: the launch is in the optimizer part of its thread (`perfhooks.trace.nesting.parts`);
    4. category of the innermost operator around the launch, or of the forward operator of an autograd node;
    5. category of the kernel name, or ``other``.
    """
    on_device = _device_costs(trace)
    host, is_operator = _host_costs(trace)
    named = on_device if trace.is_device_traced else host
    columns = {
        "category": list(CATEGORIES),
        "kernels": np.bincount(on_device.category, minlength=len(CATEGORIES)),
        "device_ms": _time_per_category(on_device) * intervals.MS,
        "device_percent": _percent(_time_per_category(on_device)),
        "calls": np.bincount(host.category[is_operator], minlength=len(CATEGORIES)),
        "host_ms": _time_per_category(host) * intervals.MS,
        "host_percent": _percent(_time_per_category(host)),
        "names": _costliest_names(trace, named),
    }
    shown = pl.DataFrame(columns, schema_overrides=_SCHEMA, strict=False)
    order = "device_ms" if trace.is_device_traced else "host_ms"
    shown = shown.filter((pl.col("kernels") > 0) | (pl.col("calls") > 0)).sort(order, "host_ms", descending=True)
    empty = [] if trace.is_device_traced else ["kernels", "device_ms", "device_percent"]
    empty += [] if len(host.name) else ["calls", "host_ms", "host_percent"]
    return shown.with_columns(pl.lit(None, _SCHEMA[name]).alias(name) for name in empty).select(*_SCHEMA)


@cached_per_trace
def of_work(trace: Trace) -> Column:
    work, owner = trace.device_rows, device.owners(trace)
    by_row = np.full(len(trace) + 1, OTHER, np.int8)
    host = calls(trace)
    by_row[host.row] = host.category
    category = by_row[owner]
    # communication operators also launch kernels that copy into buckets
    unknown = (category == OTHER) | (category == COMMUNICATION)
    kernels = intervals.distinct(trace.name[work[unknown]])
    by_name = np.full(len(trace.names) + 1, OTHER, np.int8)
    by_name[kernels] = [_INDEX_OF[work_kinds.of_kernel(trace.names[kernel])] for kernel in kernels.tolist()]
    category = np.where(unknown, by_name[trace.name[work]], category)
    launch = np.where(trace.launches >= 0, trace.launches, owner)
    updates = (launch >= 0) & (category != ATTENTION) & _is_updating(trace, launch)
    category[updates] = OPTIMIZER
    kind = trace.kind[work]
    category[(kind == Kind.COPY) | (kind == Kind.SET)] = COPIES
    category[device.communicates(trace)] = COMMUNICATION
    return category


@cached_per_trace
def calls(trace: Trace) -> _Calls:
    rows = trace.rows(Kind.OP, Kind.ANNOTATION)
    is_operator = trace.kind[rows] == Kind.OP
    is_operator[np.searchsorted(rows, trace.chosen(re.compile(ranges.AROUND_OPERATORS).match, Kind.OP))] = False
    nesting = nest(trace.thread[rows], trace.start[rows], trace.end[rows])
    by_name = _categories_of_names(trace)[trace.name[rows]]
    named = np.where(is_operator & (by_name != OTHER), by_name, -1)
    category = inherited(nesting.parent, named)
    within = inherited(nesting.parent, np.where(named == ATTENTION, ATTENTION, -1))
    category = np.where(within == ATTENTION, ATTENTION, np.where(category >= 0, category, OTHER))
    updates = _is_updating(trace, rows) & (category != COMMUNICATION) & (category != COPIES) & (category != ATTENTION)
    category[updates] = OPTIMIZER
    counts = inherited(nesting.parent, np.where(is_operator, 1, -1)) > 0
    return _Calls(rows, category.astype(np.int8), counts, nesting.own)


def _is_updating(trace: Trace, rows: Ints) -> Flags:
    is_updating = np.zeros(len(rows), np.bool_)
    thread, start = trace.thread[rows], trace.start[rows]
    for number in _optimizer_threads(trace):
        on_thread = thread == number
        is_updating[on_thread] = intervals.covers(parts.of_thread(trace, number)[labels.OPTIMIZER], start[on_thread])
    return is_updating


@cached_per_trace
def _optimizer_threads(trace: Trace) -> list[int]:
    name_rules = (part_names.of_label, part_names.of_automatic, part_names.of_range)
    rows = trace.chosen(
        lambda name: any(part_of(name) == labels.OPTIMIZER for part_of in name_rules), Kind.OP, Kind.ANNOTATION
    )
    threads: list[int] = intervals.distinct(trace.thread[rows]).tolist()
    return threads


@cached_per_trace
def _categories_of_names(trace: Trace) -> Column:
    numbers = trace.names_of(Kind.OP)
    category = np.full(len(trace.names), OTHER, np.int8)
    category[numbers] = [_INDEX_OF[work_kinds.of_operator(_forward_name(trace.names[number]))] for number in numbers]
    return category


def _forward_name(name: str) -> str:
    node = _NODE.match(name)
    return "::" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node[1]) if node else name


def _device_costs(trace: Trace) -> _WorkTimes:
    work, owner = trace.device_rows, device.owners(trace)
    name = np.where(owner >= 0, np.append(trace.name, 0)[owner], trace.name[work])
    return _WorkTimes(of_work(trace), name, device.own_times(trace))


def _host_costs(trace: Trace) -> tuple[_WorkTimes, Flags]:
    host = calls(trace)
    counts = np.flatnonzero(host.counts)
    rows = host.row[counts]
    return _WorkTimes(host.category[counts], trace.name[rows], host.own[counts]), trace.kind[rows] == Kind.OP


def _time_per_category(costs: _WorkTimes) -> Ints:
    return summed(costs.category, costs.span, len(CATEGORIES))


def _percent(nanos: Ints) -> Column:
    return 100 * nanos / max(int(nanos.sum()), 1)


def _costliest_names(trace: Trace, costs: _WorkTimes) -> list[str | None]:
    pairs = groups(costs.category, costs.name)
    category, name, span = costs.category[pairs.first], costs.name[pairs.first], pairs.summed(costs.span)
    costliest: list[list[str]] = [[] for _ in CATEGORIES]
    for index in np.lexsort((name, -span)).tolist():
        costliest[category[index]].append(trace.names[name[index]])
    return [", ".join(names[:3]) or None for names in costliest]
