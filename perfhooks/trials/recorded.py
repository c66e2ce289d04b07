"""The operator calls of a trace, grouped by equal inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from perfhooks.core import words
from perfhooks.core.errors import PerfhooksError
from perfhooks.trace.kinds import HOST, Kind
from perfhooks.trace.names import ranges, tensor_types
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.nesting.step_marks import step_of
from perfhooks.trace.tables.operators import calls, device_time

if TYPE_CHECKING:
    from perfhooks.trace.model import Flags, Ints, Trace
    from perfhooks.trace.window import Tables

_ARGUMENTS: Final = ("dims", "strides", "types", "inputs")
_OF_TENSOR: Final[Any] = Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=64)]
"""Sizes of a tensor. torch allows at most 64 dimensions."""
_OF_LIST: Final[Any] = tuple[_OF_TENSOR, ...]


class Argument(NamedTuple):
    type: str
    """Recorded type: ``float``, ``long int``, ...; ``TensorList``, ``Scalar`` or ``ScalarList``. Empty for None."""
    dims: tuple[Any, ...]
    """Sizes of the tensor, or of each tensor of a list."""
    strides: tuple[Any, ...] | None
    """Strides of the tensor, or of each tensor of a list; None if not recorded."""
    value: str
    """Value as printed by torch; empty for a tensor."""

    @property
    def is_tensor(self) -> bool:
        return bool(self.type) and self.type not in (*tensor_types.LISTS, tensor_types.NUMBER, tensor_types.NUMBERS)

    @property
    def is_list(self) -> bool:
        return self.type == tensor_types.TENSORS or (self.type == tensor_types.GENERIC and bool(self.dims))

    @property
    def tensors(self) -> list[tuple[Any, Any]]:
        if self.is_tensor:
            return [(self.dims, self.strides)]
        strides = self.strides or ()
        list_strides = strides if len(strides) == len(self.dims) else [None] * len(self.dims)
        return list(zip(self.dims, list_strides, strict=True)) if self.is_list else []


@dataclass(frozen=True)
class Signature:
    name: str
    arguments: tuple[Argument, ...] | None

    @property
    def shapes(self) -> str:
        return ", ".join(
            _shape(argument) for argument in self.arguments or () if argument.is_tensor or argument.is_list
        )


def _shape(argument: Argument) -> str:
    if argument.is_list:
        return f"{words.count(len(argument.dims), 'tensor')}" if argument.dims else "list"
    return "x".join(map(str, argument.dims)) or "number"


@dataclass(frozen=True)
class Update:
    """An update by an optimizer, with the interface of a `Signature`."""

    optimizer: str
    """Name of the class in ``torch.optim``."""
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    options: tuple[tuple[str, Any], ...]
    """Options of the optimizer, as far as the recorded operators show them."""
    implementation: str

    @property
    def name(self) -> str:
        return f"{ranges.UPDATE}{self.optimizer}"

    @property
    def shapes(self) -> str:
        return f"{words.count(len(self.parameters), 'parameter')}, {self.implementation}"


@dataclass(frozen=True)
class CountedCalls:
    """Host calls in complete steps. Costs are device time if the trace contains a device, else host time."""

    trace: Trace
    row: Ints
    """Index of the slice in the trace. A call precedes its children."""
    parent: Ints
    own: Ints
    total: Ints
    """Time of each call in ns. ``own`` excludes the children of the call."""
    steps: int
    step_ms: float

    @property
    def on_device(self) -> bool:
        return self.trace.is_device_traced

    @property
    def is_operator(self) -> Flags:
        operators: Flags = self.trace.kind[self.row] == Kind.OP
        return operators

    def names(self) -> list[str]:
        return [self.trace.names[number] for number in self.trace.name[self.row].tolist()]

    def signatures(self) -> list[Signature]:
        """Calls with equal inputs share one signature object."""
        columns = [self.trace.argument(name)[self.row].tolist() for name in _ARGUMENTS]
        keys = list(zip(self.trace.name[self.row].tolist(), *columns, strict=True))
        by_key = {key: self._signature(*key) for key in set(keys)}
        return [by_key[key] for key in keys]

    def _signature(self, name: int, dims: int, strides: int, types: int, inputs: int) -> Signature:
        texts = [self.trace.text(index) for index in (types, dims, strides, inputs)]
        return Signature(self.trace.names[name], _arguments(*texts))


def _arguments(types: object, dims: object, strides: object, inputs: object) -> tuple[Argument, ...] | None:
    if not isinstance(types, list) or (sizes := _sizes(types, dims)) is None:
        return None
    nothing = [None] * len(types)
    values = inputs if isinstance(inputs, list) and len(inputs) == len(types) else [""] * len(types)
    columns = zip(types, sizes, _sizes(types, strides) or nothing, values, strict=True)
    return tuple(Argument(str(kind), size or (), step, str(value)) for kind, size, step, value in columns)


def _sizes(types: list[Any], column: object) -> list[tuple[Any, ...] | None] | None:
    if not isinstance(column, list) or len(column) != len(types):
        return None
    shapes = [_OF_LIST if kind in tensor_types.LISTS else _OF_TENSOR for kind in types]
    try:
        return [
            msgspec.convert(*pair) if isinstance(pair[0], list) else None for pair in zip(column, shapes, strict=True)
        ]
    except msgspec.ValidationError:
        return None


class _Costs(NamedTuple):
    row: Ints
    parent: Ints
    own: Ints
    total: Ints
    counts: Flags
    steps: int
    step_ms: float


def load_calls(tables: Tables, unrecorded_ms: float | None = None, timed: Tables | None = None) -> CountedCalls:
    """Return the operator calls of a window.

    With ``unrecorded_ms`` (unprofiled step time), the recorder's overhead is subtracted from host times, evenly over
    all slices. With ``timed``, another window, the time of each operator comes from this window.
    """
    trace = tables.trace
    if not len(trace.sparse("types")[0]):
        raise PerfhooksError(f"{trace.path} contains no operator inputs. Record it again with record_shapes=True.")
    costs = _costs(tables, unrecorded_ms)
    if timed is not None:
        costs = _as_timed(costs, trace, _costs(timed, unrecorded_ms), timed.trace)
    counts = costs.counts
    new_index = np.append(np.where(counts, np.cumsum(counts) - 1, -1), -1)
    parent = new_index[costs.parent[counts]]
    return CountedCalls(
        trace, costs.row[counts], parent, costs.own[counts], costs.total[counts], costs.steps, costs.step_ms
    )


def _costs(tables: Tables, unrecorded_ms: float | None) -> _Costs:
    trace = tables.trace
    tree = calls(trace)
    if trace.is_device_traced:
        own = device_time(trace, tree)
        total = _totals(tree.parent, own)
    else:
        total = (trace.end - trace.start)[tree.row]
        own = np.append(total, 0)
        np.subtract.at(own, tree.parent, total)
        own = own[:-1]
    step_ms = float(tables.steps["wall_ms"].mean() or 0.0)  # type: ignore[arg-type]  # the mean of floats is a float
    if unrecorded_ms and unrecorded_ms < step_ms:
        if not trace.is_device_traced:
            overhead, per_slice = _recorder_overhead(tables, tree.row, step_ms - unrecorded_ms)
            own, total = np.maximum(own - per_slice, 0), np.maximum(total - overhead, 0)
        step_ms = unrecorded_ms
    steps = max(int(tables.counting.sum()), 1)
    return _Costs(tree.row, tree.parent, own, total, _is_in_counted_step(tables, tree.row), steps, step_ms)


def _as_timed(costs: _Costs, trace: Trace, timed: _Costs, of: Trace) -> _Costs:
    timed_ns, own_ns = _ns_by_name(timed, of), _ns_by_name(costs, trace)
    factor = {name: timed_ns.get(name, 0.0) / ns if ns else 0.0 for name, ns in own_ns.items()}
    names = [trace.names[number] for number in trace.name[costs.row].tolist()]
    own = (costs.own * [factor.get(name, 0.0) for name in names]).astype(np.int64)
    return costs._replace(own=own, total=_totals(costs.parent, own), step_ms=timed.step_ms)


def _ns_by_name(costs: _Costs, trace: Trace) -> dict[str, float]:
    step_ns = np.bincount(trace.name[costs.row[costs.counts]], costs.own[costs.counts], len(trace.names)) / costs.steps
    return {name: ns for name, ns in zip(trace.names, step_ns.tolist(), strict=True) if ns > 0}


def _recorder_overhead(tables: Tables, row: Ints, step_added_ms: float) -> tuple[Ints, int]:
    trace = tables.trace
    rows = trace.rows(*HOST)
    is_recorded = _is_in_counted_step(tables, rows) & np.isin(trace.thread[rows], tables.marks.thread)
    per_slice = int(step_added_ms / MS * int(tables.counting.sum()) / max(int(is_recorded.sum()), 1))
    overhead = np.zeros(len(row), np.int64)
    for thread in np.unique(trace.thread[row]).tolist():
        starts = np.sort(trace.start[rows[trace.thread[rows] == thread]])
        own = np.flatnonzero(trace.thread[row] == thread)
        first, last = np.searchsorted(starts, trace.start[row[own]]), np.searchsorted(starts, trace.end[row[own]])
        overhead[own] = per_slice * (last - first)
    return overhead, per_slice


def _is_in_counted_step(tables: Tables, row: Ints) -> Flags:
    counts: Flags = np.append(tables.counting, False)[step_of(tables.marks, tables.trace.start[row])]
    return counts


def _totals(parent: Ints, own: Ints) -> Ints:
    totals = own.tolist()
    for index, parent_index in reversed(list(enumerate(parent.tolist()))):
        if parent_index >= 0:
            totals[parent_index] += totals[index]
    return np.array(totals, np.int64)
