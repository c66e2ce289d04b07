from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from perfhooks.trace.reading.events import Event

OPERATOR: Final = "async_npu"
"""Category of the flows from an operator to the requested device work."""
CALL: Final = "HostToDevice"
"""Category of the flows from a launch call to the launched device work."""
CATEGORIES: Final = frozenset((OPERATOR, CALL))


class FlowEnd(NamedTuple):
    pid: int | str
    tid: int | str
    time: int


class FlowEnds:
    def __init__(self) -> None:
        self._starts: dict[tuple[str, int | str], FlowEnd] = {}
        self._ends: list[tuple[tuple[str, int | str], FlowEnd]] = []

    def add(self, event: Event, time: int) -> None:
        key, end = (event.cat, event.id), FlowEnd(event.pid, event.tid, time)
        if event.ph == "s":
            self._starts[key] = end
        else:
            self._ends.append((key, end))

    def links(self, category: str) -> tuple[list[FlowEnd], list[FlowEnd]]:
        pairs = [(self._starts[key], end) for key, end in self._ends if key[0] == category and key in self._starts]
        return [start for start, _ in pairs], [end for _, end in pairs]
