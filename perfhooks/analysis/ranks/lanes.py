"""Lanes for overlapping work of a stream: viewers drop slices that cross others on their lane."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

import msgspec

from perfhooks.trace.kinds import DEVICE_WORK, classify
from perfhooks.trace.reading.events import MALFORMED, decode_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    Event = dict[str, msgspec.Raw]

_APART: Final = 1 << 32
"""Distance of the numbers of a stream's lanes: above all numbers of threads and streams."""

Place = tuple[bytes, bytes]
"""Process and stream, as JSON."""


class Lanes:
    """Moves work that overlaps earlier work of its stream to further lanes, with the ends of its links."""

    def __init__(self) -> None:
        self._extents: dict[Place, list[tuple[Decimal, Decimal]]] = {}
        """First start and last end of each lane."""
        self._moved: dict[tuple[bytes, bytes, bytes], msgspec.Raw] = {}
        self._is_work: dict[bytes, bool] = {}

    def move(self, event: Event) -> None:
        """Give an event the number of its lane; events come in the order of the file."""
        kind = bytes(event.get("ph", b""))
        if not {"pid", "tid", "ts"} <= event.keys() or kind not in (b'"X"', b'"f"'):
            return
        pid, tid, time = (bytes(event[key]) for key in ("pid", "tid", "ts"))
        if kind == b'"f"':
            event["tid"] = self._moved.get((pid, tid, time), event["tid"])
            return
        if not self._works(bytes(event.get("cat", b'""'))) or not tid.isdigit():
            return
        try:
            start = Decimal(time.decode().strip('"'))
            end = start + Decimal(bytes(event.get("dur", b"")).decode().strip('"'))
        except (ArithmeticError, ValueError):
            return
        if lane := self._lane((pid, tid), start, end):
            event["tid"] = self._moved[pid, tid, time] = msgspec.Raw(b"%d" % (int(tid) + lane * _APART))

    def _works(self, category: bytes) -> bool:
        known = self._is_work.get(category)
        if known is None:
            try:
                known = classify(str(decode_value(category))) in DEVICE_WORK
            except MALFORMED:
                known = False
            self._is_work[category] = known
        return known

    def _lane(self, place: Place, start: Decimal, end: Decimal) -> int:
        """Return the first lane of a stream that is free, and take it."""
        lanes = self._extents.setdefault(place, [])
        for number, (first, last) in enumerate(lanes):
            if start >= last or end <= first:
                lanes[number] = min(first, start), max(last, end)
                return number
        lanes.append((start, end))
        return len(lanes) - 1

    def added(self) -> Iterator[tuple[Place, int, int]]:
        """Yield each lane beside the first of its stream: the stream, its number there, and its number as a thread."""
        for place, lanes in self._extents.items():
            for number in range(1, len(lanes)):
                yield place, number, int(place[1]) + number * _APART
