"""The table of operators: what ran how often, and what it cost; equal to torch's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.core.errors import OptionError
from perfhooks.trace.kinds import DEVICE_WORK, Kind
from perfhooks.trace.limits import flops, rates, redispatch
from perfhooks.trace.names import attribution, ranges, torch_rules
from perfhooks.trace.nesting import device, step_marks
from perfhooks.trace.nesting.grouping import distinct, groups, summed
from perfhooks.trace.nesting.intervals import MS
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
"""Of each kind, which rows of one name are one."""
GROUPS: Final = ("shapes", "stack", "line", "module", "step")
"""What rows can be told apart by, besides the name."""
_TIMES: Final = ("self_cpu_ms", "cpu_ms", "exclusive_cpu_ms", "self_device_ms", "device_ms")
_RATE: Final = "rate "
"""Before the names of sums of which rates are made."""
_WITH_INNER: Final = {"count", "cpu_ms", "device_ms", "cpu_bytes", "device_bytes"}
"""Columns that hold what a call called."""
_SIZES: Final = ("self_cpu_bytes", "cpu_bytes", "self_device_bytes", "device_bytes")


class Calls(NamedTuple):
    """The calls on the host as torch counts them, one entry for each slice; sorted by thread and time."""

    row: Ints
    """The slice of the trace."""
    parent: Ints
    """The call that holds it, or -1; where only children were merged, the one they were merged into."""
    into: Ints
    """The call as whose part this one is counted; itself for those that count."""
    depth: Ints


class _Rows(NamedTuple):
    """Slices that are counted, and what is summed of them."""

    row: Ints
    """The slice of the trace."""
    name: Ints
    """The place of its name among those that are shown."""
    kind: Column
    group: Ints
    """Operators and labels of one name are rows of their own, and so are those of the host and of devices."""
    sums: dict[str, Ints]
    """Columns of the table by name; those of which the trace knows nothing are left out."""


class _Key(NamedTuple):
    """What rows are told apart by: numbers are grouped faster than texts."""

    values: pl.Series
    number: Ints
    """For each row the place of its value."""
    absent: int
    """The place of the value of what has none."""


def table(
    trace: Trace, by: Iterable[str] = (), *, stack_depth: int = 5, all_flops: bool = False, owners: Owners = ()
) -> pl.DataFrame:
    """Say what each operator cost: the rows of ``torch.profiler.profile.key_averages()`` for the same capture.

    One row for each name (kernels, copies and device-side labels have theirs), ``kind``, and whatever else is asked
    for: ``count``; ``self_cpu_ms``, ``cpu_ms`` without and with what it called; ``self_device_ms``, ``device_ms``, the
    work that it, or it and what it called, put on a device; ``self_cpu_bytes`` ... ``device_bytes``, memory allocated
    less memory released meanwhile; ``flops``, floating point operations; and the columns of `rates.columns`, which say
    how fast it was and how far from the limit. Device columns are null if the trace shows no
    device, memory if it has none, and ``flops`` for operators of which no formula is known or no shapes were recorded.

    By torch's rule ``self_cpu_ms`` is not additive: a runtime call that bears no operator's number, as while a graph is
    captured, has a row of its own and stays in the self time of the operator in which it ran, so that the sum may be
    more than has passed. ``exclusive_cpu_ms`` is: the time of each call on its own thread less every other call that
    was recorded inside of it. Over all rows it sums to the time in which any call ran, of each thread.

    torch's rules are those of `perfhooks.trace.names.torch_rules`. Where torch is wrong we are not:

    * With stacks, torch since 2.12 subtracts Python frames from the self time of what they ran in, and since the frames
      cover everything it has no ``[memory]`` row. Frames have no influence here.
    * torch books the extent of a label on a stream as device time of the label, besides the kernels in it. Here device
      time is work of the device.
    * Work that lies within other work of the same stream counts once (`device.own_times`); torch adds both.
    * An operator that a dispatch mode or a subclass of tensors calls again counts once. It has the operations of the
      inner call, which are those of this rank if its tensor is distributed (`redispatch.resolved`).
    * Work that bears no external id (or, in traces of torch before 2.1, a wrong one) belongs to the operator or label
      in which it was launched; torch loses it, and all that a label launches without an operator.

    Calls that end on another thread than they began on have no children in torch's table; a trace does not tell them.

    Args:
        trace: any trace.
        by: ``"shapes"`` to tell input shapes apart (column ``input_shapes``; lists of tensors are told apart too, which
            torch does not), ``"stack"`` the innermost Python frames (``stack``, as in folded stacks; null without
            any), ``"line"`` the innermost line of the user (``line``, see `whose.lines`), ``"module"`` the modules,
            forward and backward (``module``, a path of `modules.table`; null outside of all), ``"step"`` the steps
            (``step``; null outside of all). Device work has those of its launch.
        stack_depth: how many Python frames ``"stack"`` keeps.
        all_flops: count what torch forgets as well: `flops.MISSED_BY_TORCH`.
        owners: whose code is whose, for ``"line"``.

    Raises:
        OptionError: ``by`` names something else.
    """
    wanted = (by,) if isinstance(by, str) else tuple(by)
    for asked in wanted:
        if asked not in GROUPS:
            raise OptionError(f"by must be of {', '.join(map(repr, GROUPS))}, got {asked!r}")
    host, work = _host_rows(trace), _device_rows(trace)
    row, name, kind, group = (np.concatenate(both) for both in zip(host[:4], work[:4], strict=True))
    keys = _keys(trace, wanted, row, stack_depth, owners)
    grouped = groups(name, group, *(key.number for key in keys.values()))
    sums = {column: grouped.summed(values, slice(len(host.row))) for column, values in host.sums.items()}
    for column, values in work.sums.items():
        sums[column] += grouped.summed(values, slice(len(host.row), None))
    again = _again(trace, grouped.of)
    for column in _WITH_INNER & sums.keys():
        sums[column] -= summed(grouped.of[again], host.sums[column][again], len(grouped.first))
    sums["flops"] = _known_sum(grouped, _flops(trace, everything=all_flops))
    sums |= _rates(trace, host, grouped)
    shown = {column: key._replace(number=key.number[grouped.first]) for column, key in keys.items()}
    return _finished(trace, name[grouped.first], kind[grouped.first], sums, shown)


def _again(trace: Trace, group: Ints) -> Ints:
    """Return the rows of calls that a dispatcher makes within a call of the same row of the table."""
    row = _host_rows(trace).row
    place = np.full(len(trace), -1, np.int64)
    place[row] = np.arange(len(row))
    inner, outer = (place[calls] for calls in redispatch.again(trace))
    is_row = (inner >= 0) & (outer >= 0)
    inner, outer = inner[is_row], outer[is_row]
    found: Ints = inner[group[inner] == group[outer]]
    return found


def _rates(trace: Trace, host: _Rows, grouped: Groups) -> dict[str, Ints]:
    """What `rates.columns` needs of each group."""
    group = np.full(len(trace), -1, np.int64)
    group[host.row] = grouped.of[: len(host.row)]
    place, count = group[rates.calls(trace).row], len(grouped.first)
    return {f"{_RATE}{name}": summed(place, values, count) for name, values in rates.of_calls(trace).items()}


@cached_per_trace
def calls(trace: Trace) -> Calls:
    """The tree of calls on the host, by torch's rules."""
    rows = _shown(trace)
    thread = torch_rules.tree_threads(trace, rows)
    if np.array_equal(thread, trace.thread[rows]):
        nesting = _on_own_threads(trace)
    else:
        order = np.lexsort((-trace.end[rows], trace.start[rows], thread))
        rows, thread = rows[order], thread[order]
        nesting = nest(thread, trace.start[rows], trace.end[rows])
    _, place = torch_rules.shown_names(trace)
    into = torch_rules.merged_into(nesting.parent, place[trace.name[rows]])
    parent = np.where(nesting.parent >= 0, into[nesting.parent], -1) if len(rows) else nesting.parent
    return Calls(rows, parent, into, nesting.depth)


