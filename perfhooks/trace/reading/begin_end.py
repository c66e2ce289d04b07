"""Slices that a file writes as two events, one at the beginning (``B``) and one at the end (``E``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from perfhooks.trace.model import Flags, Ints
    from perfhooks.trace.reading.events import Event

BEGIN, END = "B", "E"


class BeginEnd:
    def __init__(self) -> None:
        self._events: list[tuple[int, Event]] = []

    def __bool__(self) -> bool:
        return bool(self._events)

    def add(self, event: Event, time: int) -> None:
        self._events.append((time, event))

    def paired(self) -> tuple[list[Event], Ints, Flags]:
        """Return the slices as arguments of `Columns.add`. Slices without an end event have the duration NaN.

        An end event closes the innermost open slice of its thread; if the event has a name, the innermost of this name.
        """
        stacks: dict[tuple[int | str, int | str], list[tuple[int, Event]]] = {}
        slices: list[tuple[int, Event]] = []
        for time, event in sorted(self._events, key=lambda pair: pair[0]):
            stack = stacks.setdefault((event.pid, event.tid), [])
            if event.ph == BEGIN:
                event.dur = float("nan")
                stack.append((time, event))
                slices.append((time, event))
                continue
            names = [open_event.name for _, open_event in stack]
            position = len(names) - 1 - names[::-1].index(event.name) if event.name in names else len(names) - 1
            if stack and (not event.name or names[position] == event.name):
                begin, open_event = stack.pop(position)
                open_event.dur = (time - begin) / 1000
                if bytes(open_event.args) in (b"", b"{}"):
                    open_event.args = event.args
            else:
                event.dur = float("nan")
                slices.append((time, event))
        self._events = []
        for _, event in slices:
            event.ph = "X"
        times = np.array([time for time, _ in slices], np.int64)
        return [event for _, event in slices], times, np.ones(len(slices), np.bool_)
