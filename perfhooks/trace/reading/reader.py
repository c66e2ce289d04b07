from __future__ import annotations

import os
import re
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from perfhooks.core import words
from perfhooks.core.errors import TraceError
from perfhooks.trace.kinds import HOST, Kind
from perfhooks.trace.model import Doubt, Trace
from perfhooks.trace.names.communication import texts
from perfhooks.trace.nesting import missing_work
from perfhooks.trace.reading import ascend, formats, frame_ends, processes
from perfhooks.trace.reading.arguments import STRIDED, VARIANTS
from perfhooks.trace.reading.columns import Columns
from perfhooks.trace.reading.events import EXACT, MALFORMED, PLAIN, Event, decode_end, decode_object, salvage
from perfhooks.trace.reading.source import BLOCK, LONGEST, OF_PERFETTO, TornArchiveError, blocks, opened
from perfhooks.trace.reading.times import exact_nanoseconds, nanoseconds
from perfhooks.trace.reading.typed import OddEventError, TypedEvents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perfhooks.trace.model import Flags, Ints

_LOOKAHEAD: Final = 4096
"""Bytes after a chunk that decide whether the list of events ends with the chunk."""
_PATIENCE: Final = 16
"""Chunks without an event boundary after which a more general boundary pattern is used."""
_LEARNING: Final = 4
"""Number of chunks after which each category has a struct for fast decoding. Nearly all categories of a file occur in
these chunks.
"""

_EVENTS_BEGIN: Final = re.compile(rb'"traceEvents"\s*:\s*\[|\A(?:\xef\xbb\xbf)?\s*\[')
_ANOTHER: Final = re.compile(rb'"traceEvents"\s*:\s*\[|\A\[\s*\{|\}\s*\]\s*\[\s*\{')
_FIRST_EVENT: Final = re.compile(rb"\s*\{")
# strings escape their quotes, so no valid string contains this text
_COMPACT_BOUNDARY: Final = re.compile(rb'\}\s*,(?=\s*\{\s*"(?:ph|name|cat|ts|pid|tid|dur|args|id|s)"\s*:)')
_FIRST_KEY: Final = re.compile(rb'\s*\{\s*("(?:ph|name|cat|ts|pid|tid|dur|args|id|s)")\s*:')
_EVENT_AHEAD: Final = re.compile(rb'\}\s*,\s*\{[^{}\[\]]*"ph"\s*:')
_PERFETTO: Final = b"\n"
"""First byte of a Perfetto trace in protobuf. JSON text may also begin with this byte, but contains no zero byte."""
_TEXT_TIME: Final = re.compile(rb'"ts"\s*:\s*"')
_FRACTION: Final = re.compile(rb'"ts"\s*:\s*\d{13,}\.\d')
_TIME: Final = attrgetter("ts")


def read(
    path: str | os.PathLike[str],
    *,
    communication: str | None = None,
    max_unpacked_mb: float | None = None,
    strides: bool = False,
) -> Trace:
    """Read a trace of Kineto, or of another recorder in Chrome's format.

    If a file is truncated or partly damaged, the trace contains all complete events, and `Trace.doubts` describes the
    damage. An archive that exceeds the size limit is read up to the limit.

    Args:
        path: A ``.json`` or ``.json.gz`` file, or a URL that fsspec opens.
        communication: Parts of kernel names, for example ``"mine|other"``. Kernels whose names contain one of these
        parts count as communication, like kernels of known libraries (`perfhooks.trace.names.communication.LIBRARIES`).
        max_unpacked_mb: Maximum size of an unpacked archive in megabytes. The default is the environment variable
            ``PERFHOOKS_MAX_UNPACKED_MB``, else the larger of 268 and 100 times the size of the archive.
        strides: Also read the strides of operator inputs. No table needs strides.

    Raises:
        OptionError: ``communication`` has an empty part, or the limit is no number above 0.
        TraceError: The file cannot be opened, is no trace of PyTorch, has no usable event, or contains several
            processes.
    """
    texts(communication)
    name = os.fspath(path)
    with opened(name) as file:
        reader = _Reader(name, strides=strides)
        reader.consume(_until_error(blocks(file, max_unpacked_mb), reader))
    trace = reader.finish()
    processes.check_single(trace)
    trace.communication = communication
    frame_ends.close(trace)
    missing_work.cut_overflowed(trace)
    return trace


