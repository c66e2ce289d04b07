"""From events to columns: chunk after chunk, every string kept once."""

from __future__ import annotations

import math
from itertools import compress, repeat
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from perfhooks.trace.defects import forget_aliased_external_ids
from perfhooks.trace.events import Args, Event, decode_object
from perfhooks.trace.kinds import DEVICE_WORK, Kind, Lane, classify, lane
from perfhooks.trace.model import Column, Doubt, Flows, Instants, Ints, Thread, Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ABSENT: Final = Args()
_LIMIT: Final = 4.0e15  # microseconds; twice this still fits 63 bits of nanoseconds

_COLLECTIVE: Final = ("collective", "dtype", "in_elements", "out_elements", "group_size", "group_name", "group_ranks")
_HOST: Final = ("external", "old_external", "sequence", "forward_thread", "dims", "types", "inputs", "call_stack")
_DEVICE: Final = (
    *("external", "old_external", "correlation", "device", "stream", "nbytes", "bandwidth", "registers"),
    *("shared_memory", "blocks_per_sm", "warps_per_sm", "grid", "block", "occupancy", "graph", "graph_node"),
)
_FIELDS: Final[dict[Kind, tuple[str, ...]]] = {
    Kind.OP: (*_HOST, *_COLLECTIVE),
    Kind.ANNOTATION: (*_HOST, *_COLLECTIVE),
    Kind.PYTHON: ("python_id", "python_parent", "module"),
    Kind.RUNTIME: ("external", "old_external", "correlation"),
    Kind.DEVICE_ANNOTATION: ("external", "old_external"),
    Kind.SYNC: ("correlation", "device", "stream", "sync_kind"),
    **dict.fromkeys(DEVICE_WORK, (*_DEVICE, *_COLLECTIVE)),
}
_TEXTS: Final = {name for name in Args.__struct_fields__ if type(getattr(_ABSENT, name)).__name__ == "Raw"}
_FLOATS: Final = {name for name in Args.__struct_fields__ if isinstance(getattr(_ABSENT, name), float)}
_INSTANT: Final = ("address", "size", "allocated", "reserved", "device_type", "device_id")


class _Numbering(dict[Any, int]):
    """Numbers keys in the order of their first appearance."""

    def __missing__(self, key: object) -> int:
        number = self[key] = len(self)
        return number


