"""The table of operators: what ran how often, and what it cost; equal to torch's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.errors import OptionError
from perfhooks.trace import flops, modules, stacks, steps, torch_rules, whose
from perfhooks.trace.kinds import DEVICE_WORK, Kind
from perfhooks.trace.nesting import nest
from perfhooks.trace.once import once

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.whose import Owners

_MS: Final = 1e-6  # milliseconds in a nanosecond
_HOST: Final = (Kind.OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.OVERHEAD)
_DEVICE: Final = (*DEVICE_WORK, Kind.DEVICE_ANNOTATION)
GROUPS: Final = ("shapes", "stack", "line", "module", "step")
"""What rows can be told apart by, besides the name."""
_TIMES: Final = ("self_cpu_ms", "cpu_ms", "exclusive_cpu_ms", "self_device_ms", "device_ms")
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


class _Key(NamedTuple):
    """What rows are told apart by: numbers are grouped faster than texts."""

    values: pl.Series
    number: Ints
    """For each row the place of its value."""


def table(
    trace: Trace, by: Iterable[str] = (), *, stack_depth: int = 5, all_flops: bool = False, owners: Owners = ()
) -> pl.DataFrame:
    """Say what each operator cost: the rows of ``torch.profiler.profile.key_averages()`` for the same capture.

    One row for each name (kernels, copies and device-side labels have theirs), ``kind``, and whatever else is asked
    for: ``count``; ``self_cpu_ms``, ``cpu_ms`` without and with what it called; ``self_device_ms``, ``device_ms``, the
    work that it, or it and what it called, put on a device; ``self_cpu_bytes`` ... ``device_bytes``, memory allocated
    less memory released meanwhile; ``flops``, floating point operations. Device columns are null if the trace shows no
    device, memory if it has none, and ``flops`` for operators of which no formula is known or no shapes were recorded.

    By torch's rule ``self_cpu_ms`` is not additive: a runtime call that bears no operator's number, as while a graph is
    captured, has a row of its own and stays in the self time of the operator in which it ran, so that the sum may be
    more than has passed. ``exclusive_cpu_ms`` is: the time of each call on its own thread less every other call that
    was recorded inside of it. Over all rows it sums to the time in which any call ran, of each thread.

    torch's rules are those of `perfhooks.trace.torch_rules`. Where torch is wrong we are not:

    * With stacks, torch since 2.12 subtracts Python frames from the self time of what they ran in, and since the frames
      cover everything it has no ``[memory]`` row. Frames have no influence here.
    * torch books the extent of a label on a stream as device time of the label, besides the kernels in it. Here device
      time is work of the device.
    * Work that bears no external id (or, in traces of torch before 2.1, a wrong one) belongs to the operator in which
      it was launched; torch loses it.

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
    for each in wanted:
        if each not in GROUPS:
            raise OptionError(f"by must be of {', '.join(map(repr, GROUPS))}, got {each!r}")
    rows = pl.concat([_host_rows(trace, all_flops=all_flops), _device_rows(trace)])
    memory = _memory_row(trace)
    keys = _keys(trace, wanted, rows["row"].to_numpy(), stack_depth, owners)
    grouped = (
        rows.with_columns(**{name: key.number for name, key in keys.items()})
        .group_by("place", "group", *keys, maintain_order=True)
        .agg(pl.col("kind").first(), pl.len().alias("count"), pl.col(*_TIMES, *_SIZES).sum(), _known_sum("flops"))
    )
    grouped = grouped.with_columns(**{name: key.values.gather(grouped[name]) for name, key in keys.items()})
    return _finished(trace, grouped, memory, tuple(keys))


@once
def calls(trace: Trace) -> Calls:
    """The tree of calls on the host, by torch's rules."""
    rows = trace.rows(*_HOST)
    rows = rows[~torch_rules.hidden(trace, rows)]
    thread = torch_rules.tree_threads(trace, rows)
    order = np.lexsort((-trace.end[rows], trace.start[rows], thread))
    rows, thread = rows[order], thread[order]
    nesting = nest(thread, trace.start[rows], trace.end[rows])
    _, place = torch_rules.shown_names(trace.names)
    into = torch_rules.merged_into(nesting.parent, place[trace.name[rows]])
    parent = np.where(nesting.parent >= 0, into[nesting.parent], -1) if len(rows) else nesting.parent
    return Calls(rows, parent, into, nesting.depth)


