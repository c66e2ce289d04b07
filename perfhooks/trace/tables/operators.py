from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.core.errors import OptionError
from perfhooks.trace.kinds import DEVICE_WORK, Kind
from perfhooks.trace.limits import flops, rates, redispatch
from perfhooks.trace.names import attribution, ranges, torch_rules
from perfhooks.trace.nesting import device, missing_work, step_marks
from perfhooks.trace.nesting.grouping import distinct, groups, summed
from perfhooks.trace.nesting.intervals import MS, NOTABLE
from perfhooks.trace.nesting.slices import Nesting, nest
from perfhooks.trace.once import cached_per_trace
from perfhooks.trace.tables import modules, stacks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perfhooks.trace.model import Column, Ints, Trace
    from perfhooks.trace.names.origins import Owners
    from perfhooks.trace.nesting.grouping import Groups

_HOST: Final = (Kind.OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.OVERHEAD)
_DEVICE: Final = (*DEVICE_WORK, Kind.DEVICE_ANNOTATION)
_GROUP_OF: Final = np.array(
    [2 * (kind in _DEVICE) + (kind in (Kind.ANNOTATION, Kind.DEVICE_ANNOTATION)) for kind in Kind], np.int64
)
"""Group of each kind of slice: host or device, label or not. Slices of several groups are never merged into one row."""
GROUPS: Final = ("shapes", "stack", "line", "module", "step")
_TIMES: Final = ("self_cpu_ms", "cpu_ms", "exclusive_cpu_ms", "self_device_ms", "device_ms")
_LOST: Final = {"self_device_ms": ("launches", "lost"), "device_ms": ("all launches", "all lost")}
"""Columns with the number of launches, and of launches without recorded work, for each device time."""
_RATE: Final = "rate "
_WITH_INNER: Final = {"count", "cpu_ms", "device_ms", "cpu_bytes", "device_bytes"}
_SIZES: Final = ("self_cpu_bytes", "cpu_bytes", "self_device_bytes", "device_bytes")


class Calls(NamedTuple):
    """Tree of calls by torch's rules (`torch_rules`), sorted by thread and time."""

    row: Ints
    parent: Ints
    """Enclosing call, or the call into which the enclosing call is merged; -1 without an enclosing call."""
    into: Ints
    """Call into which each call is merged, so that both count once; the call itself if it is not merged."""
    depth: Ints


class _Rows(NamedTuple):
    row: Ints
    name: Ints
    kind: Column
    group: Ints
    sums: dict[str, Ints]
    """Sums of each column; columns without data are absent."""


class _Key(NamedTuple):
    values: pl.Series
    number: Ints
    absent: int


def table(
    trace: Trace, by: Iterable[str] = (), *, stack_depth: int = 5, all_flops: bool = False, owners: Owners = ()
) -> pl.DataFrame:
    """Return the cost of each operator: the rows of ``torch.profiler.profile.key_averages()`` for the same recording.

    One row for each name, ``kind`` and value of the keys in ``by`` (`GROUPS`). ``all_flops`` also counts operations
    that torch omits (`flops.MISSED_BY_TORCH`).

    * ``self_cpu_ms``, ``cpu_ms``: host time without and with nested calls, by torch's rules
      (`perfhooks.trace.names.torch_rules`). Self times may count runtime calls twice.
    * ``exclusive_cpu_ms``: host time without nested calls. On each thread, exclusive times sum to the time in which any
      call ran.
    * ``self_device_ms``, ``device_ms``: device work launched by the call, without and with nested calls. Device times
      are null if the trace lacks the work of more than 1% of the launches.
    * ``self_cpu_bytes``, ``cpu_bytes``, ``self_device_bytes``, ``device_bytes``: allocated minus released memory.

    This table corrects these errors of torch:

    * torch since 2.12 subtracts Python frames from the self time of the call around these frames.
    * torch adds the extent of a label on a stream to the device time of the label.
    * Device work nested in other work of the same stream counts once (`device.own_times`); torch counts both in full.
    * An operator that a dispatch mode or a tensor subclass calls again counts once (`redispatch.resolved`); in torch,
      twice.
    * Device work without an external id belongs to the operator or label that launched it; torch omits such work.
    """
    group_keys = (by,) if isinstance(by, str) else tuple(by)
    for group_key in group_keys:
        if group_key not in GROUPS:
            raise OptionError(f"by must be one or more of {', '.join(map(repr, GROUPS))}, got {group_key!r}")
    host, work = _host_rows(trace), _device_rows(trace)
    row, name, kind, group = (np.concatenate(columns) for columns in zip(host[:4], work[:4], strict=True))
    keys = _keys(trace, group_keys, row, stack_depth, owners)
    grouped = groups(name, group, *(key.number for key in keys.values()))
    sums = {column: grouped.summed(values, slice(len(host.row))) for column, values in host.sums.items()}
    for column, values in work.sums.items():
        sums[column] += grouped.summed(values, slice(len(host.row), None))
    repeated = _redispatched(trace, grouped.of)
    for column in _WITH_INNER & sums.keys():
        sums[column] -= summed(grouped.of[repeated], host.sums[column][repeated], len(grouped.first))
    sums["flops"] = _known_sum(grouped, _flops(trace, everything=all_flops))
    sums |= _rate_sums(trace, host, grouped)
    if "step" in group_keys:
        sums = _lose_steps(trace, row[grouped.first], sums)
    shown = {column: key._replace(number=key.number[grouped.first]) for column, key in keys.items()}
    return _build_table(trace, name[grouped.first], kind[grouped.first], sums, shown)


