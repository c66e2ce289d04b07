from __future__ import annotations

from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from perfhooks.core import labels
from perfhooks.core.errors import TraceError
from perfhooks.trace.kinds import Kind
from perfhooks.trace.reading.arguments import MOVED_END, MOVED_START
from perfhooks.trace.reading.events import MALFORMED
from perfhooks.trace.reading.frame_ends import CLOSED
from perfhooks.trace.reading.packing import copy_trace, packed
from perfhooks.trace.writing import crossings
from perfhooks.trace.writing.raw_events import RawEvents

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from perfhooks.trace.model import Trace

Event = dict[str, msgspec.Raw]

_EVENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_EVENT: Final = msgspec.json.Decoder(Event)
_ENCODE: Final = msgspec.json.Encoder().encode


class _Head(msgspec.Struct, gc=False):
    ph: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: msgspec.Raw = msgspec.Raw(b"")


_HEADS: Final = msgspec.json.Decoder(list[_Head])


class _Change(NamedTuple):
    start: int
    later: int
    earlier: int
    lane: int | None
    name: str | None
    closed: int


def write(trace: Trace, source: Path, target: IO[bytes], *, compress: bool) -> None:
    """Copy the file of a trace with decoded names and without crossing slices, so that `read` returns the same trace.

    A file with an invalid event is copied unchanged.
    """
    repair = _Repair(trace)
    if repair.is_needed:
        try:
            with packed(target, compress=compress) as file:
                for text in repair.texts(RawEvents(source, _EVENTS)):
                    file.write(labels.unescaped_text(text))
        except (TraceError, *MALFORMED):
            target.seek(0)
            target.truncate()
        else:
            return
    copy_trace(source, target, compress=compress)


class _Repair:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._lanes: dict[tuple[int, int], int] = {}
        numbers = [thread.tid for thread in trace.threads if isinstance(thread.tid, int)]
        self._next = max(numbers, default=0) + 1
        is_named = np.array([not name.isascii() for name in trace.names], np.bool_)
        self.is_needed = bool(is_named.any())
        self._changes: dict[int, _Change] = {}
        repairs = crossings.find(trace)
        moved_rows = repairs.rows
        renamed_rows = np.flatnonzero(is_named[trace.name] & (trace.kind == Kind.PYTHON))
        closing_ns = dict(zip(*(column.tolist() for column in trace.sparse(CLOSED)), strict=True))
        for row in np.union1d(np.union1d(moved_rows, renamed_rows), list(closing_ns)).astype(np.int64).tolist():
            lane = int(repairs.lane[row])
            self._changes[int(trace.order[row])] = _Change(
                int(trace.start[row]),
                int(repairs.later[row]),
                int(repairs.earlier[row]),
                self._lane_number(int(trace.thread[row]), lane) if lane else None,
                trace.name_of(row) if trace.kind[row] == Kind.PYTHON and is_named[trace.name[row]] else None,
                closing_ns.get(row, 0),
            )
        self.is_needed |= bool(self._changes)
        self._flows = self._ends_of_flows(moved_rows[repairs.lane[moved_rows] > 0].tolist())

    def _lane_number(self, thread: int, lane: int) -> int:
        number = self._lanes.get((thread, lane))
        if number is None:
            number = self._lanes[thread, lane] = self._next
            self._next += 1
        return number

    def _ends_of_flows(self, rows: Sequence[int]) -> dict[tuple[int | str, int | str, int], int]:
        lanes = {}
        for row in rows:
            thread = self._trace.threads[self._trace.thread[row]]
            lane = self._changes[int(self._trace.order[row])].lane
            if lane is not None:
                lanes[thread.pid, thread.tid, int(self._trace.start[row])] = lane
        return lanes

    def texts(self, source: RawEvents[msgspec.Raw]) -> Iterator[bytes]:
        first, separator = 0, b"\n"
        orders = sorted(self._changes)
        position = 0
        for events in source.lists():
            if not first:
                yield source.head
            pieces: list[bytes | msgspec.Raw] = list(events)
            while position < len(orders) and orders[position] < first + len(events):
                index = orders[position] - first
                pieces[index] = _apply_change(events[index], self._changes[orders[position]])
                position += 1
            if self._flows and events:
                self._move_flows(events, pieces)
            first += len(events)
            if pieces:
                yield separator + b",\n".join(pieces)
                separator = b",\n"
        yield b"".join(separator + _ENCODE(event) for event in self._names_of_lanes())
        yield b"\n]" + source.closing(self._metadata())

    def _move_flows(self, events: Sequence[msgspec.Raw], pieces: list[bytes | msgspec.Raw]) -> None:
        heads = _HEADS.decode(b"[" + b",".join(events) + b"]")
        for index, head in enumerate(heads):
            if head.ph in ("s", "f") and (time := _nanoseconds(head.ts)) is not None:
                lane = self._flows.get((head.pid, head.tid, time))
                if lane is not None:
                    pieces[index] = _ENCODE(_EVENT.decode(events[index]) | {"tid": msgspec.Raw(b"%d" % lane)})

    def _names_of_lanes(self) -> Iterator[dict[str, Any]]:
        for (number, lane), tid in self._lanes.items():
            thread = self._trace.threads[number]
            name = thread.name or f"thread {thread.tid}"
            event = {"ph": "M", "ts": 0, "pid": thread.pid, "tid": tid}
            yield event | {"name": "thread_name", "args": {"name": f"{name}, lane {lane + 1}"}}
            if isinstance(thread.tid, int):
                yield event | {"name": "thread_sort_index", "args": {"sort_index": thread.tid}}

    def _metadata(self) -> dict[str, Any]:
        lanes = [
            (self._trace.threads[number].pid, tid, self._trace.threads[number].tid)
            for (number, _), tid in self._lanes.items()
        ]
        return {labels.LANES: lanes} if lanes else {}


def _apply_change(raw: msgspec.Raw, change: _Change) -> bytes | msgspec.Raw:
    event = _EVENT.decode(raw)
    start, length = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur"))
    if start != change.start or length is None:
        return raw
    if change.lane is not None:
        event["tid"] = msgspec.Raw(b"%d" % change.lane)
    if change.name is not None and bytes(event["name"]) == b'"unknown"':
        event["name"] = msgspec.Raw(_ENCODE(change.name))
    if change.closed:
        event["dur"] = _microseconds(length - change.closed)
    if change.later or change.earlier:
        event["ts"] = _microseconds(start + change.later)
        event["dur"] = _microseconds(length - change.later - change.earlier)
        moved = {MOVED_START: change.later, MOVED_END: change.earlier}
        args = _EVENT.decode(event["args"]) if "args" in event else {}
        event["args"] = msgspec.Raw(_ENCODE(args | moved))
    return _ENCODE(event)


def _nanoseconds(micros: msgspec.Raw | None) -> int | None:
    try:
        return None if micros is None else round(Decimal(bytes(micros).decode()) * 1000)
    except (ArithmeticError, ValueError):
        return None


def _microseconds(nanos: int) -> msgspec.Raw:
    micros, remainder = divmod(nanos, 1000)
    return msgspec.Raw(b"%d.%03d" % (micros, remainder))
