"""Slices that a file writes as two events: one where they begin (``B``), one where they end (``E``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from perfhooks.trace.model import Flags, Ints
    from perfhooks.trace.reading.events import Event

BEGIN, END = "B", "E"


class BeginEnd:
    """Collects such events and pairs them."""

    def __init__(self) -> None:
        self._events: list[tuple[int, Event]] = []

    def __bool__(self) -> bool:
        return bool(self._events)

    def add(self, event: Event, time: int) -> None:
        """Take the next event of the file; its time is in nanoseconds."""
        self._events.append((time, event))

    def paired(self) -> tuple[list[Event], Ints, Flags]:
        """Return the slices as `Columns.add` takes them; those without an end have no length.

        An end without a name ends the innermost open slice of its thread, another one the innermost of its name.
        """
        opened: dict[tuple[int | str, int | str], list[tuple[int, Event]]] = {}
        slices: list[tuple[int, Event]] = []
        for time, event in sorted(self._events, key=lambda pair: pair[0]):
            stack = opened.setdefault((event.pid, event.tid), [])
            if event.ph == BEGIN:
                event.dur = float("nan")
                stack.append((time, event))
                slices.append((time, event))
                continue
            names = [begun.name for _, begun in stack]
            place = len(names) - 1 - names[::-1].index(event.name) if event.name in names else len(names) - 1
            if stack and (not event.name or names[place] == event.name):
                begin, begun = stack.pop(place)
                begun.dur = (time - begin) / 1000
                if bytes(begun.args) in (b"", b"{}"):
                    begun.args = event.args
            else:
                event.dur = float("nan")
                slices.append((time, event))
        self._events = []
        for _, event in slices:
            event.ph = "X"
        times = np.array([time for time, _ in slices], np.int64)
        return [event for _, event in slices], times, np.ones(len(slices), np.bool_)
