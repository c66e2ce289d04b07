"""Reading a Kineto trace of any age and size, whole or not."""

from __future__ import annotations

import os
import re
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from perfhooks.core.errors import TraceError
from perfhooks.trace.kinds import HOST, Kind
from perfhooks.trace.model import Doubt, Trace
from perfhooks.trace.names.communication import texts
from perfhooks.trace.nesting import missing_work
from perfhooks.trace.reading import ascend, formats, frame_ends, processes
from perfhooks.trace.reading.arguments import STRIDED, VARIANTS
from perfhooks.trace.reading.columns import Columns, exact_nanoseconds, nanoseconds
from perfhooks.trace.reading.events import EXACT, MALFORMED, PLAIN, Event, decode_object, salvage
from perfhooks.trace.reading.source import BLOCK, OF_PERFETTO, TornArchiveError, blocks, opened
from perfhooks.trace.reading.typed import OddEventError, TypedEvents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perfhooks.trace.model import Flags, Ints

_CHUNK: Final = BLOCK
_GLANCE: Final = 4096
"""Bytes behind a chunk that tell whether its last event was the last one."""
_PATIENCE: Final = 16
"""Chunks without the end of an event, after which the reader looks for ends more freely."""
_LONGEST: Final = 16 << 20
"""Bytes that one event may have, and the keys before and behind the events: the reader skips what is longer. A
collective that lists 100,000 ranks has less than 1 MB."""
_LEARNING: Final = 4
"""Chunks after which the reader knows the categories of a file's events, or nearly all of them."""
_ODD: Final = 4
"""Events of a chunk that may not fit their categories, before the chunk is read as any events."""
_FEW: Final = 64
"""Events around one that does not fit, which are read as any: those without a category come together."""

_EVENTS_BEGIN: Final = re.compile(rb'"traceEvents"\s*:\s*\[|\A(?:\xef\xbb\xbf)?\s*\[')
_ANOTHER: Final = re.compile(rb'"traceEvents"\s*:\s*\[|\A\[\s*\{|\}\s*\]\s*\[\s*\{')
"""Where another list of events begins, behind the first."""
_FIRST_EVENT: Final = re.compile(rb"\s*\{")
# A quote that a string contains is escaped, so outside of broken files no string can hold this text.
_COMPACT_BOUNDARY: Final = re.compile(rb'\}\s*,(?=\s*\{\s*"(?:ph|name|cat|ts|pid|tid|dur|args|id|s)"\s*:)')
_FIRST_KEY: Final = re.compile(rb'\s*\{\s*("(?:ph|name|cat|ts|pid|tid|dur|args|id|s)")\s*:')
_EVENT_AHEAD: Final = re.compile(rb'\}\s*,\s*\{[^{}\[\]]*"ph"\s*:')
_PERFETTO: Final = b"\n"
"""How a trace in Perfetto's protobuf begins, as torch's next recorder writes it to such names: with a packet (field 1,
of some length). Text that begins so goes on with a letter or a bracket, and holds no zero."""
_TEXT_TIME: Final = re.compile(rb'"ts"\s*:\s*"')
_FRACTION: Final = re.compile(rb'"ts"\s*:\s*\d{13,}\.\d')
# Above this many microseconds a double no longer tells one nanosecond from the next.
_DOUBLE_LIMIT: Final = 2.0**43
_TIME: Final = attrgetter("ts")


def read(
    path: str | os.PathLike[str],
    *,
    communication: str | None = None,
    max_unpacked_mb: float | None = None,
    strides: bool = False,
) -> Trace:
    """Read a trace that Kineto (or anybody in Chrome's format) wrote.

    A file that is cut off or partly damaged gives what is whole, and says so in `Trace.doubts`. So does an archive that
    unpacks to more than it may, which ends there.

    Args:
        path: a ``.json`` or ``.json.gz`` file, or a URL that fsspec opens.
        communication: parts of names, as ``"mine|other"``: kernels in whose name one of them is found communicate, as
            do those of the libraries that are known (`perfhooks.trace.names.communication.LIBRARIES`).
        max_unpacked_mb: how many megabytes an archive may unpack to. None is what the variable
            ``PERFHOOKS_MAX_UNPACKED_MB`` of the environment says, else 100 times its size, or 268 if that is more.
        strides: read how the inputs of operators lay in memory as well; no table needs it.

    Raises:
        OptionError: ``communication`` is no such text, or the limit is no number above 0.
        TraceError: it cannot be opened, it is no trace of PyTorch, nothing in it can be used, or it holds several
            processes.
    """
    texts(communication)
    name = os.fspath(path)
    with opened(name) as file:
        reader = _Reader(name, strides=strides)
        reader.consume(_careful(blocks(file, max_unpacked_mb), reader))
    trace = reader.finish()
    processes.check_single(trace)
    trace.communication = communication
    frame_ends.close(trace)
    missing_work.cut_overflowed(trace)
    return trace