def _redispatched(trace: Trace, group: Ints) -> Ints:
    row = _host_rows(trace).row
    index = np.full(len(trace), -1, np.int64)
    index[row] = np.arange(len(row))
    inner, outer = (index[calls] for calls in redispatch.again(trace))
    is_row = (inner >= 0) & (outer >= 0)
    inner, outer = inner[is_row], outer[is_row]
    repeated: Ints = inner[group[inner] == group[outer]]
    return repeated


def _rate_sums(trace: Trace, host: _Rows, grouped: Groups) -> dict[str, Ints]:
    group = np.full(len(trace), -1, np.int64)
    group[host.row] = grouped.of[: len(host.row)]
    index, count = group[rates.calls(trace).row], len(grouped.first)
    return {f"{_RATE}{name}": summed(index, values, count) for name, values in rates.of_calls(trace).items()}


@cached_per_trace
def calls(trace: Trace) -> Calls:
    rows = _shown_rows(trace)
    thread = torch_rules.tree_threads(trace, rows)
    if np.array_equal(thread, trace.thread[rows]):
        nesting = _nesting_by_thread(trace)
    else:
        order = np.lexsort((-trace.end[rows], trace.start[rows], thread))
        rows, thread = rows[order], thread[order]
        nesting = nest(thread, trace.start[rows], trace.end[rows])
    _, index = torch_rules.shown_names(trace)
    into = torch_rules.merged_into(nesting.parent, index[trace.name[rows]])
    parent = np.where(nesting.parent >= 0, into[nesting.parent], -1) if len(rows) else nesting.parent
    return Calls(rows, parent, into, nesting.depth)


def device_time(trace: Trace, tree: Calls) -> Ints:
    call_of = np.full(len(trace) + 1, -1, np.int64)
    call_of[tree.row] = tree.into
    return summed(call_of[device.owners(trace)], device.own_times(trace), len(tree.row))


@cached_per_trace
def _host_rows(trace: Trace) -> _Rows:
    tree = calls(trace)
    start, end = trace.start[tree.row], trace.end[tree.row]
    columns = {
        "count": np.ones(len(tree.row), np.int64),
        "self_cpu_ms": _self_values(end - start, tree),
        "cpu_ms": end - start,
        "exclusive_cpu_ms": _exclusive_times(trace, tree),
    }
    # crossed labels would have negative self time
    crossed = (columns["self_cpu_ms"] < 0) & (trace.kind[tree.row] == Kind.ANNOTATION)
    columns["self_cpu_ms"][crossed] = columns["exclusive_cpu_ms"][crossed]
    if trace.is_device_traced:
        on_device = device_time(trace, tree)
        columns |= {"self_device_ms": on_device, "device_ms": _total_values(on_device, tree)}
        launches, lost = _launches(trace, tree, columns["device_ms"])
        if lost.any():
            columns |= {"launches": launches, "all launches": _total_values(launches, tree)}
            columns |= {"lost": lost, "all lost": _total_values(lost, tree)}
    if len(trace.instants.time):
        of_host, of_device = torch_rules.memory_within(trace.instants, start, end)
        columns |= {"self_cpu_bytes": _self_values(of_host, tree), "cpu_bytes": of_host}
        columns |= {"self_device_bytes": _self_values(of_device, tree), "device_bytes": of_device}
    counting = _counting_calls(tree)
    return _rows(trace, tree.row[counting], {name: column[counting] for name, column in columns.items()})


def _launches(trace: Trace, tree: Calls, device_time: Ints) -> tuple[Ints, Ints]:
    index = np.full(len(trace), -1, np.int64)
    index[tree.row] = np.arange(len(tree.row))
    parents = np.append(tree.parent, -1)
    launches, lost = (
        np.bincount(parents[index[calls]] + 1, minlength=len(tree.row) + 1)[1:]
        for calls in (device.launch_calls(trace), missing_work.lost_launches(trace))
    )
    if missing_work.lacks_computation(trace):
        is_unknown = (trace.kind[tree.row] == Kind.OP) & (device_time == 0)
        launches, lost = np.maximum(launches, is_unknown), np.maximum(lost, is_unknown)
    return launches, lost


