"""How large the trace of an open window becomes, and how long its loop is going to wait at its end.

Torch does not say how much it has recorded, but the memory of the process does: what the recorder holds of an event is
about as large as the event will be in the trace, 0.8 to 1.2 of it, and a training that has come to a window takes no
more memory for anything else. A window that takes what a former one has left does not show; how large that one was is
known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks import words
from perfhooks.guard import logger
from perfhooks.watching import counters

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.watching.loops import OpenWindow, WatchedLoop

WAITED_A_SECOND: Final = 50e6
"""Bytes of a trace for which a loop waits a second at its end: 20 to 80 million on the machines that were measured."""
LONG_WAIT_S: Final = 2.0
"""From so many seconds on it is said that the loop waits for the end of a window: a large model's takes less."""
_LOOKS: Final = 3
"""In a row, of which the least memory counts: it goes up and down within a step."""


class _Seen(NamedTuple):
    step: int
    resident: int


class Growth:
    """Looks at the windows of one loop, in the watcher's thread.

    Args:
        resident: Tells the memory of this process, in bytes.
    """

    def __init__(self, resident: Callable[[], int] | None = None) -> None:
        self._resident = resident or counters.resident
        self._window: OpenWindow | None = None
        self._seen: list[_Seen] = []
        self._is_said = False

    def look(self, loop: WatchedLoop) -> None:
        """Say once of a window that its loop is going to wait long; end one that is as large as it may be."""
        window, step = loop.window, loop.step()
        if window is not self._window:
            self._window, self._seen, self._is_said = window, [], False
        if window is None or step < window.active:
            return
        self._seen.append(_Seen(step, self._resident()))
        first, last = self._least(self._seen[:_LOOKS]), self._least(self._seen[-_LOOKS:])
        size = last.resident - first.resident
        if window.most_bytes is not None and size > window.most_bytes:
            loop.is_too_large = True
        if len(self._seen) >= 2 * _LOOKS and not self._is_said:
            steps = last.step - first.step
            left = 0 if window.last is None else window.last - step
            self._say(window, size, size + (size / steps * left if steps else 0.0))

    @staticmethod
    def _least(seen: list[_Seen]) -> _Seen:
        return min(seen, key=lambda each: each.resident)

    def _say(self, window: OpenWindow, size: float, whole: float) -> None:
        if whole < LONG_WAIT_S * WAITED_A_SECOND:
            return
        self._is_said = True
        logger.info(
            "%s: its trace has about %s so far, and the loop is going to wait about %s at its end; fewer active steps "
            "make that shorter, and max_trace_mb= sees to it",
            window.name,
            words.size(size),
            words.ms(1e3 * whole / WAITED_A_SECOND),
        )