class Columns:
    """Collects events; `trace` makes the whole of them."""

    def __init__(self) -> None:
        self.events = 0
        self.dropped = 0
        self._names = _Numbering()
        self._categories = _Numbering()
        self._kinds: list[Kind] = []
        self._threads = _Numbering()
        self._texts = _Numbering()
        self._chunks: list[dict[str, Column]] = []
        self._arguments: dict[str, list[tuple[Ints, Column]]] = {}
        self._slices = 0
        self._labels: dict[tuple[int | str, int | str], str] = {}
        self._instants: list[Column] = []
        self._flows: dict[str, dict[int | str, tuple[int, int]]] = {"s": {}, "f": {}}

    def add(self, events: Sequence[Event]) -> None:
        """Take the next events of the file."""
        chosen = [event.ph == "X" for event in events]
        places = np.flatnonzero(chosen) + self.events
        self.events += len(events)
        self._add_slices(list(compress(events, chosen)), places)
        others = [event for event, taken in zip(events, chosen, strict=True) if not taken]
        self._add_instants([event for event in others if event.ph == "i" and event.name == "[memory]"])
        self._add_flows([event for event in others if event.cat == "fwdbwd" and event.ph in ("s", "f")])
        self._add_labels(event for event in others if event.ph == "M" and event.name == "thread_name")
        self.dropped += sum(not event.ph for event in others)

    def _add_slices(self, slices: list[Event], places: Ints) -> None:
        start, good = nanoseconds([event.ts for event in slices])
        span, measured = nanoseconds([event.dur for event in slices])
        good &= measured
        if not good.all():
            self.dropped += int((~good).sum())
            slices = [slices[row] for row in np.flatnonzero(good)]
            start, span, places = start[good], span[good], places[good]
        category = self._number_categories(slices)
        kind = np.array([*self._kinds, 0], np.int8)[category]
        chunk = {
            "kind": kind,
            "category": category,
            "name": np.array([self._names[event.name] for event in slices], np.int32),
            "thread": self._number_threads(slices, kind),
            "start": start,
            "end": start + np.maximum(span, 0),
            "order": places,
        }
        self._add_arguments(slices, kind)
        self._chunks.append(chunk)
        self._slices += len(slices)

    def _number_categories(self, slices: list[Event]) -> Column:
        numbers = [self._categories[event.cat] for event in slices]
        if len(self._categories) > len(self._kinds):
            first = dict(zip(reversed(numbers), reversed(slices), strict=True))
            for name, number in list(self._categories.items())[len(self._kinds) :]:
                args = first[number].args or _ABSENT
                self._kinds.append(classify(name, on_stream=args.device >= 0 and args.stream != -1))
        return np.array(numbers, np.int32)

    def _number_threads(self, slices: list[Event], kind: Column) -> Column:
        lanes = np.array([lane(each) for each in Kind], np.int8)[kind].tolist()
        numbers = [self._threads[where, event.pid, event.tid] for where, event in zip(lanes, slices, strict=True)]
        return np.array(numbers, np.int32)

    def _add_arguments(self, slices: list[Event], kind: Column) -> None:
        for each, names in _FIELDS.items():
            rows = np.flatnonzero(kind == each)
            if not len(rows):
                continue
            args = [slices[row].args or _ABSENT for row in rows.tolist()]
            skipped: tuple[str, ...] = ("old_external",) if args[0].old_external < 0 else ()
            absent = _ABSENT.collective
            if all(map(is_, map(attrgetter("collective"), args), repeat(absent))):
                skipped += _COLLECTIVE
            for name in names:
                if name not in skipped:
                    self._add_argument(name, rows + self._slices, list(map(attrgetter(name), args)))

    def _add_argument(self, name: str, rows: Ints, values: list[Any]) -> None:
        column = self._column(name, values)
        present = ~np.isnan(column) if column.dtype.kind == "f" else column != -1
        if present.any():
            found = self._arguments.setdefault("external" if name == "old_external" else name, [])
            found.append((rows[present], column[present]))

    def _column(self, name: str, values: list[Any]) -> Column:
        if name in _TEXTS:
            absent, number = getattr(_ABSENT, name), self._texts
            return np.array([-1 if raw is absent else number[bytes(raw)] for raw in values], np.int32)
        if name in _FLOATS:
            return np.array(values, np.float64)
        return _integers(values)

    def _add_instants(self, events: list[Event]) -> None:
        if not events:
            return
        time, good = nanoseconds([event.ts for event in events])
        self.dropped += int((~good).sum())
        args = [event.args or _ABSENT for event in events]
        thread = [self._threads[Lane.HOST, event.pid, event.tid] for event in events]
        fields = [_integers([getattr(arg, name) for arg in args]) for name in _INSTANT]
        self._instants.append(np.stack([np.array(thread, np.int64), time, *fields])[:, good])

    def _add_flows(self, events: list[Event]) -> None:
        time, good = nanoseconds([event.ts for event in events])
        for event, moment, fine in zip(events, time.tolist(), good.tolist(), strict=True):
            if fine:
                thread = self._threads[Lane.HOST, event.pid, event.tid]
                self._flows[event.ph][event.id] = (thread, moment)

    def _add_labels(self, events: Iterable[Event]) -> None:
        for event in events:
            label = decode_object(b'{"name":' + bytes(event.args.label or b'""') + b"}") if event.args else None
            self._labels[event.pid, event.tid] = str((label or {}).get("name", ""))

    def trace(self, path: str, metadata: dict[str, Any], doubts: Sequence[Doubt]) -> Trace:
        """Everything so far, sorted."""
        columns = _joined(self._chunks)
        arguments = {name: _joined_argument(parts) for name, parts in self._arguments.items()}
        forget_aliased_external_ids(columns["kind"], arguments)
        order = np.lexsort((-columns["end"], columns["start"], columns["thread"]))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return Trace(
            path=path,
            metadata=metadata,
            names=list(self._names),
            categories=list(self._categories),
            threads=[Thread(where, pid, tid, self._labels.get((pid, tid), "")) for where, pid, tid in self._threads],
            texts=list(self._texts),
            columns={name: column[order] for name, column in columns.items()},
            arguments={name: _moved(place, *pair) for name, pair in arguments.items()},
            instants=self._sorted_instants(),
            flows=self._paired_flows(),
            doubts=doubts,
        )

    def _sorted_instants(self) -> Instants:
        table = np.concatenate([np.empty((2 + len(_INSTANT), 0), np.int64), *self._instants], axis=1)
        return Instants(*table[:, np.argsort(table[1], kind="stable")])

    def _paired_flows(self) -> Flows:
        ends = self._flows["f"]
        pairs = [(*start, *ends[key]) for key, start in self._flows["s"].items() if key in ends]
        return Flows(*np.array(pairs, np.int64).reshape(-1, 4).T)


def nanoseconds(values: Sequence[Any]) -> tuple[Ints, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Turn microseconds, floats or decimals, into integer nanoseconds, and say which of them were times at all.

    A double holds today's relative time stamps to half a nanosecond, but their product with 1000 no longer: hence the
    detour over whole microseconds.
    """
    if values and not isinstance(values[0], float):
        return _exact_nanoseconds(values)
    micros = np.array(values, np.float64)
    good = np.abs(micros) < _LIMIT  # false for NaN
    micros = np.where(good, micros, 0.0)
    whole = np.floor(micros)
    return whole.astype(np.int64) * 1000 + np.rint((micros - whole) * 1000).astype(np.int64), good


def _exact_nanoseconds(values: Sequence[Any]) -> tuple[Ints, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    good = np.array([math.isfinite(value) and abs(value) < _LIMIT for value in values], np.bool_)
    nanos = [round(value * 1000) if fine else 0 for value, fine in zip(values, good, strict=True)]
    return np.array(nanos, np.int64), good


def _integers(values: list[Any]) -> Ints:
    try:
        return np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer(value) for value in values], np.int64)


def _integer(value: object) -> int:
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return -1
    # addresses may be written unsigned; they are only ever compared
    return ((value + 2**63) % 2**64) - 2**63 if isinstance(value, int) else -1


def _joined(chunks: list[dict[str, Column]]) -> dict[str, Column]:
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _joined_argument(parts: list[tuple[Ints, Column]]) -> tuple[Ints, Column]:
    return np.concatenate([rows for rows, _ in parts]), np.concatenate([values for _, values in parts])


def _moved(place: Ints, rows: Ints, values: Column) -> tuple[Ints, Column]:
    moved = place[rows]
    order = np.argsort(moved, kind="stable")
    return moved[order], values[order]