def _lose_steps(trace: Trace, row: Ints, sums: dict[str, Ints]) -> dict[str, Ints]:
    unknown = np.append(missing_work.unknown(trace).work, False)
    is_lost = unknown[step_marks.step_of(step_marks.find(trace), trace.start[row])] & ~np.isin(trace.kind[row], _DEVICE)
    none = np.zeros(len(row), np.int64)
    names = [name for pair in _LOST.values() for name in pair]
    return sums | {name: sums.get(name, none) + is_lost for name in names} if is_lost.any() else sums


def _counting_calls(tree: Calls) -> Ints:
    return np.flatnonzero(tree.into == np.arange(len(tree.row)))


@cached_per_trace
def _flops(trace: Trace, *, everything: bool) -> Ints:
    tree = calls(trace)
    operations = flops.by_torch_per_call(trace, tree.row)
    if everything:
        operations = np.where(
            operations > 0, operations, np.maximum(operations, flops.missed_per_call(trace, tree.row, tree.parent))
        )
    return operations[_counting_calls(tree)]


def _known_sum(grouped: Groups, values: Ints) -> Ints:
    valued = np.flatnonzero(values >= 0)
    total = summed(grouped.of[valued], values[valued], len(grouped.first))
    return np.where(np.bincount(grouped.of[valued], minlength=len(total)) > 0, total, -1)


@cached_per_trace
def _device_rows(trace: Trace) -> _Rows:
    rows = trace.rows(*_DEVICE)
    span = trace.end[rows] - trace.start[rows]
    own = span.copy()
    own[np.searchsorted(rows, trace.device_rows)] = device.own_times(trace)
    times = {"self_device_ms": own, "device_ms": span} if trace.is_device_traced else {}
    return _rows(trace, rows, {"count": np.ones(len(rows), np.int64)} | times)


def _rows(trace: Trace, rows: Ints, columns: dict[str, Ints]) -> _Rows:
    kind = trace.kind[rows]
    _, index = torch_rules.shown_names(trace)
    return _Rows(rows, index[trace.name[rows]], kind, _GROUP_OF[kind], columns)


def _self_values(values: Ints, tree: Calls) -> Ints:
    own = np.append(values, 0)
    np.subtract.at(own, np.where(tree.into == np.arange(len(values)), tree.parent, -1), values)
    return own[:-1]


def _exclusive_times(trace: Trace, tree: Calls) -> Ints:
    order = np.argsort(tree.row, kind="stable")
    return summed(tree.into[order], _nesting_by_thread(trace).own, len(order))


@cached_per_trace
def _nesting_by_thread(trace: Trace) -> Nesting:
    rows = _shown_rows(trace)
    return nest(trace.thread[rows], trace.start[rows], trace.end[rows])


@cached_per_trace
def _shown_rows(trace: Trace) -> Ints:
    rows = trace.rows(*_HOST)
    return rows[~torch_rules.hidden(trace, rows)]


def on_step_threads(trace: Trace) -> pl.DataFrame:
    host, marks = _host_rows(trace), step_marks.find(trace)
    step = step_marks.step_of(marks, trace.start[host.row])
    in_steps = np.flatnonzero((step >= 0) & (trace.thread[host.row] == np.append(marks.thread, -1)[step]))
    grouped = groups(step[in_steps], host.name[in_steps], host.kind[in_steps].astype(np.int64))
    first = in_steps[grouped.first]
    names = torch_rules.shown_names(trace)[0]
    columns = {
        "step": pl.Series([*marks.number, None], dtype=pl.Int64)[step[first]],
        "name": pl.Series([names[name] for name in host.name[first].tolist()], dtype=pl.String),
        "kind": pl.Series([Kind(kind).name.lower() for kind in host.kind[first].tolist()], dtype=pl.String),
        "self_cpu_ms": grouped.summed(host.sums["self_cpu_ms"][in_steps]) * MS,
    }
    return pl.DataFrame(columns)


def recorded(trace: Trace) -> int:
    rows = _shown_rows(trace)
    return int(trace.end[rows].max() - trace.start[rows].min()) if len(rows) else 0


def _total_values(values: Ints, tree: Calls) -> Ints:
    total: Ints = values.copy()
    deepest = int(tree.depth.max(initial=0))
    by_depth = np.argsort(tree.depth, kind="stable")
    edges = np.searchsorted(tree.depth[by_depth], np.arange(deepest + 2))
    for depth in range(deepest, 0, -1):
        level = by_depth[edges[depth] : edges[depth + 1]]
        level = level[tree.into[level] == level]
        np.add.at(total, tree.parent[level], total[level])
    return total