def _until_error(source: Iterator[bytes], reader: _Reader) -> Iterator[bytes]:
    try:
        yield from source
    except TornArchiveError as error:
        reader.doubts.append(Doubt("cut-off", 1, f"{error}; only the part before it was read"))
    except OSError as error:
        reader.doubts.append(Doubt("cut-off", 1, f"reading stopped: {error}"))


class _Reader:
    def __init__(self, path: str, *, strides: bool) -> None:
        self.path = path
        self.doubts: list[Doubt] = []
        variants = (STRIDED if strides else VARIANTS) | ascend.TASKS
        self._columns = Columns(variants)
        self._typed = TypedEvents(variants)
        self._lists = 0
        self._metadata: dict[str, Any] = {}
        self._sample = b""
        self._exact = False
        self._lost = 0
        self._boundary = _COMPACT_BOUNDARY
        self._looser: re.Pattern[bytes] | None = None
        self._tail: bytearray | None = None
        self._is_inside_endless = False

    def consume(self, source: Iterable[bytes]) -> None:
        source = iter(source)
        buffer = self._read_head(source)
        searched = 0
        for block in source:
            buffer += block
            if self._tail is not None:
                self._grow_tail(buffer)
                continue
            if len(buffer) < BLOCK:
                continue
            if self._is_inside_endless and not self._is_past_endless(buffer):
                continue
            cut = self._last_boundary(buffer, searched)
            searched = 0 if cut else len(buffer) - 256
            if not cut and len(buffer) > LONGEST:
                self._give_up(buffer)
            if self._looser is not None and len(buffer) > _PATIENCE * BLOCK:
                self._boundary, self._looser, searched = self._looser, None, 0
            if cut:
                with memoryview(buffer) as view, view[: cut - 1] as events:
                    text = b"".join((b"[", events, b"]"))
                self._add_list(text, bytes(buffer[cut - 2 : cut + _LOOKAHEAD]))
                # at the end of the list, the comma belongs to the keys after it
                del buffer[: cut if self._tail is None else cut - 1]
        self._read_rest(buffer)

    def _give_up(self, buffer: bytearray) -> None:
        events, _, list_end = salvage(bytes(buffer))
        self._columns.add(events, *exact_nanoseconds([event.ts for event in events]))
        if list_end:
            self._tail = bytearray(list_end[1:])
            buffer.clear()
        else:
            self._is_inside_endless = True
            self._lost += 1

    def _is_past_endless(self, buffer: bytearray) -> bool:
        end = self._boundary.search(buffer)
        self._is_inside_endless = end is None
        del buffer[: end.end() if end else max(0, len(buffer) - _LOOKAHEAD)]
        return end is not None

    def _read_head(self, source: Iterator[bytes]) -> bytearray:
        head = bytearray()
        for block in source:
            position = max(len(head) - 64, 0)
            head += block
            if formats.archive(head) is not None:
                break
            match = _EVENTS_BEGIN.search(head, position)
            if match:
                self._sample = bytes(head[: 1 << 16])
                self._metadata = self._object(bytes(head[: match.end()]) + b"]}")
                del head[: match.end()]
                self._choose_boundary(head, source)
                return head
            if len(head) > LONGEST:
                break
        raise TraceError(f"{self.path} is no trace: {self._why_not(bytes(head))}")

    def _why_not(self, head: bytes) -> str:
        if self.doubts:
            return f"no list of traceEvents in its first {len(head)} bytes ({self.doubts[0].text})"
        if not head.strip():
            return "it is empty"
        if archive := formats.archive(head):
            return f"it is an archive ({archive}): unpack it"
        if head.startswith(_PERFETTO) and b"\0" in head[:_LOOKAHEAD]:
            return f"it {OF_PERFETTO}"
        try:
            msgspec.json.decode(head, type=msgspec.Raw)
        except MALFORMED as error:
            return f"no list of traceEvents in its first {len(head)} bytes, and no JSON: {error}"
        return "it is JSON, but has no list of traceEvents"

    def _choose_boundary(self, head: bytearray, source: Iterator[bytes]) -> None:
        while not head.strip():
            block = next(source, None)
            if block is None:
                return
            head[: max(0, len(head) - _LOOKAHEAD)] = b""
            head += block
        first = _FIRST_EVENT.match(head)
        space = first[0][:-1] if first else b""
        if b"\n" in space:
            # strings contain no line breaks, and nested objects have a deeper indentation
            indent = space[space.rindex(b"\n") + 1 :]
            self._boundary = re.compile(rb"\}\s*,(?=\s*\n" + re.escape(indent) + rb"\{)")
        elif key := _FIRST_KEY.match(head):
            self._looser = self._boundary
            self._boundary = re.compile(rb"\}\s*,(?=\s*\{\s*" + key[1] + rb"\s*:)")

    def _last_boundary(self, buffer: bytearray, searched: int) -> int:
        window = 1 << 13
        while True:
            start = max(searched, len(buffer) - window)
            last = 0
            for match in self._boundary.finditer(buffer, start):
                last = match.end()
            if last or start <= searched:
                return last
            window *= 16

    def _add_list(self, text: bytes, following: bytes = b"") -> None:
        self._lists += 1
        is_typed = self._lists > _LEARNING and not self._columns.has_bare_slices
        remainder = self._add_typed(text) if is_typed else text
        if remainder:
            self._add_any(remainder, following)

    def _add_typed(self, text: bytes) -> bytes:
        self._typed.learn(self._columns.categories)
        try:
            self._columns.add(*self._timed(self._typed.decode, text))
        except OddEventError as error:
            pieces, odd = _Pieces(text, self._boundary), error.index
        else:
            return b""
        for _ in range(4):
            if odd is None or not self._add_around(pieces, odd):
                break
            try:
                self._columns.add(*self._timed(self._typed.decode, pieces.remainder))
            except OddEventError as error:
                odd = error.index
            else:
                return b""
        return pieces.remainder

    def _add_around(self, pieces: _Pieces, odd: int) -> bool:
        for count, decode in ((odd, self._typed.decode), (64, _decode_any)):
            text, expected = pieces.first(count)
            try:
                timed_events = self._timed(decode, text)
            except (OddEventError, *MALFORMED):
                return False
            if len(timed_events[0]) != expected:
                return False
            self._columns.add(*timed_events)
            pieces.skip(expected)
        self._typed.learn(self._columns.categories)
        return True

    def _add_any(self, text: bytes, following: bytes = b"") -> None:
        try:
            timed_events = self._timed(_decode_any, text)
        except MALFORMED:
            self._add_one_by_one(text[1:-1], following)
        else:
            self._columns.add(*timed_events)

    def _add_one_by_one(self, text: bytes, following: bytes = b"") -> None:
        if _ANOTHER.search(text):
            raise processes.several(self.path, "recordings")
        events = self._decode_one_by_one(text, following)
        self._columns.add(events, *exact_nanoseconds([event.ts for event in events]))

    def _timed(self, decode: Callable[..., Sequence[Event]], text: bytes) -> tuple[Sequence[Event], Ints, Flags]:
        if not self._exact:
            try:
                plain = decode(text, exact=False)
            except (OddEventError, *MALFORMED):
                self._exact = _TEXT_TIME.search(text) is not None
                if not self._exact:
                    raise
            else:
                micros = np.fromiter(map(_TIME, plain), np.float64, len(plain))
                # above this number, a double of microseconds is less precise than one nanosecond
                self._exact = bool((micros >= 2.0**43).any()) and _FRACTION.search(text) is not None
                if not self._exact:
                    return plain, *nanoseconds(micros)
        exact = decode(text, exact=True)
        return exact, *exact_nanoseconds([event.ts for event in exact])

    def _decode_one_by_one(self, text: bytes, following: bytes) -> list[Event]:
        events: list[Event] = []
        begin = 0
        ends = [match.end() - 1 for match in self._boundary.finditer(text)]
        last = max((match.start() for match in _EVENT_AHEAD.finditer(text)), default=-1)
        is_event_ahead = _EVENT_AHEAD.match(following) is not None
        for end in (*ends, len(text)):
            piece = text[begin:end]
            try:
                events += self._timed(_decode_any, b"[" + piece + b"]")[0]
            except MALFORMED:
                piece_events, lost_events, list_end = salvage(piece)
                self._lost += lost_events
                events += piece_events
                if list_end and (last >= end - 1 or is_event_ahead):
                    self._lost += 1  # the closing bracket belongs to a list inside an event
                elif list_end:
                    self._tail = bytearray(list_end[1:] + text[end:])
                    break
            begin = end + 1
        return events

    def _grow_tail(self, buffer: bytearray) -> None:
        if self._tail is not None and len(self._tail) <= LONGEST:
            self._tail += buffer
        buffer.clear()

    def _read_rest(self, buffer: bytearray) -> None:
        if self._tail is not None:
            self._grow_tail(buffer)
            self._read_tail()
            return
        if self._is_inside_endless:
            self.doubts.append(Doubt("cut-off", 1, "the file ends in the middle of an event"))
            return
        keys = decode_end(bytes(buffer))
        if keys is None:
            self._read_truncated(bytes(buffer))
            return
        events = bytes(keys.pop("traceEvents")).strip()
        pairs = (msgspec.json.encode(key) + b":" + bytes(value) for key, value in keys.items())
        self._metadata |= decode_object(b"{" + b",".join(pairs) + b"}") or {}
        if events[1:-1].strip():
            self._add_list(events)

    def _read_truncated(self, text: bytes) -> None:
        before = self._lost
        if text.strip():
            self._add_one_by_one(text)
        if self._tail is not None:
            self._read_tail()
        elif self._lost > before:
            self._lost -= 1  # the reported damage already includes this event
            self.doubts.append(Doubt("cut-off", 1, "the file ends in the middle of an event"))
        else:
            self.doubts.append(Doubt("cut-off", 1, "the file ends before the end of its list of events"))

    def _read_tail(self) -> None:
        tail = bytes(self._tail or b"").strip().lstrip(b",")
        if _ANOTHER.search(tail):
            raise processes.several(self.path, "recordings")
        if tail:
            self._metadata |= self._object(b"{" + tail)

    def _object(self, text: bytes) -> dict[str, Any]:
        keys = decode_object(text)
        if keys is None:
            if not text.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
                problem = "the metadata outside of traceEvents is damaged, so rank and devices may be unknown"
                self.doubts.append(Doubt("unread-metadata", 1, problem))
            return {}
        keys.pop("traceEvents", None)
        return keys

    def finish(self) -> Trace:
        self._columns.pair_edges()
        dropped, damaged = self._lost + self._columns.dropped, self._lost + self._columns.damaged
        if dropped >= self._columns.events + self._lost:
            damage = f" that can be read ({dropped} are damaged)" if dropped else ""
            raise TraceError(f"{self.path} contains no event{damage}")
        kinds = self._columns.kinds
        is_foreign = not kinds & {*HOST} and formats.written_by(self._sample) is not None
        if is_foreign or (kinds <= {Kind.OTHER}):
            raise TraceError(formats.refusal(self.path, self._sample))
        if damaged:
            self.doubts.append(Doubt("dropped-events", damaged, f"{words.count(damaged, 'event')} could not be read"))
        return self._columns.trace(self.path, self._metadata, self.doubts)


def _decode_any(text: bytes, *, exact: bool) -> Sequence[Event]:
    return EXACT.decode(text) if exact else PLAIN.decode(text)


class _Pieces:
    def __init__(self, text: bytes, boundary: re.Pattern[bytes]) -> None:
        self._text = text
        self._cuts = [0, *(match.end() - 1 for match in boundary.finditer(text)), len(text) - 1]
        self._first = 0

    def first(self, count: int) -> tuple[bytes, int]:
        last = min(self._first + count, len(self._cuts) - 1)
        return b"".join((b"[", self._text[self._cuts[self._first] + 1 : self._cuts[last]], b"]")), last - self._first

    def skip(self, count: int) -> None:
        self._first += count

    @property
    def remainder(self) -> bytes:
        return self.first(len(self._cuts))[0]
