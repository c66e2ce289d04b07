"""The table of categories: what kind of work the operators and their kernels did, and how long."""

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
_PLACES: Final = {kind: place for place, kind in enumerate(CATEGORIES)}
GEMMS, CONVOLUTION, ATTENTION = (_PLACES[kind] for kind in ("gemms", "convolution", "attention"))
ELEMENTWISE, REDUCTION, INDEXING = (_PLACES[kind] for kind in ("elementwise", "reduction", "indexing"))
QUANTISATION, COMMUNICATION, COPIES = (_PLACES[kind] for kind in ("quantisation", "communication", "copies"))
OPTIMIZER, OTHER = (_PLACES[kind] for kind in ("optimizer", "other"))

_NAMED: Final = 3
"""Names of what cost most in a category."""

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
    """The operators and labels of the host, by thread and time."""

    row: Ints
    category: Column
    """Of each, by its name or that of the innermost around it that tells; `OTHER` where none does."""
    counts: Flags
    """Whether it is an operator, or lies in one."""
    own: Ints
    """Its nanoseconds without those in it."""


class _Spent(NamedTuple):
    """Time that was spent, one entry for each piece of work, or call."""

    category: Column
    name: Column
    """An index into `Trace.names`."""
    span: Ints
    """Nanoseconds."""


def table(trace: Trace) -> pl.DataFrame:
    """Say what kind of work was done: one row for each of `CATEGORIES` that there is, most time first.

    ``kernels`` is how many kernels, copies and memsets a device ran, ``device_ms`` the plain sum of their durations and
    ``device_percent`` their share of all. Each piece of work is in exactly one row, so the rows
    sum to the table of kernels. In this order it is

    1. ``communication`` and ``copies`` (with memsets) by its class in the table of kernels;
    2. ``attention`` if an operator of that name is around its launch, whatever it is made of;
    3. ``optimizer`` if it was launched in the optimizer's part of its thread (`perfhooks.trace.nesting.parts`);
    4. what the innermost operator around its launch does that tells, by its name; for a node of autograd what its
       forward operator does;
    5. what its own name says, else ``other``.

    ``calls`` is how many operators the host ran, ``host_ms`` their time on their threads without the operators in them,
    by the same rules, ``host_percent`` its share. These rows sum to the time in which any operator ran, of each thread.

    Columns of the device are null where none was traced, those of the host where no operator was.

    ``names`` are up to three operators, or kernels that no operator launched, that cost most: on the device if there is
    one.

    Args:
        trace: any trace.
    """
    on_device = _device(trace)
    host, is_operator = _host(trace)
    named = on_device if trace.is_device_traced else host
    columns = {
        "category": list(CATEGORIES),
        "kernels": np.bincount(on_device.category, minlength=len(CATEGORIES)),
        "device_ms": _summed(on_device) * intervals.MS,
        "device_percent": _percent(_summed(on_device)),
        "calls": np.bincount(host.category[is_operator], minlength=len(CATEGORIES)),
        "host_ms": _summed(host) * intervals.MS,
        "host_percent": _percent(_summed(host)),
        "names": _names(trace, named),
    }
    shown = pl.DataFrame(columns, schema_overrides=_SCHEMA, strict=False)
    order = "device_ms" if trace.is_device_traced else "host_ms"
    shown = shown.filter((pl.col("kernels") > 0) | (pl.col("calls") > 0)).sort(order, "host_ms", descending=True)
    empty = [] if trace.is_device_traced else ["kernels", "device_ms", "device_percent"]
    empty += [] if len(host.name) else ["calls", "host_ms", "host_percent"]
    return shown.with_columns(pl.lit(None, _SCHEMA[name]).alias(name) for name in empty).select(*_SCHEMA)


@cached_per_trace
def of_work(trace: Trace) -> Column:
    """For each of `Trace.device_rows`, its place in `CATEGORIES`."""
    work, owner = trace.device_rows, device.owners(trace)
    by_row = np.full(len(trace) + 1, OTHER, np.int8)
    host = calls(trace)
    by_row[host.row] = host.category
    category = by_row[owner]
    # an operator that communicates also copies into buckets, and waits: only what communicates is communication
    unknown = (category == OTHER) | (category == COMMUNICATION)
    kernels = intervals.distinct(trace.name[work[unknown]])
    by_name = np.full(len(trace.names) + 1, OTHER, np.int8)
    by_name[kernels] = [_PLACES[work_kinds.of_kernel(trace.names[each])] for each in kernels.tolist()]
    category = np.where(unknown, by_name[trace.name[work]], category)
    launch = np.where(trace.launches >= 0, trace.launches, owner)
    updates = (launch >= 0) & (category != ATTENTION) & _updating(trace, launch)
    category[updates] = OPTIMIZER
    kind = trace.kind[work]
    category[(kind == Kind.COPY) | (kind == Kind.SET)] = COPIES
    category[device.communicates(trace)] = COMMUNICATION
    return category