def device_time(trace: Trace, tree: Calls) -> Ints:
    """The nanoseconds of device work that each call launched itself."""
    call_of = np.full(len(trace) + 1, -1, np.int64)
    call_of[tree.row] = tree.into
    return summed(call_of[device.owners(trace)], device.own_times(trace), len(tree.row))


@cached_per_trace
def _host_rows(trace: Trace) -> _Rows:
    tree = calls(trace)
    start, end = trace.start[tree.row], trace.end[tree.row]
    columns = {
        "count": np.ones(len(tree.row), np.int64),
        "self_cpu_ms": _own(end - start, tree),
        "cpu_ms": end - start,
        "exclusive_cpu_ms": _exclusive(trace, tree),
    }
    # a label that others cross would have less than no time of its own
    crossed = (columns["self_cpu_ms"] < 0) & (trace.kind[tree.row] == Kind.ANNOTATION)
    columns["self_cpu_ms"][crossed] = columns["exclusive_cpu_ms"][crossed]
    if trace.is_device_traced:
        on_device = device_time(trace, tree)
        columns |= {"self_device_ms": on_device, "device_ms": _total(on_device, tree)}
    if len(trace.instants.time):
        of_host, of_device = torch_rules.memory_within(trace.instants, start, end)
        columns |= {"self_cpu_bytes": _own(of_host, tree), "cpu_bytes": of_host}
        columns |= {"self_device_bytes": _own(of_device, tree), "device_bytes": of_device}
    counted = _counted(tree)
    return _rows(trace, tree.row[counted], {name: column[counted] for name, column in columns.items()})


