"""Conversion of events to columns. Each distinct string is stored once."""

from __future__ import annotations

import enum
import re
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from perfhooks.trace.kinds import LEGACY_HOST, LEGACY_PROCESSES, NAMED, Kind, Lane, classify, lane
from perfhooks.trace.model import Column, Doubt, Flows, Instants, Ints, Thread, Trace, epoch
from perfhooks.trace.names import ranges, runtime_calls
from perfhooks.trace.names.ranges import FORWARD_BACKWARD
from perfhooks.trace.names.ranges import MEMORY as ALLOCATION
from perfhooks.trace.reading import ascend, next_recorder, old_operators, repaired
from perfhooks.trace.reading.arguments import (
    FIRST_OF_COLLECTIVES,
    MEMORY,
    NOTHING,
    ON_STREAM,
    Allocation,
    Arguments,
    fields,
    parsed,
)
from perfhooks.trace.reading.begin_end import BEGIN, END, BeginEnd
from perfhooks.trace.reading.counters import CounterRows
from perfhooks.trace.reading.processes import ProcessNames
from perfhooks.trace.reading.recorder_defects import forget_aliased_external_ids, strip_addresses
from perfhooks.trace.reading.times import lengths
from perfhooks.trace.reading.typed import Category
from perfhooks.trace.reading.validity import Validity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import msgspec

    from perfhooks.trace.model import Flags
    from perfhooks.trace.reading.arguments import MarkedStruct
    from perfhooks.trace.reading.events import Event

_LONGEST_NAME: Final = 8192
"""Maximum letters of a name. The longest recorded name, of a template kernel, has 5,123 letters."""

_LABEL: Final = re.compile(ranges.NOT_OPERATORS)
_CALL: Final = re.compile(runtime_calls.RUNTIME)
_DURATION: Final = attrgetter("dur")
_NAME: Final = attrgetter("name")
_ARGS: Final = attrgetter("args")
_FLOWS: Final = frozenset((FORWARD_BACKWARD, *ascend.FLOWS))
_ORIGIN: Final = tuple(map(attrgetter, ("ph", "cat", "pid", "tid")))


class _Numbering(dict[Any, int]):
    def __missing__(self, key: object) -> int:
        number = self[key] = len(self)
        return number


class _Role(enum.IntEnum):
    NOTHING = 0
    SLICE = 1
    INSTANT = 2
    FLOW = 3
    LABEL = 4
    DAMAGED = 5
    COUNTER = 6
    EDGE = 7


_ROLES: Final = {
    "X": _Role.SLICE,
    "i": _Role.INSTANT,
    "M": _Role.LABEL,
    "C": _Role.COUNTER,
    "": _Role.DAMAGED,
    **dict.fromkeys((BEGIN, END), _Role.EDGE),
}


class _Origin(NamedTuple):
    role: int
    kind: int = -1
    category: int = -1
    thread: int = -1