def device_time(trace: Trace, tree: Calls) -> Ints:
    """The nanoseconds of device work that each call launched itself."""
    call_of = np.full(len(trace) + 1, -1, np.int64)
    call_of[tree.row] = tree.into
    work = trace.device_rows
    owner = call_of[torch_rules.named_operator(trace, work)]
    launch = call_of[trace.launches]
    # the runtime call is a call itself; what counts is the operator it was made by
    maker = np.where(launch >= 0, tree.parent[launch], -1) if len(tree.row) else launch
    owner = np.where(owner >= 0, owner, maker)
    time = np.zeros(len(tree.row), np.int64)
    np.add.at(time, owner[owner >= 0], (trace.end - trace.start)[work][owner >= 0])
    return time


@once
def _host_rows(trace: Trace, *, all_flops: bool) -> pl.DataFrame:
    tree = calls(trace)
    start, end = trace.start[tree.row], trace.end[tree.row]
    on_device = device_time(trace, tree)
    host_bytes, device_bytes = torch_rules.memory_within(trace.instants, start, end)
    counted = np.flatnonzero(tree.into == np.arange(len(tree.row)))
    columns = {
        "self_cpu_ms": _own(end - start, tree),
        "cpu_ms": end - start,
        "exclusive_cpu_ms": _exclusive(trace, tree),
        "self_device_ms": on_device,
        "device_ms": _total(on_device, tree),
        "self_cpu_bytes": _own(host_bytes, tree),
        "cpu_bytes": host_bytes,
        "self_device_bytes": _own(device_bytes, tree),
        "device_bytes": device_bytes,
        "flops": _flops(trace, tree, everything=all_flops),
    }
    return _frame(trace, tree.row[counted], {name: column[counted] for name, column in columns.items()})


def _flops(trace: Trace, tree: Calls, *, everything: bool) -> Ints:
    """The floating point operations of each call, or -1."""
    found = flops.per_call(trace, tree.row, flops.BY_TORCH)
    if everything:
        found = np.where(found > 0, found, np.maximum(found, flops.missed_per_call(trace, tree.row, tree.parent)))
    return found


def _known_sum(name: str) -> pl.Expr:
    """The sum of what is known, null if nothing is."""
    known = pl.col(name).filter(pl.col(name) >= 0)
    return pl.when(known.len() > 0).then(known.sum())


@once
def _device_rows(trace: Trace) -> pl.DataFrame:
    rows = trace.rows(*_DEVICE)
    span = trace.end[rows] - trace.start[rows]
    nothing = np.zeros(len(rows), np.int64)
    return _frame(trace, rows, {"self_device_ms": span, "device_ms": span, "flops": nothing - 1}, nothing)


def _frame(trace: Trace, rows: Ints, columns: dict[str, Ints], missing: Ints | None = None) -> pl.DataFrame:
    kind = trace.kind[rows]
    _, place = torch_rules.shown_names(trace.names)
    group = 2 * np.isin(kind, _DEVICE) + np.isin(kind, (Kind.ANNOTATION, Kind.DEVICE_ANNOTATION))
    values = {name: columns.get(name, missing) for name in (*_TIMES, *_SIZES, "flops")}
    return pl.DataFrame({"row": rows, "place": place[trace.name[rows]], "group": group, "kind": kind, **values})


def _own(values: Ints, tree: Calls) -> Ints:
    """What is left of each call's value without its children's."""
    own: Ints = values.copy()
    child = (tree.parent >= 0) & (tree.into == np.arange(len(values)))
    np.subtract.at(own, tree.parent[child], values[child])
    return own