def _counted(tree: Calls) -> Ints:
    """The calls that count by themselves."""
    return np.flatnonzero(tree.into == np.arange(len(tree.row)))


@cached_per_trace
def _flops(trace: Trace, *, everything: bool) -> Ints:
    """The floating point operations of each call that counts, or -1."""
    tree = calls(trace)
    operations = flops.by_torch_per_call(trace, tree.row)
    if everything:
        operations = np.where(
            operations > 0, operations, np.maximum(operations, flops.missed_per_call(trace, tree.row, tree.parent))
        )
    return operations[_counted(tree)]


def _known_sum(grouped: Groups, values: Ints) -> Ints:
    """The sum of what is known in each group, of the first rows; -1 where nothing is."""
    known = np.flatnonzero(values >= 0)
    total = summed(grouped.of[known], values[known], len(grouped.first))
    return np.where(np.bincount(grouped.of[known], minlength=len(total)) > 0, total, -1)


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
    _, place = torch_rules.shown_names(trace)
    return _Rows(rows, place[trace.name[rows]], kind, _GROUP_OF[kind], columns)


def _own(values: Ints, tree: Calls) -> Ints:
    """What is left of each call's value without its children's."""
    own = np.append(values, 0)  # the last one holds what nothing holds: its place is -1
    np.subtract.at(own, np.where(tree.into == np.arange(len(values)), tree.parent, -1), values)
    return own[:-1]


def _exclusive(trace: Trace, tree: Calls) -> Ints:
    """The time of each call on its own thread in which no other call ran inside of it."""
    order = np.argsort(tree.row, kind="stable")
    return summed(tree.into[order], _on_own_threads(trace).own, len(order))


@cached_per_trace
def _on_own_threads(trace: Trace) -> Nesting:
    """How the calls nest, each on its own thread; by slice."""
    rows = _shown(trace)
    return nest(trace.thread[rows], trace.start[rows], trace.end[rows])


@cached_per_trace
def _shown(trace: Trace) -> Ints:
    """The slices of the host that torch shows."""
    rows = trace.rows(*_HOST)
    return rows[~torch_rules.hidden(trace, rows)]


def on_step_threads(trace: Trace) -> pl.DataFrame:
    """Return the time of each operator and label without the calls in it, by step, on the step's own thread."""
    host, marks = _host_rows(trace), step_marks.find(trace)
    step = step_marks.step_of(marks, trace.start[host.row])
    mine = np.flatnonzero((step >= 0) & (trace.thread[host.row] == np.append(marks.thread, -1)[step]))
    each = groups(step[mine], host.name[mine], host.kind[mine].astype(np.int64))
    first = mine[each.first]
    names = torch_rules.shown_names(trace)[0]
    columns = {
        "step": pl.Series([*marks.number, None], dtype=pl.Int64).gather(step[first]),
        "name": pl.Series([names[name] for name in host.name[first].tolist()], dtype=pl.String),
        "kind": pl.Series([Kind(kind).name.lower() for kind in host.kind[first].tolist()], dtype=pl.String),
        "self_cpu_ms": each.summed(host.sums["self_cpu_ms"][mine]) * MS,
    }
    return pl.DataFrame(columns)


def recorded(trace: Trace) -> int:
    """The nanoseconds from the first to the last call on the host that is shown."""
    rows = _shown(trace)
    return int(trace.end[rows].max() - trace.start[rows].min()) if len(rows) else 0