def _careful(source: Iterator[bytes], reader: _Reader) -> Iterator[bytes]:
    try:
        yield from source
    except TornArchiveError as error:
        reader.doubts.append(Doubt("cut-off", 1, f"{error}; what could be unpacked was read"))
    except OSError as error:
        reader.doubts.append(Doubt("cut-off", 1, f"reading stopped: {error}"))


class _Reader:
    """Cuts the text of a trace into chunks of whole events and gathers them as columns."""

    def __init__(self, path: str, *, strides: bool) -> None:
        self.path = path
        self.doubts: list[Doubt] = []
        variants = (STRIDED if strides else VARIANTS) | ascend.TASKS
        self._columns = Columns(variants)
        self._typed = TypedEvents(variants)
        self._lists = 0
        self._metadata: dict[str, Any] = {}
        self._sample = b""
        """The beginning of the file."""
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
            if len(buffer) < _CHUNK:
                continue
            if self._is_inside_endless and not self._is_past_endless(buffer):
                continue
            cut = self._last_boundary(buffer, searched)
            searched = 0 if cut else len(buffer) - 256
            if not cut and len(buffer) > _LONGEST:
                self._give_up(buffer)
            if self._looser is not None and len(buffer) > _PATIENCE * _CHUNK:  # events that do not all begin alike
                self._boundary, self._looser, searched = self._looser, None, 0
            if cut:
                with memoryview(buffer) as view, view[: cut - 1] as events:
                    listed = b"".join((b"[", events, b"]"))
                self._add_list(listed, bytes(buffer[cut - 2 : cut + _GLANCE]))
                # the comma belongs to what follows the list, if the list ended in this chunk
                del buffer[: cut if self._tail is None else cut - 1]
        self._read_rest(buffer)

    def _give_up(self, buffer: bytearray) -> None:
        """Take what begins an endless text: the last event, with keys behind the list, or an event that is too long."""
        saved, _, behind = salvage(bytes(buffer))
        self._columns.add(saved, *exact_nanoseconds([event.ts for event in saved]))
        if behind:
            self._tail = bytearray(behind[1:])
            buffer.clear()
        else:
            self._is_inside_endless = True
            self._lost += 1

    def _is_past_endless(self, buffer: bytearray) -> bool:
        """Forget more of an endless text; say whether it ended."""
        end = self._boundary.search(buffer)
        self._is_inside_endless = end is None
        del buffer[: end.end() if end else max(0, len(buffer) - _GLANCE)]
        return end is not None

    def _read_head(self, source: Iterator[bytes]) -> bytearray:
        head = bytearray()
        for block in source:
            searched = max(len(head) - 64, 0)
            head += block
            found = _EVENTS_BEGIN.search(head, searched)
            if found:
                self._sample = bytes(head[: formats.SAMPLE])
                self._metadata = self._object(bytes(head[: found.end()]) + b"]}")
                del head[: found.end()]
                self._choose_boundary(head, source)
                return head
            if len(head) > _LONGEST:
                break
        raise TraceError(f"{self.path} is no trace: {self._why_not(bytes(head))}")

    def _why_not(self, head: bytes) -> str:
        if not head.strip():
            return "it is empty"
        if head.startswith(_PERFETTO) and b"\0" in head[:_GLANCE]:
            return OF_PERFETTO
        try:
            msgspec.json.decode(head, type=msgspec.Raw)
        except MALFORMED as error:
            return f"no list of traceEvents in its first {len(head)} bytes, and no JSON: {error}"
        return "it is JSON, but has no list of traceEvents"

    def _choose_boundary(self, head: bytearray, source: Iterator[bytes]) -> None:
        """Learn from the first event how this file sets one event off from the next."""
        while not head.strip():
            block = next(source, None)
            if block is None:
                return
            head[: max(0, len(head) - _GLANCE)] = b""  # what is left tells how the first event is indented
            head += block
        first = _FIRST_EVENT.match(head)
        space = first[0][:-1] if first else b""
        if b"\n" in space:
            # A line break never stands inside a string, and deeper objects are indented deeper.
            indent = space[space.rindex(b"\n") + 1 :]
            self._boundary = re.compile(rb"\}\s*,(?=\s*\n" + re.escape(indent) + rb"\{)")
        elif key := _FIRST_KEY.match(head):
            # Events of one writer begin alike; objects inside of them, as some put into lists, seldom as they do.
            self._looser = self._boundary
            self._boundary = re.compile(rb"\}\s*,(?=\s*\{\s*" + key[1] + rb"\s*:)")

    def _last_boundary(self, buffer: bytearray, searched: int) -> int:
        """Where the last whole event of the buffer ends, behind its comma; 0 if it holds none."""
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
        """Read a list of events; with what follows it, if it is longer than it was taken for.

        Args:
            text: the list.
            following: the end of its last event, and some of what comes behind.
        """
        self._lists += 1
        is_typed = self._lists > _LEARNING and not self._columns.has_bare_slices
        left = self._add_typed(text) if is_typed else text
        if left:
            self._add_any(left, following)

    def _add_typed(self, text: bytes) -> bytes:
        """Read a list as one of categories that are known, but for a few odd events; what is left of it to read."""
        self._typed.learn(self._columns.seen)
        try:
            self._columns.add(*self._timed(self._typed.decode, text))
        except OddEventError as error:
            pieces, odd = _Pieces(text, self._boundary), error.place
        else:
            return b""
        for _ in range(_ODD):
            if odd is None or not self._add_around(pieces, odd):
                break
            try:
                self._columns.add(*self._timed(self._typed.decode, pieces.left))
            except OddEventError as error:
                odd = error.place
            else:
                return b""
        return pieces.left

    def _add_around(self, pieces: _Pieces, odd: int) -> bool:
        """Read what comes before an odd event as typed, and some from it on as any; say if all were single events."""
        for count, decode in ((odd, self._typed.decode), (_FEW, _decode_any)):
            text, expected = pieces.first(count)
            try:
                found = self._timed(decode, text)
            except (OddEventError, *MALFORMED):
                return False
            if len(found[0]) != expected:
                return False
            self._columns.add(*found)
            pieces.forget(expected)
        self._typed.learn(self._columns.seen)
        return True

    def _add_any(self, text: bytes, following: bytes = b"") -> None:
        try:
            found = self._timed(_decode_any, text)
        except MALFORMED:
            self._add_picked(text[1:-1], following)
        else:
            self._columns.add(*found)

    def _add_picked(self, text: bytes, following: bytes = b"") -> None:
        if _ANOTHER.search(text):
            raise processes.several(self.path, "recordings")
        events = self._pick(text, following)
        self._columns.add(events, *exact_nanoseconds([event.ts for event in events]))

    def _timed(self, decode: Callable[..., Sequence[Event]], text: bytes) -> tuple[Sequence[Event], Ints, Flags]:
        """The events of a list, and their ``ts`` as `Columns.add` takes it."""
        if not self._exact:
            try:
                plain = decode(text, exact=False)
            except (OddEventError, *MALFORMED):
                self._exact = _TEXT_TIME.search(text) is not None
                if not self._exact:
                    raise
            else:
                micros = np.fromiter(map(_TIME, plain), np.float64, len(plain))
                self._exact = bool((micros >= _DOUBLE_LIMIT).any()) and _FRACTION.search(text) is not None
                if not self._exact:
                    return plain, *nanoseconds(micros)
        exact = decode(text, exact=True)
        return exact, *exact_nanoseconds([event.ts for event in exact])

    def _pick(self, text: bytes, following: bytes) -> list[Event]:
        """Read event by event what cannot be read at once."""
        events: list[Event] = []
        begin = 0
        ends = [match.end() - 1 for match in self._boundary.finditer(text)]
        last = max((match.start() for match in _EVENT_AHEAD.finditer(text)), default=-1)
        followed = _EVENT_AHEAD.match(following) is not None
        for end in (*ends, len(text)):
            piece = text[begin:end]
            try:
                events += self._timed(_decode_any, b"[" + piece + b"]")[0]
            except MALFORMED:
                saved, lost, behind = salvage(piece)
                self._lost += lost
                events += saved
                if behind and (last >= end - 1 or followed):
                    self._lost += 1  # the end of some list inside of an event
                elif behind:
                    self._tail = bytearray(behind[1:] + text[end:])
                    break
            begin = end + 1
        return events

    def _grow_tail(self, buffer: bytearray) -> None:
        if self._tail is not None and len(self._tail) <= _LONGEST:
            self._tail += buffer
        buffer.clear()

    def _read_rest(self, buffer: bytearray) -> None:
        """Read what stands behind the last boundary: the last event, the end of the list, keys after it."""
        if self._tail is not None:
            self._grow_tail(buffer)
            self._read_tail()
            return
        if self._is_inside_endless:
            self.doubts.append(Doubt("cut-off", 1, "the file ends in the middle of an event"))
            return
        rest = _rest(bytes(buffer))
        if rest is None:
            self._read_torn(bytes(buffer))
            return
        events = bytes(rest.pop("traceEvents")).strip()
        self._metadata |= _values(rest)
        if events[1:-1].strip():
            self._add_list(events)

    def _read_torn(self, text: bytes) -> None:
        before = self._lost
        if text.strip():
            self._add_picked(text)
        if self._tail is not None:
            self._read_tail()
        elif self._lost > before:
            self._lost -= 1  # the one that the end of the file cut in two
            self.doubts.append(Doubt("cut-off", 1, "the file ends in the middle of an event"))
        else:
            self.doubts.append(Doubt("cut-off", 1, "the file ends before the list of its events does"))

    def _read_tail(self) -> None:
        tail = bytes(self._tail or b"").strip().lstrip(b",")
        if _ANOTHER.search(tail):
            raise processes.several(self.path, "recordings")
        if tail:
            self._metadata |= self._object(b"{" + tail)

    def _object(self, text: bytes) -> dict[str, Any]:
        found = decode_object(text)
        if found is None:
            if not text.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
                self.doubts.append(Doubt("unread-metadata", 1, "the keys beside traceEvents could not be read"))
            return {}
        found.pop("traceEvents", None)
        return found

    def finish(self) -> Trace:
        self._columns.pair_edges()
        dropped, damaged = self._lost + self._columns.dropped, self._lost + self._columns.damaged
        if dropped >= self._columns.events + self._lost:
            raise TraceError(f"{self.path} holds no event that can be read ({dropped} could not)")
        kinds = self._columns.kinds
        is_foreign = not kinds & {*HOST} and formats.written_by(self._sample) is not None
        if is_foreign or (kinds <= {Kind.OTHER}):
            raise TraceError(formats.refusal(self.path, self._sample))
        if damaged:
            self.doubts.append(Doubt("dropped-events", damaged, f"{damaged} events could not be read"))
        return self._columns.trace(self.path, self._metadata, self.doubts)


