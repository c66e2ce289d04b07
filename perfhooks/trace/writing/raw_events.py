from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from perfhooks.core.errors import TraceError
from perfhooks.trace.reading.events import MALFORMED, decode_object
from perfhooks.trace.reading.source import BLOCK, LONGEST, TornArchiveError, blocks, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_T = TypeVar("_T")

_EVENTS_BEGIN: Final = re.compile(rb'"traceEvents"\s*:\s*\[|\A(?:\xef\xbb\xbf)?\s*\[')
_BETWEEN: Final = re.compile(rb"\}\s*,(?=\s*\{)")
_REST: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class RawEvents(Generic[_T]):
    """Events of one file in lists of a few megabytes, and the file's keys before and after the events."""

    def __init__(self, path: Path, decoder: msgspec.json.Decoder[list[_T]]) -> None:
        self.path = path
        self.head = b""
        self.rest: dict[str, msgspec.Raw] = {}
        self.metadata: dict[str, Any] = {}
        self._decode = decoder.decode
        self._is_list = False

    def lists(self) -> Iterator[list[_T]]:
        """Yield the lists of events; raises TraceError if the file is no trace, or is truncated."""
        try:
            yield from self._lists()
        except (OSError, TornArchiveError, *MALFORMED) as error:
            raise TraceError(f"{self.path} cannot be read: {error}") from error

    def closing(self, more: dict[str, Any]) -> bytes:
        """Return the text after the events, with additional keys. Call this after `lists`."""
        if self._is_list:
            return b"\n"
        keys = msgspec.json.encode({"traceEvents": None, **self.rest, **more})
        return keys.removeprefix(b'{"traceEvents":null') + b"\n"

    def _lists(self) -> Iterator[list[_T]]:
        with opened(str(self.path)) as file:
            source = blocks(file)
            buffer = self._head(source)
            unread = 0
            for block in source:
                buffer += block
                if len(buffer) < max(BLOCK, 2 * unread):
                    continue
                events, end = self._whole_events(buffer)
                yield events
                del buffer[:end]
                unread = 0 if end else len(buffer)
                if unread > LONGEST:
                    raise TraceError(f"{self.path} has more than {LONGEST >> 20} MiB between two events")
        self.rest = _REST.decode(b'{"traceEvents":[' + buffer + (b"}" if self._is_list else b""))
        yield self._decode(self.rest.pop("traceEvents"))

    def _head(self, source: Iterator[bytes]) -> bytearray:
        head = bytearray()
        for block in source:
            searched = max(len(head) - 64, 0)  # a match may cross the boundary of blocks
            head += block
            if begin := _EVENTS_BEGIN.search(head, searched):
                self._is_list = not begin[0].startswith(b'"')
                self.metadata = {} if self._is_list else decode_object(bytes(head[: begin.end()]) + b"]}") or {}
                self.head = bytes(head[: begin.end()])
                return head[begin.end() :]
            if len(head) > LONGEST:
                break
        raise TraceError(f"{self.path} has no list of traceEvents")

    def _whole_events(self, buffer: bytearray) -> tuple[list[_T], int]:
        # text up to a boundary inside an event is not valid JSON, so the last boundaries are tried in turn
        begin = max(0, len(buffer) - BLOCK // 8)
        for match in reversed(list(_BETWEEN.finditer(buffer, begin))[-64:]):
            try:
                return self._decode(b"[" + buffer[: match.end() - 1] + b"]"), match.end()
            except MALFORMED:
                continue
        return [], 0