@cached_per_trace
def calls(trace: Trace) -> _Calls:
    """The operators of the host with their categories."""
    rows = trace.rows(Kind.OP, Kind.ANNOTATION)
    is_operator = trace.kind[rows] == Kind.OP
    is_operator[np.searchsorted(rows, trace.chosen(re.compile(ranges.AROUND_OPERATORS).match, Kind.OP))] = False
    nesting = nest(trace.thread[rows], trace.start[rows], trace.end[rows])
    said = _of_operators(trace)[trace.name[rows]]
    named = np.where(is_operator & (said != OTHER), said, -1)
    category = inherited(nesting.parent, named)
    within = inherited(nesting.parent, np.where(named == ATTENTION, ATTENTION, -1))
    category = np.where(within == ATTENTION, ATTENTION, np.where(category >= 0, category, OTHER))
    updates = _updating(trace, rows) & (category != COMMUNICATION) & (category != COPIES) & (category != ATTENTION)
    category[updates] = OPTIMIZER
    counts = inherited(nesting.parent, np.where(is_operator, 1, -1)) > 0
    return _Calls(rows, category.astype(np.int8), counts, nesting.own)


def _updating(trace: Trace, rows: Ints) -> Flags:
    """Whether each slice began in the optimizer's part of its thread."""
    is_updating = np.zeros(len(rows), np.bool_)
    thread, start = trace.thread[rows], trace.start[rows]
    for number in _optimizing(trace):
        mine = thread == number
        is_updating[mine] = intervals.covers(parts.of_thread(trace, number)[labels.OPTIMIZER], start[mine])
    return is_updating


@cached_per_trace
def _optimizing(trace: Trace) -> list[int]:
    """The threads on which anything is called an optimizer."""
    told = (part_names.of_label, part_names.of_automatic, part_names.of_range)
    rows = trace.chosen(
        lambda name: any(part_of(name) == labels.OPTIMIZER for part_of in told), Kind.OP, Kind.ANNOTATION
    )
    threads: list[int] = intervals.distinct(trace.thread[rows]).tolist()
    return threads


@cached_per_trace
def _of_operators(trace: Trace) -> Column:
    """The category that each name tells if it is an operator's, else `OTHER`."""
    numbers = trace.names_of(Kind.OP)
    category = np.full(len(trace.names), OTHER, np.int8)
    category[numbers] = [_PLACES[work_kinds.of_operator(_plain(trace.names[each]))] for each in numbers]
    return category


def _plain(name: str) -> str:
    """The name of an operator; of a node of autograd that of its forward operator."""
    node = _NODE.match(name)
    return "::" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node[1]) if node else name


def _device(trace: Trace) -> _Spent:
    work, owner = trace.device_rows, device.owners(trace)
    name = np.where(owner >= 0, np.append(trace.name, 0)[owner], trace.name[work])
    return _Spent(of_work(trace), name, device.own_times(trace))


def _host(trace: Trace) -> tuple[_Spent, Flags]:
    """What the host did, and which of it are operators."""
    host = calls(trace)
    counts = np.flatnonzero(host.counts)
    rows = host.row[counts]
    return _Spent(host.category[counts], trace.name[rows], host.own[counts]), trace.kind[rows] == Kind.OP


def _summed(spent: _Spent) -> Ints:
    """The nanoseconds of each category."""
    return summed(spent.category, spent.span, len(CATEGORIES))


def _percent(nanos: Ints) -> Column:
    return 100 * nanos / max(int(nanos.sum()), 1)


def _names(trace: Trace, spent: _Spent) -> list[str | None]:
    """What cost most in each category."""
    pairs = groups(spent.category, spent.name)
    category, name, span = spent.category[pairs.first], spent.name[pairs.first], pairs.summed(spent.span)
    costliest: list[list[str]] = [[] for _ in CATEGORIES]
    for place in np.lexsort((name, -span)).tolist():
        if len(costliest[category[place]]) < _NAMED:
            costliest[category[place]].append(trace.names[name[place]])
    return [", ".join(names) or None for names in costliest]
