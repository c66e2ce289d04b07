"""The calls of operators that a trace recorded, those with equal inputs together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from perfhooks.core.errors import PerfhooksError
from perfhooks.trace.kinds import HOST, Kind
from perfhooks.trace.names import ranges, tensor_types
from perfhooks.trace.nesting.step_marks import step_of
from perfhooks.trace.tables.operators import calls, device_time

if TYPE_CHECKING:
    from perfhooks.trace.model import Flags, Ints, Trace
    from perfhooks.trace.window import Tables

_MS: Final = 1e-6  # milliseconds in a nanosecond
_ARGUMENTS: Final = ("dims", "strides", "types", "inputs")
_OF_TENSOR: Final[Any] = Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=64)]
"""Sizes: no tensor that torch computes with has more dimensions."""
_OF_LIST: Final[Any] = tuple[_OF_TENSOR, ...]


class Argument(NamedTuple):
    """One input of a call, as the recorder saw it."""

    type: str
    """``float``, ``long int``, ``c10::BFloat16``, ... of a tensor; ``TensorList``; ``Scalar``, ``ScalarList``; empty
    for none."""
    dims: tuple[Any, ...]
    """Sizes; of a list of tensors, those of each."""
    strides: tuple[Any, ...] | None
    """The same; None where they were not recorded."""
    value: str
    """What is no tensor, as torch prints it."""

    @property
    def is_tensor(self) -> bool:
        """Whether it is one tensor."""
        return bool(self.type) and self.type not in (*tensor_types.LISTS, tensor_types.NUMBER, tensor_types.NUMBERS)

    @property
    def is_list(self) -> bool:
        """Whether it is a list of tensors."""
        return self.type == tensor_types.TENSORS or (self.type == tensor_types.GENERIC and bool(self.dims))

    @property
    def tensors(self) -> list[tuple[Any, Any]]:
        """The sizes and strides of each tensor in it."""
        if self.is_tensor:
            return [(self.dims, self.strides)]
        strides = self.strides or ()
        known = strides if len(strides) == len(self.dims) else [None] * len(self.dims)
        return list(zip(self.dims, known, strict=True)) if self.is_list else []


@dataclass(frozen=True)
class Signature:
    """What equal calls have in common."""

    name: str
    arguments: tuple[Argument, ...] | None
    """None where no shapes were recorded."""

    @property
    def shapes(self) -> str:
        """The sizes of its tensors, for people."""
        return ", ".join(_shape(given) for given in self.arguments or () if given.is_tensor or given.is_list)


def _shape(argument: Argument) -> str:
    if argument.is_list:
        return f"{len(argument.dims)} tensors" if argument.dims else "list"
    return "x".join(map(str, argument.dims)) or "number"


@dataclass(frozen=True)
class Update:
    """What equal updates by an optimizer have in common; stands where a `Signature` stands for calls of operators."""

    optimizer: str
    """The name of its class in ``torch.optim``."""
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    """Type and sizes of each."""
    options: tuple[tuple[str, Any], ...]
    """What its operators tell of it."""
    implementation: str
    """``for-loop``, ``foreach`` or ``fused``."""

    @property
    def name(self) -> str:
        """As the table shows it."""
        return f"{ranges.UPDATE}{self.optimizer}"

    @property
    def shapes(self) -> str:
        """What it updates, for people."""
        return f"{len(self.parameters)} parameters, {self.implementation}"


@dataclass(frozen=True)
class CountedCalls:
    """The calls on the host in the steps that count, each with what it cost; one entry for each.

    What a call costs is the work that it put on devices if the trace shows a device, else its time on the host.
    """

    trace: Trace
    row: Ints
    """The slice of the trace; sorted by thread and time, so that a call comes before what it calls."""
    parent: Ints
    """The call around it, or -1."""
    own: Ints
    """Nanoseconds without what it called."""
    total: Ints
    """And with it."""
    steps: int
    step_ms: float
    """What a step took, on average."""

    @property
    def on_device(self) -> bool:
        """Whether costs are time of devices."""
        return self.trace.is_device_traced

    @property
    def is_operator(self) -> Flags:
        """Whether it is one, or a node of autograd; others are labels and calls of the device's runtime."""
        operators: Flags = self.trace.kind[self.row] == Kind.OP
        return operators

    def names(self) -> list[str]:
        """What each is called."""
        return [self.trace.names[number] for number in self.trace.name[self.row].tolist()]

    def signatures(self) -> list[Signature]:
        """What each was called with; equal ones are the same object."""
        columns = [self.trace.argument(name)[self.row].tolist() for name in _ARGUMENTS]
        keys = list(zip(self.trace.name[self.row].tolist(), *columns, strict=True))
        known = {key: self._signature(*key) for key in set(keys)}
        return [known[key] for key in keys]

    def _signature(self, name: int, dims: int, strides: int, types: int, inputs: int) -> Signature:
        texts = [self.trace.text(index) for index in (types, dims, strides, inputs)]
        return Signature(self.trace.names[name], _arguments(*texts))


def _arguments(types: object, dims: object, strides: object, inputs: object) -> tuple[Argument, ...] | None:
    """The inputs of a call; None where they were not recorded, or have sizes that no tensor has."""
    if not isinstance(types, list) or (sizes := _sizes(types, dims)) is None:
        return None
    nothing = [None] * len(types)
    values = inputs if isinstance(inputs, list) and len(inputs) == len(types) else [""] * len(types)
    columns = zip(types, sizes, _sizes(types, strides) or nothing, values, strict=True)
    return tuple(Argument(str(kind), size or (), step, str(value)) for kind, size, step, value in columns)