def _keys(trace: Trace, by: tuple[str, ...], row: Ints, stack_depth: int, owners: Owners) -> dict[str, _Key]:
    keys: dict[str, _Key] = {}
    if "shapes" in by:
        keys["input_shapes"] = _shapes(trace, row)
    if "stack" in by:
        texts, index = stacks.by_depth(trace, stack_depth)
        keys["stack"] = _numbered(texts, index[row])
    if "line" in by:
        texts, index = attribution.of_rows(trace, _launch_rows(trace, row), owners)
        keys["line"] = _numbered(texts, index)
    if "module" in by:
        texts, index = modules.of_slices(trace)
        keys["module"] = _numbered(texts, index[row])
    if "step" in by:
        marked = step_marks.find(trace)
        keys["step"] = _numbered(marked.number, step_marks.step_of(marked, trace.start[row]), pl.Int64())
    return keys


def _launch_rows(trace: Trace, rows: Ints) -> Ints:
    launcher = np.arange(len(trace))
    launcher[trace.device_rows] = trace.launches
    return launcher[rows]


def _numbered(values: Sequence[Any], index: Ints, kind: pl.DataType | None = None, absent: Any = None) -> _Key:
    numbers_by_value: dict[Any, int] = {}
    numbers = np.array(
        [numbers_by_value.setdefault(value, len(numbers_by_value)) for value in (*values, absent)], np.int64
    )
    return _Key(pl.Series(list(numbers_by_value), dtype=kind or pl.String), numbers[index], numbers_by_value[absent])


def _shapes(trace: Trace, rows: Ints) -> _Key:
    dims = trace.argument("dims")[rows].astype(np.int64)
    used, index = distinct(dims + 1)  # -1 means no shape; few of the texts are shapes
    return _numbered([json.dumps(trace.text(text) or []) for text in (used - 1).tolist()], index, absent="[]")


@cached_per_trace
def _memory_row(trace: Trace) -> dict[str, int]:
    rows = _shown_rows(trace)
    homeless = torch_rules.memory_outside(trace.instants, trace.start[rows], trace.end[rows])
    if not homeless.any():
        return {}
    host, device = (int(size[homeless].sum()) for size in torch_rules.memory_sizes(trace.instants))
    return {"count": int(homeless.sum()), **dict(zip(_SIZES, (host, host, device, device), strict=True)), "flops": -1}


@cached_per_trace
def _sorted_names(trace: Trace) -> tuple[pl.Series, Ints]:
    names = [*torch_rules.shown_names(trace)[0], ranges.MEMORY]
    index = {name: index for index, name in enumerate(sorted(set(names)))}
    return pl.Series(names, dtype=pl.String), np.array([index[name] for name in names])


def _build_table(trace: Trace, name: Ints, kind: Column, sums: dict[str, Ints], keys: dict[str, _Key]) -> pl.DataFrame:
    names, letters = _sorted_names(trace)
    kinds = pl.Series([*(kind.name.lower() for kind in Kind), "memory"], dtype=pl.String)
    if memory := _memory_row(trace):
        name, kind = np.append(name, len(names) - 1), np.append(kind, len(kinds) - 1)
        sums = {column: np.append(values, memory.get(column, 0)) for column, values in sums.items()}
        keys = {column: key._replace(number=np.append(key.number, key.absent)) for column, key in keys.items()}
    times = {column: sums[column] * MS for column in _TIMES if column in sums}
    order = np.lexsort((letters[name], -times["self_cpu_ms"]))
    rated = {column.removeprefix(_RATE): values[order] for column, values in sums.items() if column.startswith(_RATE)}
    columns = {column: pl.Series(values[order]) for column, values in (sums | times).items()}
    for column, (launches, lost) in _LOST.items():
        if lost in sums:
            is_unknown = sums[lost] > NOTABLE * sums[launches]
            columns[column] = columns[column].set(pl.Series(is_unknown[order]), None)
    absent = pl.Series([None]).new_from_index(0, len(order))
    return pl.DataFrame(
        {
            "name": names[name[order]],
            "kind": kinds[kind[order]],
            **{column: key.values[key.number[order]] for column, key in keys.items()},
            "count": columns["count"],
            **{column: columns.get(column, absent.cast(pl.Float64)) for column in _TIMES},
            **{column: columns.get(column, absent.cast(pl.Int64)) for column in _SIZES},
            "flops": columns["flops"].set(pl.Series(sums["flops"][order] < 0), None),
            **rates.columns(rated),
        }
    )