def _total(values: Ints, tree: Calls) -> Ints:
    """Each call's value and all its descendants'."""
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
        texts, place = stacks.by_depth(trace, stack_depth)
        keys["stack"] = _key(texts, place[row])
    if "line" in by:
        texts, place = attribution.of_rows(trace, _launched_from(trace, row), owners)
        keys["line"] = _key(texts, place)
    if "module" in by:
        texts, place = modules.of_slices(trace)
        keys["module"] = _key(texts, place[row])
    if "step" in by:
        every = step_marks.find(trace)
        keys["step"] = _key(every.number, step_marks.step_of(every, trace.start[row]), pl.Int64())
    return keys


def _launched_from(trace: Trace, rows: Ints) -> Ints:
    """Each slice of the host itself, and of work of devices what launched it, or -1."""
    launcher = np.arange(len(trace))
    launcher[trace.device_rows] = trace.launches
    return launcher[rows]


def _key(values: Sequence[Any], place: Ints, kind: pl.DataType | None = None, absent: Any = None) -> _Key:
    """The value at each place, and what stands for none for -1, with one number for all places that have the same."""
    known: dict[Any, int] = {}
    numbers = np.array([known.setdefault(value, len(known)) for value in (*values, absent)], np.int64)
    return _Key(pl.Series(list(known), dtype=kind or pl.String), numbers[place], known[absent])


def _shapes(trace: Trace, rows: Ints) -> _Key:
    """The shapes as torch writes them; none at all, as for a call without tensors, is an empty list."""
    dims = trace.argument("dims")[rows].astype(np.int64)
    used, place = distinct(dims + 1)  # -1 is none; of all texts few are shapes
    return _key([json.dumps(trace.text(text) or []) for text in (used - 1).tolist()], place, absent="[]")


@cached_per_trace
def _memory_row(trace: Trace) -> dict[str, int]:
    """The row of what was allocated while nothing that is shown ran; empty where that is nothing."""
    rows = _shown(trace)
    homeless = torch_rules.memory_outside(trace.instants, trace.start[rows], trace.end[rows])
    if not homeless.any():
        return {}
    host, device = (int(size[homeless].sum()) for size in torch_rules.memory_sizes(trace.instants))
    return {"count": int(homeless.sum()), **dict(zip(_SIZES, (host, host, device, device), strict=True)), "flops": -1}


@cached_per_trace
def _names(trace: Trace) -> tuple[pl.Series, Ints]:
    """The names that are shown, with that of memory at the end, and for each its place in the order of letters."""
    names = [*torch_rules.shown_names(trace)[0], ranges.MEMORY]
    place = {name: place for place, name in enumerate(sorted(set(names)))}
    return pl.Series(names, dtype=pl.String), np.array([place[name] for name in names])


def _finished(trace: Trace, name: Ints, kind: Column, sums: dict[str, Ints], keys: dict[str, _Key]) -> pl.DataFrame:
    """The table, with the row of memory, in its order."""
    names, letters = _names(trace)
    kinds = pl.Series([*(kind.name.lower() for kind in Kind), "memory"], dtype=pl.String)
    if memory := _memory_row(trace):
        name, kind = np.append(name, len(names) - 1), np.append(kind, len(kinds) - 1)
        sums = {column: np.append(values, memory.get(column, 0)) for column, values in sums.items()}
        keys = {column: key._replace(number=np.append(key.number, key.absent)) for column, key in keys.items()}
    times = {column: sums[column] * MS for column in _TIMES if column in sums}
    order = np.lexsort((letters[name], -times["self_cpu_ms"]))
    rated = {column.removeprefix(_RATE): values[order] for column, values in sums.items() if column.startswith(_RATE)}
    columns = {column: pl.Series(values[order]) for column, values in (sums | times).items()}
    absent = pl.Series([None]).new_from_index(0, len(order))
    return pl.DataFrame(
        {
            "name": names.gather(name[order]),
            "kind": kinds.gather(kind[order]),
            **{column: key.values.gather(key.number[order]) for column, key in keys.items()},
            "count": columns["count"],
            **{column: columns.get(column, absent.cast(pl.Float64)) for column in _TIMES},
            **{column: columns.get(column, absent.cast(pl.Int64)) for column in _SIZES},
            "flops": columns["flops"].set(pl.Series(sums["flops"][order] < 0), None),
            **rates.columns(rated),
        }
    )