def _sizes(types: list[Any], given: object) -> list[tuple[Any, ...] | None] | None:
    """The sizes, or strides, of each input; None where one cannot have them: a trace may say anything."""
    if not isinstance(given, list) or len(given) != len(types):
        return None
    shapes = [_OF_LIST if kind in tensor_types.LISTS else _OF_TENSOR for kind in types]
    try:
        return [
            msgspec.convert(*pair) if isinstance(pair[0], list) else None for pair in zip(given, shapes, strict=True)
        ]
    except msgspec.ValidationError:
        return None


class _Costs(NamedTuple):
    """What the calls of a window cost; a column is in the order of ``row``."""

    row: Ints
    parent: Ints
    own: Ints
    total: Ints
    counts: Flags
    """Those in steps that count."""
    steps: int
    step_ms: float


def find(tables: Tables, unrecorded_ms: float | None = None, timed: Tables | None = None) -> CountedCalls:
    """The calls of a window.

    Where it is known what a step takes that nobody records, times of the host are without what the recorder added: it
    works for every slice that it writes, so that is spread evenly over them, as in the estimates of findings. An update
    of hundreds of parameters, which is thousands of small operators, takes twice as long when it is recorded.

    Args:
        tables: Those of the window.
        unrecorded_ms: What a step takes when nobody records; None where that is not known.
        timed: Those of the window that it explains, from which times are taken then: each operator's are divided
            among its calls as they are here.

    Raises:
        PerfhooksError: Its trace has no operators, or not their shapes.
    """
    trace = tables.trace
    if not len(trace.sparse("types")[0]):
        raise PerfhooksError(
            f"{trace.path} does not say what its operators were called with: record it with record_shapes=True"
        )
    costs = _costs(tables, unrecorded_ms)
    if timed is not None:
        costs = _as_timed(costs, trace, _costs(timed, unrecorded_ms), timed.trace)
    counts = costs.counts
    place = np.append(np.where(counts, np.cumsum(counts) - 1, -1), -1)
    parent = place[costs.parent[counts]]
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
        own = np.append(total, 0)  # the last one holds what nothing holds: its place is -1
        np.subtract.at(own, tree.parent, total)
        own = own[:-1]
    step_ms = float(tables.steps["wall_ms"].mean() or 0.0)  # type: ignore[arg-type]  # of floats it is one
    if unrecorded_ms and unrecorded_ms < step_ms:
        if not trace.is_device_traced:
            added, to_one = _added(tables, tree.row, step_ms - unrecorded_ms)
            own, total = np.maximum(own - to_one, 0), np.maximum(total - added, 0)
        step_ms = unrecorded_ms
    steps = max(int(tables.counting.sum()), 1)
    return _Costs(tree.row, tree.parent, own, total, _in_counted_steps(tables, tree.row), steps, step_ms)


def _as_timed(costs: _Costs, trace: Trace, timed: _Costs, of: Trace) -> _Costs:
    """Costs of calls by what each name takes in a step of another window; a name that it lacks costs nothing."""
    theirs, mine = _by_name(timed, of), _by_name(costs, trace)
    factor = {name: theirs.get(name, 0.0) / spent if spent else 0.0 for name, spent in mine.items()}
    names = [trace.names[number] for number in trace.name[costs.row].tolist()]
    own = (costs.own * [factor.get(name, 0.0) for name in names]).astype(np.int64)
    return costs._replace(own=own, total=_totals(costs.parent, own), step_ms=timed.step_ms)


def _by_name(costs: _Costs, trace: Trace) -> dict[str, float]:
    """Nanoseconds of a step in the calls of each name that count, less what these called."""
    spent = np.bincount(trace.name[costs.row[costs.counts]], costs.own[costs.counts], len(trace.names)) / costs.steps
    return {name: time for name, time in zip(trace.names, spent.tolist(), strict=True) if time > 0}


def _added(tables: Tables, row: Ints, step_added_ms: float) -> tuple[Ints, int]:
    """What the recorder added to some slices of the host with all in them, and to one without; nanoseconds."""
    trace = tables.trace
    rows = trace.rows(*HOST)
    recorded = _in_counted_steps(tables, rows) & np.isin(trace.thread[rows], tables.marks.thread)
    to_one = int(step_added_ms / _MS * int(tables.counting.sum()) / max(int(recorded.sum()), 1))
    added = np.zeros(len(row), np.int64)
    for thread in np.unique(trace.thread[row]).tolist():
        begun = np.sort(trace.start[rows[trace.thread[rows] == thread]])
        own = np.flatnonzero(trace.thread[row] == thread)
        first, last = np.searchsorted(begun, trace.start[row[own]]), np.searchsorted(begun, trace.end[row[own]])
        added[own] = to_one * (last - first)
    return added, to_one


def _in_counted_steps(tables: Tables, row: Ints) -> Flags:
    """Which slices begin in a step that counts."""
    counts: Flags = np.append(tables.counting, False)[step_of(tables.marks, tables.trace.start[row])]
    return counts


def _totals(parent: Ints, own: Ints) -> Ints:
    """Each call's cost and that of all it called; what holds comes before what it holds."""
    totals = own.tolist()
    for place, above in reversed(list(enumerate(parent.tolist()))):
        if above >= 0:
            totals[above] += totals[place]
    return np.array(totals, np.int64)
