from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.trace.model import Samples
from perfhooks.trace.reading.events import decode_object, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.trace.reading.events import Event

_MOST: Final = 1000
"""Maximum counters of a file; further counters are dropped. Torch's recorder writes about ten counters for each device.
"""
_DEVICE: Final = re.compile(r"\b(?:GPU|device|HIP|XPU)\s*#?(\d{1,9})\b", re.IGNORECASE)
"""Number of the device in the process name ``GPU 0 Counters`` of cuspy, the second recorder of torch."""
_PLAIN: Final = ("", "value")


class CounterRows:
    def __init__(self) -> None:
        self._series: dict[tuple[str, int], int] = {}
        self._pids: list[int | str] = []
        self._samples: list[tuple[int, int, float]] = []

    def add(self, event: Event, time: int) -> None:
        """Add the numbers of a counter event, whose arguments map names to numbers. ``time`` is in ns."""
        for name, argument in (decode_object(bytes(event.args)) or {}).items():
            value = number(argument)
            if math.isfinite(value):
                full_name = event.name if name in _PLAIN or name == event.name else f"{event.name} {name}".strip()
                series = self._series.setdefault((full_name, _device(event.pid)), min(len(self._series), _MOST))
                if series == _MOST:
                    del self._series[full_name, _device(event.pid)]
                    return
                if series == len(self._pids):
                    self._pids.append(event.pid)
                self._samples.append((series, time, value))

    def all(self, device_of: Callable[[int | str], int] | None = None) -> Samples:
        series, time, value = zip(*self._samples, strict=True) if self._samples else ((), (), ())
        series_number, times = np.array(series, np.int64), np.array(time, np.int64)
        order = np.lexsort((times, series_number))
        return Samples(
            [name for name, _ in self._series],
            np.array(list(map(device_of or _device, self._pids)), np.int64),
            series_number[order],
            times[order],
            np.array(value, np.float64)[order],
        )


def _device(pid: int | str) -> int:
    match = _DEVICE.search(pid) if isinstance(pid, str) else None
    return int(match[1]) if match else pid if isinstance(pid, int) and 0 <= pid < 2**31 else -1
