from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.core import words
from perfhooks.trace.bounds import APART_NS
from perfhooks.trace.kinds import DEVICE_WORK, Kind
from perfhooks.trace.model import Doubt

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Flags, Ints

WITHOUT_TIME: Final = "records-without-time"
WITHOUT_LENGTH: Final = "records-without-length"
_MICROSECOND_NS: Final = 1000
"""Maximum absolute time in ns that means unknown. Some recorders round times to whole microseconds."""


class Validity:
    def __init__(self) -> None:
        self.count = 0
        self._kinds: dict[str, Counter[int]] = {WITHOUT_TIME: Counter(), WITHOUT_LENGTH: Counter()}

    def good(self, kind: Column, has_time: Flags, span: Ints, has_length: Flags) -> Flags:
        has_length = has_length & (span >= 0)
        good: Flags = has_time & has_length
        if not good.all():
            self._add(WITHOUT_TIME, kind[~has_time])
            self._add(WITHOUT_LENGTH, kind[has_time & ~has_length])
        return good

    def timed(self, start: Ints, end: Ints, kind: Column, base: int) -> Flags:
        """Return which slices have a valid time, and count the other slices by kind.

        If the device never reported a time, Kineto writes 0, the negative of ``base``, or one negative number for all
        slices. Different negative times come from another clock, so these times are valid.
        """
        negative = start[start < 0]
        is_single = len(negative) > 0 and int(negative.min()) == int(negative.max())
        late = (start > 0 if is_single else start != 0) & (np.abs(start + base) > _MICROSECOND_NS)
        if late.all() or not late.any():
            return np.ones(len(start), np.bool_)
        first, last = int(start[late].min()), int(end[late].max())
        apart = max(last - first, APART_NS)
        timed: Flags = late | ((end >= first - apart) & (start <= last + apart))
        self._add(WITHOUT_TIME, kind[~timed])
        return timed

    def drop_untimed(self, count: int) -> None:
        self._add(WITHOUT_TIME, np.full(count, Kind.OTHER, np.int8))

    def _add(self, name: str, kind: Column) -> None:
        self._kinds[name].update(kind.tolist())
        self.count += len(kind)

    @property
    def doubts(self) -> list[Doubt]:
        doubts = []
        for name, property_name in ((WITHOUT_TIME, "time"), (WITHOUT_LENGTH, "length")):
            kinds = self._kinds[name]
            if count := kinds.total():
                work_count = sum(kinds[kind] for kind in DEVICE_WORK)
                subject = words.count(count, "record has", "records have")
                of_device = f", {work_count} of them work of a device" if work_count else ""
                doubts.append(Doubt(name, count, f"{subject} no {property_name}{of_device}: dropped"))
        return doubts