def _decode_any(text: bytes, *, exact: bool) -> Sequence[Event]:
    """A list of any events, their arguments left as text."""
    return EXACT.decode(text) if exact else PLAIN.decode(text)


class _Pieces:
    """A list of events cut into them, and how much of it is still to be read."""

    def __init__(self, text: bytes, boundary: re.Pattern[bytes]) -> None:
        self._text = text
        self._cuts = [0, *(match.end() - 1 for match in boundary.finditer(text)), len(text) - 1]
        self._first = 0

    def first(self, count: int) -> tuple[bytes, int]:
        """The next events, at most ``count``, as a JSON list, and how many they are."""
        last = min(self._first + count, len(self._cuts) - 1)
        return b"".join((b"[", self._text[self._cuts[self._first] + 1 : self._cuts[last]], b"]")), last - self._first

    def forget(self, count: int) -> None:
        """Pass over the next ``count`` events."""
        self._first += count

    @property
    def left(self) -> bytes:
        """All that are left, as a list."""
        return self.first(len(self._cuts))[0]


def _rest(text: bytes) -> dict[str, msgspec.Raw] | None:
    """The end of a file, its keys by name; None if it is no proper end."""
    for closing in (b"", b"}"):  # the second for files that are a list
        try:
            found = msgspec.json.decode(b'{"traceEvents":[' + text + closing, type=dict[str, msgspec.Raw])
        except MALFORMED:
            continue
        return found
    return None


def _values(rest: dict[str, msgspec.Raw]) -> dict[str, Any]:
    return (
        decode_object(b"{" + b",".join(msgspec.json.encode(k) + b":" + bytes(v) for k, v in rest.items()) + b"}") or {}
    )