def _exclusive(trace: Trace, tree: Calls) -> Ints:
    """The time of each call on its own thread in which no other call ran inside of it."""
    order = np.argsort(tree.row)
    rows = tree.row[order]
    own = np.empty_like(rows)
    own[order] = nest(trace.thread[rows], trace.start[rows], trace.end[rows]).own
    found = np.zeros(len(rows), np.int64)
    np.add.at(found, tree.into, own)
    return found


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
    found: dict[str, _Key] = {}
    if "shapes" in by:
        found["input_shapes"] = _shapes(trace, row)
    if "stack" in by:
        texts, place = stacks.by_depth(trace, stack_depth)
        found["stack"] = _key(texts, place[row])
    if "line" in by:
        texts, place = whose.of_rows(trace, _launched_from(trace, row), owners)
        found["line"] = _key(texts, place)
    if "module" in by:
        texts, place = modules.of_slices(trace)
        found["module"] = _key(texts, place[row])
    if "step" in by:
        every = steps.find(trace)
        found["step"] = _key(every.number, steps.step_of(every, trace.start[row]), pl.Int64())
    return found


def _launched_from(trace: Trace, rows: Ints) -> Ints:
    """Each slice of the host itself, and of work of devices what launched it, or -1."""
    found = np.arange(len(trace))
    found[trace.device_rows] = trace.launches
    return found[rows]


def _key(values: Sequence[Any], place: Ints, kind: pl.DataType | None = None) -> _Key:
    """The value at each place, null for -1, with one number for all places that have the same."""
    known: dict[Any, int] = {}
    numbers = np.array([known.setdefault(value, len(known)) for value in (*values, None)], np.int64)
    return _Key(pl.Series(list(known), dtype=kind or pl.String), numbers[place])


def _shapes(trace: Trace, rows: Ints) -> _Key:
    """The shapes as torch writes them; none at all, as for a call without tensors, is an empty list."""
    dims = trace.argument("dims")[rows].astype(np.int64)
    used = np.flatnonzero(np.bincount(dims + 1, minlength=1)) - 1  # -1 is none; of all texts few are shapes
    place = np.zeros(len(trace.texts) + 1, np.int64)
    place[used] = np.arange(len(used))
    return _key([json.dumps(trace.text(int(each)) or []) for each in used], place[dims])


@once
def _memory_row(trace: Trace) -> pl.DataFrame | None:
    rows = trace.rows(*_HOST)
    rows = rows[~torch_rules.hidden(trace, rows)]
    homeless = torch_rules.homeless_memory(trace.instants, trace.start[rows], trace.end[rows])
    if not homeless.any():
        return None
    host, device = ([int(size[homeless].sum())] for size in torch_rules.memory_sizes(trace.instants))
    sizes = dict(zip(_SIZES, (host, host, device, device), strict=True))
    return pl.DataFrame({"name": [torch_rules.MEMORY], "count": [int(homeless.sum())], **sizes})


def _finished(trace: Trace, grouped: pl.DataFrame, memory: pl.DataFrame | None, keys: tuple[str, ...]) -> pl.DataFrame:
    names, _ = torch_rules.shown_names(trace.names)
    kinds = [kind.name.lower() for kind in Kind]
    shown = grouped.with_columns(
        pl.Series("name", names, dtype=pl.String).gather(grouped["place"]),
        pl.Series("kind", kinds, dtype=pl.String).gather(grouped["kind"]),
    ).drop("place", "group")
    if memory is not None:
        shown = pl.concat([shown, memory.cast({"count": shown.schema["count"]})], how="diagonal")
        shown = shown.with_columns(pl.col("kind").fill_null("memory"), pl.col(*_TIMES).fill_null(0), **_no_shapes(keys))
    absent = [] if trace.is_device_traced else ["self_device_ms", "device_ms"]
    absent += [] if len(trace.instants.time) else list(_SIZES)
    return (
        shown.with_columns(pl.col("count").cast(pl.Int64), pl.col(*_TIMES) * _MS)
        .with_columns(pl.lit(None, shown.schema[name] if name in _SIZES else pl.Float64).alias(name) for name in absent)
        .select("name", "kind", *keys, "count", *_TIMES, *_SIZES, "flops")
        .sort("self_cpu_ms", "name", descending=[True, False], maintain_order=True)
    )


def _no_shapes(keys: tuple[str, ...]) -> dict[str, pl.Expr]:
    return {"input_shapes": pl.col("input_shapes").fill_null("[]")} if "input_shapes" in keys else {}