class Columns:
    def __init__(self, variants: Mapping[Kind, Sequence[MarkedStruct]]) -> None:
        self.events = 0
        self.damaged = 0
        self.categories: dict[str, Category] = {}
        self.has_bare_slices = False
        self._variants = variants
        self._names = _Numbering()
        self._categories = _Numbering()
        self._kinds: list[Kind] = []
        self._threads = _Numbering()
        self._keys = _Numbering()
        self._origins = np.empty((len(_Origin._fields), 0), np.int32)
        self._texts = _Numbering({b"": 0})
        self._chunks: list[dict[str, Column]] = []
        self._arguments: dict[str, list[tuple[Ints, Column]]] = {}
        self._slices = 0
        self._processes = ProcessNames()
        self._instants: list[Column] = []
        self._counters = CounterRows()
        self._edges = BeginEnd()
        self._validity = Validity()
        self._flows: dict[str, dict[int | str, tuple[int, int]]] = {"s": {}, "f": {}}
        self._links = ascend.FlowEnds()

    def add(self, events: Sequence[Event], start: Ints, good: Flags) -> None:
        """Add events with their start times in ns. ``good`` marks the valid times."""
        origins = zip(*(map(getter, events) for getter in _ORIGIN), strict=True)
        keys = np.fromiter(map(self._keys.__getitem__, origins), np.int64, len(events))
        if self._origins.shape[1] < len(self._keys):
            self._add_origins(events, keys)
        role, kind, category, thread = self._origins[:, keys]
        order = np.arange(self.events, self.events + len(events))
        self.events += len(events)
        columns = {"kind": kind.astype(np.int8), "category": category, "thread": thread, "start": start, "order": order}
        rows = np.flatnonzero(role == _Role.SLICE)
        if len(rows) < len(events):
            self._add_others(events, role, keys, start, good)
            events = list(compress(events, (role == _Role.SLICE).tolist()))
            columns, good = {name: column[rows] for name, column in columns.items()}, good[rows]
        self._add_slices(events, columns, good)

    def _add_origins(self, events: Sequence[Event], keys: Ints) -> None:
        count = self._origins.shape[1]
        numbers, first = np.unique(keys, return_index=True)
        new = [self._origin(events[row]) for row in first[numbers >= count].tolist()]
        self._origins = np.hstack([self._origins, np.array(new, np.int32).T])

    def _origin(self, first: Event) -> _Origin:
        origin = self._origin_of(first)
        if first.cat and origin.role not in (_Role.LABEL, _Role.DAMAGED, _Role.COUNTER, _Role.EDGE):
            kind = Kind(origin.kind) if origin.role == _Role.SLICE else None
            new = Category(frozenset([first.ph]), kind, origin.role == _Role.INSTANT)
            old = self.categories.setdefault(first.cat, new)
            if old[1:] == new[1:]:  # the first event decides the kind of the category
                self.categories[first.cat] = new._replace(phases=old.phases | new.phases)
        return origin

    def _origin_of(self, first: Event) -> _Origin:
        if first.ph in ("s", "f"):
            return _Origin(_Role.FLOW if first.cat in _FLOWS else _Role.NOTHING)
        role = _ROLES.get(first.ph, _Role.NOTHING)
        if role != _Role.SLICE:
            return _Origin(role)
        name = str(first.pid) if not first.cat and first.pid in LEGACY_PROCESSES else first.cat
        category = self._categories[name]
        if category == len(self._kinds):
            self._kinds.append(classify(name, on_stream=_is_on_stream(first.args)))
        self.has_bare_slices |= not first.cat
        kind = self._kinds[category]
        return _Origin(role, kind, category, self._threads[lane(kind), first.pid, first.tid])

    def _add_slices(self, slices: Sequence[Event], columns: dict[str, Column], good: Flags) -> None:
        span, measured = lengths(np.fromiter(map(_DURATION, slices), np.float64, len(slices)))
        columns["end"] = columns["start"] + span
        good = self._validity.good(columns["kind"], good, span, measured)
        if not good.all():
            slices = list(compress(slices, good.tolist()))
            columns = {name: column[good] for name, column in columns.items()}
        columns["name"] = np.fromiter(map(self._names.__getitem__, map(_NAME, slices)), np.int32, len(slices))
        self._add_arguments(slices, columns["kind"])
        self._chunks.append(columns)
        self._slices += len(slices)

    def _add_others(self, events: Sequence[Event], role: Column, keys: Ints, time: Ints, good: Flags) -> None:
        self.damaged += int((role == _Role.DAMAGED).sum())
        instant = role == _Role.INSTANT
        if instant.any():
            names = map(_NAME, compress(events, instant.tolist()))
            rows = np.flatnonzero(instant)[[name == ALLOCATION for name in names]]
            self._validity.drop_untimed(int((~good[rows]).sum()))
            self._add_instants(events, keys, time, rows[good[rows]])
        self._add_flows(events, time, np.flatnonzero((role == _Role.FLOW) & good).tolist())
        for row in np.flatnonzero(role == _Role.LABEL).tolist():
            self._processes.add(events[row])
        for row in np.flatnonzero((role == _Role.COUNTER) & good).tolist():
            self._counters.add(events[row], int(time[row]))
        edges = role == _Role.EDGE
        self._validity.drop_untimed(int((edges & ~good).sum()))
        for row in np.flatnonzero(edges & good).tolist():
            self._edges.add(events[row], int(time[row]))

    def _add_arguments(self, slices: Sequence[Event], kind: Column) -> None:
        for number in np.flatnonzero(np.bincount(kind)).tolist():
            if number in self._variants:
                is_kind = kind == number
                rows = np.flatnonzero(is_kind) + self._slices
                args = list(map(_ARGS, compress(slices, is_kind.tolist())))
                for name, column in self._read(args, self._variants[number]).items():
                    self._add_argument(name, rows, column)

    def _add_argument(self, name: str, rows: Ints, column: Column) -> None:
        is_present = ~np.isnan(column) if column.dtype.kind == "f" else column != -1
        count = np.count_nonzero(is_present)
        if count:
            chunks = self._arguments.setdefault("external" if name == "old_external" else name, [])
            chunks.append((rows, column) if count == len(rows) else (rows[is_present], column[is_present]))

    def _read(self, args: Sequence[Any], variants: Sequence[MarkedStruct]) -> dict[str, Column]:
        structs: Sequence[Arguments] = args if isinstance(args[0], Arguments) else parsed(args, variants)
        columns: dict[str, Column] = {}
        for name, absent, value in fields(type(structs[0])):
            if isinstance(absent, float):
                columns[name] = np.fromiter(map(value, structs), np.float64, len(structs))
            elif absent is not NOTHING:
                columns[name] = _integers(value, structs)
            elif (texts := list(map(value, structs))).count(absent) < len(texts):
                columns[name] = np.fromiter(map(self._texts.__getitem__, map(bytes, texts)), np.int32, len(texts)) - 1
            elif name == FIRST_OF_COLLECTIVES:
                break
        return columns

    def _add_instants(self, events: Sequence[Event], keys: Ints, time: Ints, rows: Ints) -> None:
        if not len(rows):
            return
        by_name = self._read([events[row].args for row in rows.tolist()], MEMORY)
        columns = [by_name[field.name] for field in fields(Allocation)]
        _, first, position = np.unique(keys[rows], return_index=True, return_inverse=True)
        origins = [events[row] for row in rows[first].tolist()]
        threads = [self._threads[Lane.HOST, event.pid, event.tid] for event in origins]
        self._instants.append(np.stack([np.array(threads, np.int64)[position], time[rows], *columns]))

    def _add_flows(self, events: Sequence[Event], time: Ints, rows: list[int]) -> None:
        for row, moment in zip(rows, time[rows].tolist(), strict=True):
            event = events[row]
            if event.cat == FORWARD_BACKWARD:
                self._flows[event.ph][event.id] = (self._threads[Lane.HOST, event.pid, event.tid], moment)
            else:
                self._links.add(event, moment)

    def trace(self, path: str, metadata: dict[str, Any], doubts: Sequence[Doubt]) -> Trace:
        columns = _joined(self._chunks)
        arguments = {name: _joined_argument(parts) for name, parts in self._arguments.items()}
        timed = self._validity.timed(columns["start"], columns["end"], columns["kind"], epoch(metadata))
        if not timed.all():
            arguments = {name: _filter_rows(timed, *pair) for name, pair in arguments.items()}
            columns = {name: column[timed] for name, column in columns.items()}
        repaired.restore(columns, arguments, self._threads, self._names, metadata)
        self._classify_by_name(columns)
        npu = self._ascend_adapter()
        if npu is not None:
            doubts = [*doubts, *npu.classify(columns, arguments)]
        is_old = old_operators.CATEGORY in self._categories
        if is_old:
            old_operators.rename_nodes(columns, self._categories[old_operators.CATEGORY], self._names)
        next_recorder.name_by_arguments(columns, arguments, self._names, list(self._texts)[1:])
        next_recorder.to_streams(columns, arguments, self._threads)
        forget_aliased_external_ids(columns["kind"], arguments)
        order = np.lexsort((-columns["end"], columns["start"], columns["thread"]))
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        columns = {name: column[order] for name, column in columns.items()}
        arguments = {name: _reorder(position, *pair) for name, pair in arguments.items()}
        if next_recorder.CALLS & self._categories.keys():
            next_recorder.number_launches(columns, arguments)
        if is_old:
            old_operators.number_nodes(columns, list(self._names), arguments)
        if npu is not None:
            npu.link(columns, arguments)
            metadata = ascend.with_rank(metadata, path)
        names, indices = strip_addresses(self._names)
        columns["name"] = indices[columns["name"]].astype(np.int32)
        return Trace(
            path=path,
            metadata=metadata,
            names=[name if len(name) <= _LONGEST_NAME else _without_middle(name) for name in names],
            categories=list(self._categories),
            threads=[
                Thread(thread_lane, pid, tid, self._processes.threads.get((pid, tid), ""))
                for thread_lane, pid, tid in self._threads
            ],
            texts=list(self._texts)[1:],
            **columns,
            sparse_columns=arguments,
            instants=self._sorted_instants(),
            flows=self._paired_flows(),
            counters=self._counters.all(npu.device if npu else None),
            doubts=[*doubts, *self._validity.doubts],
            is_npu=npu is not None,
        )

    def pair_edges(self) -> None:
        """Add the slices that the file writes as two events. Call this function once, after the last event."""
        if self._edges:
            self.add(*self._edges.paired())

    @property
    def dropped(self) -> int:
        return self.damaged + self._validity.count

    @property
    def kinds(self) -> set[Kind]:
        is_npu = ascend.is_ascend(self._processes)
        return {*self._kinds, *((Kind.OP,) if self._instants else ()), *((Kind.KERNEL,) if is_npu else ())}

    def _ascend_adapter(self) -> ascend.AscendTranslator | None:
        if not ascend.is_ascend(self._processes):
            return None
        return ascend.AscendTranslator(
            self._processes, ascend.Numbers(self._names, self._texts, self._threads), self._links
        )

    def _classify_by_name(self, columns: dict[str, Column]) -> None:
        self._classify_labels(columns)
        for category in NAMED.keys() & self._categories.keys():
            is_category = columns["category"] == self._categories[category]
            for name, kind in NAMED[category].items():
                if name in self._names:
                    columns["kind"][is_category & (columns["name"] == self._names[name])] = kind

    def _classify_labels(self, columns: dict[str, Column]) -> None:
        kind, names = columns["kind"], list(self._names)
        numbers = np.flatnonzero(np.bincount(columns["name"][kind == Kind.OP], minlength=1)).tolist()
        labels = [number for number in numbers if _LABEL.match(names[number])]
        if labels:
            kind[(kind == Kind.OP) & np.isin(columns["name"], labels)] = Kind.ANNOTATION
        if LEGACY_HOST in self._categories:
            calls = [number for number in numbers if _CALL.match(names[number])]
            legacy = columns["category"] == self._categories[LEGACY_HOST]
            kind[legacy & np.isin(columns["name"], calls)] = Kind.RUNTIME

    def _sorted_instants(self) -> Instants:
        table = np.concatenate([np.empty((len(Instants._fields), 0), np.int64), *self._instants], axis=1)
        return Instants(*table[:, np.argsort(table[1], kind="stable")])

    def _paired_flows(self) -> Flows:
        ends = self._flows["f"]
        pairs = [(*start, *ends[key]) for key, start in self._flows["s"].items() if key in ends]
        return Flows(*np.array(pairs, np.int64).reshape(-1, 4).T)


