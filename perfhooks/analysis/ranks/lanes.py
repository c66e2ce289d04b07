"""Lanes for overlapping work of a stream, because viewers drop slices that partially overlap on one lane."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec

from perfhooks.trace.kinds import DEVICE_WORK, classify
from perfhooks.trace.reading.events import MALFORMED, decode_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    Event = dict[str, msgspec.Raw]

Place = tuple[bytes, bytes]


class Lanes:
    def __init__(self) -> None:
        self._extents: dict[Place, list[tuple[Decimal, Decimal]]] = {}
        self._moved: dict[tuple[bytes, bytes, bytes], msgspec.Raw] = {}
        self._is_work: dict[bytes, bool] = {}

    def move(self, event: Event) -> None:
        """Set the lane of an event. Pass events in file order."""
        kind = bytes(event.get("ph", b""))
        if not {"pid", "tid", "ts"} <= event.keys() or kind not in (b'"X"', b'"f"'):
            return
        pid, tid, time = (bytes(event[key]) for key in ("pid", "tid", "ts"))
        if kind == b'"f"':
            event["tid"] = self._moved.get((pid, tid, time), event["tid"])
            return
        if not self._is_device_work(bytes(event.get("cat", b'""'))) or not tid.isdigit():
            return
        try:
            start = Decimal(time.decode().strip('"'))
            end = start + Decimal(bytes(event.get("dur", b"")).decode().strip('"'))
        except (ArithmeticError, ValueError):
            return
        if lane := self._take_lane((pid, tid), start, end):
            event["tid"] = self._moved[pid, tid, time] = msgspec.Raw(b"%d" % (_thread_of(tid, lane)))

    def _is_device_work(self, category: bytes) -> bool:
        is_work = self._is_work.get(category)
        if is_work is None:
            try:
                is_work = classify(str(decode_value(category))) in DEVICE_WORK
            except MALFORMED:
                is_work = False
            self._is_work[category] = is_work
        return is_work

    def _take_lane(self, place: Place, start: Decimal, end: Decimal) -> int:
        lanes = self._extents.setdefault(place, [])
        for number, (first, last) in enumerate(lanes):
            if start >= last or end <= first:
                lanes[number] = min(first, start), max(last, end)
                return number
        lanes.append((start, end))
        return len(lanes) - 1

    def added(self) -> Iterator[tuple[Place, int, int]]:
        for place, lanes in self._extents.items():
            for number in range(1, len(lanes)):
                yield place, number, _thread_of(place[1], number)


def _thread_of(tid: bytes, lane: int) -> int:
    return int(tid) + (lane << 32)
