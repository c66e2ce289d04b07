"""Counters: the rows of a trace that say a number and when, as the device's power, its clock, or how busy it is."""

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
"""Series that are kept of a file: torch's recorder has some ten for each device."""
_DEVICE: Final = re.compile(r"\b(?:GPU|device|HIP|XPU)\s*#?(\d{1,9})\b", re.IGNORECASE)
"""How a row names its device: torch's next recorder writes ``GPU 0 Counters`` where others have a number."""
_PLAIN: Final = ("", "value")
"""Names of the one number of a row that add nothing to the row's own."""


class CounterRows:
    """Gathers the samples of a file."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, int], int] = {}
        self._pids: list[int | str] = []
        self._samples: list[tuple[int, int, float]] = []

    def add(self, event: Event, time: int) -> None:
        """Take the samples of one row: its arguments are numbers by name, nearly always one.

        Args:
            event: a row whose ``ph`` is ``C``.
            time: in nanoseconds.
        """
        for name, given in (decode_object(bytes(event.args)) or {}).items():
            value = number(given)
            if math.isfinite(value):
                called = event.name if name in _PLAIN or name == event.name else f"{event.name} {name}".strip()
                series = self._series.setdefault((called, _device(event.pid)), min(len(self._series), _MOST))
                if series == _MOST:
                    del self._series[called, _device(event.pid)]
                    return
                if series == len(self._pids):
                    self._pids.append(event.pid)
                self._samples.append((series, time, value))

    def all(self, device_of: Callable[[int | str], int] | None = None) -> Samples:
        """Return all samples, by series and time.

        Args:
            device_of: The device of a process; None if the number or the name of the process is that of its device.
        """
        series, time, value = zip(*self._samples, strict=True) if self._samples else ((), (), ())
        of, when = np.array(series, np.int64), np.array(time, np.int64)
        order = np.lexsort((when, of))
        return Samples(
            [name for name, _ in self._series],
            np.array(list(map(device_of or _device, self._pids)), np.int64),
            of[order],
            when[order],
            np.array(value, np.float64)[order],
        )


def _device(pid: int | str) -> int:
    found = _DEVICE.search(pid) if isinstance(pid, str) else None
    return int(found[1]) if found else pid if isinstance(pid, int) and 0 <= pid < 2**31 else -1