def _is_on_stream(args: msgspec.Raw) -> bool:
    (work,) = parsed([args], ON_STREAM)
    return all(field.value(work) != field.absent for field in fields(type(work)) if field.name in ("device", "stream"))


def _without_middle(name: str) -> str:
    return f"{name[: _LONGEST_NAME // 2]}…{name[-(_LONGEST_NAME // 2 - 1) :]}"


def _integers(value: Callable[[Any], Any], structs: Sequence[Arguments]) -> Ints:
    try:
        return np.fromiter(map(value, structs), np.int64, len(structs))
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer(value(struct)) for struct in structs], np.int64)


def _integer(value: object) -> int:
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return -1
    if not isinstance(value, int) or not -(2**63) <= value < 2**64:
        return -1
    return value if value < 2**63 else value - 2**64  # some recorders write unsigned addresses


def _joined(chunks: list[dict[str, Column]]) -> dict[str, Column]:
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _joined_argument(parts: list[tuple[Ints, Column]]) -> tuple[Ints, Column]:
    return np.concatenate([rows for rows, _ in parts]), np.concatenate([values for _, values in parts])


def _filter_rows(is_valid: Flags, rows: Ints, values: Column) -> tuple[Ints, Column]:
    position, is_row_valid = np.cumsum(is_valid) - 1, is_valid[rows]
    return position[rows[is_row_valid]], values[is_row_valid]


def _reorder(position: Ints, rows: Ints, values: Column) -> tuple[Ints, Column]:
    new_rows = position[rows]
    order = np.argsort(new_rows, kind="stable")
    return new_rows[order], values[order]
