"""The calls of operators that a trace recorded, those with equal inputs together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from perfhooks.errors import PerfhooksError
from perfhooks.trace.kinds import HOST, Kind
from perfhooks.trace.operators import calls, device_time
from perfhooks.trace.steps import step_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.trace.model import Flags, Ints, Trace
    from perfhooks.trace.tables import Tables

_MS: Final = 1e-6  # milliseconds in a nanosecond
_ARGUMENTS: Final = ("dims", "strides", "types", "inputs")
_STEP: Final = "Optimizer.step#"
_DIMENSIONS: Final = 64
"""No tensor that torch computes with has more."""


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
        return bool(self.type) and self.type not in _NO_TENSORS

    @property
    def is_list(self) -> bool:
        """Whether it is a list of tensors."""
        return self.type == "TensorList" or (self.type == "GenericList" and bool(self.dims))


_NO_TENSORS: Final = frozenset({"Scalar", "ScalarList", "TensorList", "GenericList"})


@dataclass(frozen=True)
class Signature:
    """What equal calls have in common."""

    name: str
    arguments: tuple[Argument, ...] | None
    """None where no shapes were recorded."""

    @property
    def shapes(self) -> str:
        """The sizes of its tensors, for people."""
        return ", ".join(map(_shape, filter(lambda each: each.is_tensor or each.is_list, self.arguments or ())))


def _shape(argument: Argument) -> str:
    if argument.is_list:
        return f"{len(argument.dims)} tensors" if argument.dims else "list"
    return "x".join(map(str, argument.dims)) or "number"


@dataclass(frozen=True)
class Calls:
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
        found: Flags = self.trace.kind[self.row] == Kind.OP
        return found

    def names(self) -> list[str]:
        """What each is called."""
        return [self.trace.names[number] for number in self.trace.name[self.row].tolist()]

    def signatures(self) -> list[Signature]:
        """What each was called with; equal ones are the same object."""
        columns = [self.trace.argument(each)[self.row].tolist() for each in _ARGUMENTS]
        names = self.trace.name[self.row].tolist()
        known: dict[tuple[int, ...], Signature] = {}
        found = []
        for key in zip(names, *columns, strict=True):
            if key not in known:
                known[key] = self._signature(*key)
            found.append(known[key])
        return found

    def _signature(self, name: int, dims: int, strides: int, types: int, inputs: int) -> Signature:
        texts = [self.trace.text(each) for each in (types, dims, strides, inputs)]
        return Signature(self.trace.names[name], _arguments(*texts))


def _arguments(types: object, dims: object, strides: object, inputs: object) -> tuple[Argument, ...] | None:
    if not isinstance(types, list) or not isinstance(dims, list) or len(dims) != len(types):
        return None
    if not all(map(_are_sizes, dims)):
        return None
    if not isinstance(inputs, list) or len(inputs) != len(types):
        inputs = [""] * len(types)
    if not isinstance(strides, list) or len(strides) != len(types) or not all(map(_are_sizes, strides)):
        strides = [None] * len(types)
    found = (
        Argument(str(kind), _sizes(sizes) or (), _sizes(steps), str(value))
        for kind, sizes, steps, value in zip(types, dims, strides, inputs, strict=True)
    )
    return tuple(found)


def _are_sizes(given: object) -> bool:
    """Whether a tensor, or each of a list of tensors, can have these sizes: a trace may say anything."""
    if not isinstance(given, list):
        return True
    shapes = given if any(isinstance(each, list) for each in given) else [given]
    return all(
        isinstance(shape, list) and len(shape) <= _DIMENSIONS and all(type(each) is int and each >= 0 for each in shape)
        for shape in shapes
    )


def _sizes(given: object) -> tuple[Any, ...] | None:
    """A list of sizes, or a list of such lists, that can be a key."""
    if not isinstance(given, list):
        return None
    return tuple(_sizes(each) if isinstance(each, list) else each for each in given)


def find(tables: Tables, unrecorded_ms: float | None = None) -> Calls:
    """The calls of a window.

    Where it is known what a step takes that nobody records, times of the host are without what the recorder added: it
    works for every slice that it writes, so that is spread evenly over them, as in the estimates of findings. An update
    of hundreds of parameters, which is thousands of small operators, takes twice as long when it is recorded.

    Args:
        tables: Those of the window.
        unrecorded_ms: What a step takes when nobody records; None where that is not known.

    Raises:
        PerfhooksError: Its trace has no operators, or not their shapes.
    """
    trace = tables.trace
    if not len(trace.sparse("types")[0]):
        raise PerfhooksError(
            f"{trace.path} does not say what its operators were called with: record it with record_shapes=True"
        )
    tree = calls(trace)
    cost = device_time(trace, tree) if trace.is_device_traced else _host_time(trace, tree.row, tree.parent)
    total = _totals(tree.parent, cost) if trace.is_device_traced else (trace.end - trace.start)[tree.row]
    inside = _inside(tables, tree.row)
    step_ms = float(tables.steps["wall_ms"].mean() or 0.0)  # type: ignore[arg-type]  # of floats it is one
    if unrecorded_ms and unrecorded_ms < step_ms:
        if not trace.is_device_traced:
            added, one = _added(tables, tree.row, step_ms - unrecorded_ms)
            cost, total = np.maximum(cost - one, 0), np.maximum(total - added, 0)
        step_ms = unrecorded_ms
    place = np.append(np.where(inside, np.cumsum(inside) - 1, -1), -1)
    own, total = cost[inside], total[inside]
    count = max(int(tables.counting.sum()), 1)
    return Calls(trace, tree.row[inside], place[tree.parent[inside]], own, total, count, step_ms)


def _added(tables: Tables, row: Ints, step_added_ms: float) -> tuple[Ints, int]:
    """What the recorder added to some slices of the host with all in them, and to one without; nanoseconds."""
    trace = tables.trace
    rows = trace.rows(*HOST)
    inside = step_of(tables.marks, trace.start[rows])
    mine = rows[np.append(tables.counting, False)[inside] & np.isin(trace.thread[rows], tables.marks.thread)]
    each = int(step_added_ms / _MS * int(tables.counting.sum()) / max(len(mine), 1))
    found = np.zeros(len(row), np.int64)
    for thread in np.unique(trace.thread[row]).tolist():
        begun = np.sort(trace.start[rows[trace.thread[rows] == thread]])
        own = np.flatnonzero(trace.thread[row] == thread)
        first, last = np.searchsorted(begun, trace.start[row[own]]), np.searchsorted(begun, trace.end[row[own]])
        found[own] = each * (last - first)
    return found, each


def _inside(tables: Tables, row: Ints) -> Flags:
    """Which slices lie in a step that counts."""
    step = step_of(tables.marks, tables.trace.start[row])
    found: Flags = np.append(tables.counting, False)[step]
    return found


def _host_time(trace: Trace, row: Ints, parent: Ints) -> Ints:
    own: Ints = (trace.end - trace.start)[row]
    length = own.copy()
    np.subtract.at(own, parent[parent >= 0], length[parent >= 0])
    return own


def _totals(parent: Ints, own: Ints) -> Ints:
    """Each call's cost and that of all it called; what holds comes before what it holds."""
    total = own.tolist()
    for place, above in reversed(list(enumerate(parent.tolist()))):
        if above >= 0:
            total[above] += total[place]
    found: Ints = np.array(total, np.int64)
    return found


def updates(found: Calls) -> Iterator[tuple[int, str]]:
    """The calls that are updates by an optimizer, each with the name of its class."""
    for place, name in enumerate(found.names()):
        if name.startswith(_STEP):
            yield place, name.removeprefix(_STEP).partition(".")[0]
