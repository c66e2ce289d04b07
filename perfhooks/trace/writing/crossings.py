"""Repairs of slices that cross (overlap without nesting) other slices of their lane, because viewers drop such slices.

In traces with stacks, torch's labels cross the functions in which the labels begin and end.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.core.labels import STEP_MARK
from perfhooks.trace.kinds import DEVICE_WORK, Kind
from perfhooks.trace.nesting.missing_work import OVERFLOW
from perfhooks.trace.nesting.slices import nest, still_open

if TYPE_CHECKING:
    from perfhooks.trace.model import Flags, Ints, Trace
    from perfhooks.trace.nesting.slices import Nesting

_LABELS: Final = (Kind.ANNOTATION, Kind.DEVICE_ANNOTATION)


class Repairs(NamedTuple):
    """Changes of each slice that remove all crossings."""

    later: Ints
    """Delay of the start of each slice, in ns."""
    earlier: Ints
    """Time by which each slice ends earlier, in ns."""
    lane: Ints

    @property
    def rows(self) -> Ints:
        return np.flatnonzero((self.later > 0) | (self.earlier > 0) | (self.lane > 0))


def find(trace: Trace) -> Repairs:
    """Return the repairs that a trace needs.

    - A label that crosses another slice is shortened: it starts after an earlier slice, or ends before a later slice.
    - If a label, except a ``ProfilerStep`` mark, would lose half of its length, it gets a separate lane instead.
    - All other crossing slices, and overlapping device work, get a separate lane.
    """
    repairs = Repairs(*np.zeros((3, len(trace)), np.int64))
    ends = trace.end.copy()
    overflowed, distance = trace.sparse(OVERFLOW)
    ends[overflowed] += distance
    threads: dict[tuple[int | str, int | str], list[int]] = defaultdict(list)
    for number, thread in enumerate(trace.threads):
        threads[thread.pid, thread.tid].append(number)
    edges = np.searchsorted(trace.thread, np.arange(len(trace.threads) + 1))
    for numbers in threads.values():
        rows = np.concatenate([np.arange(edges[number], edges[number + 1]) for number in numbers])
        if len(numbers) > 1:
            rows = rows[np.lexsort((-ends[rows], trace.start[rows]))]
        _repair_thread(trace, rows, ends, repairs)
    return repairs


def _repair_thread(trace: Trace, rows: Ints, ends: Ints, repairs: Repairs) -> None:
    is_label = np.isin(trace.kind[rows], _LABELS)
    slices, labels = rows[~is_label], rows[is_label]
    is_work = np.isin(trace.kind[slices], DEVICE_WORK)
    start, end = trace.start[slices], ends[slices]
    latest_end = np.maximum.accumulate(end[is_work])
    if _has_crossings(start, end) or (start[is_work][1:] < latest_end[:-1]).any():
        repairs.lane[slices] = _assign_lanes(start, end, is_work, np.zeros_like(is_work))
        slices = slices[repairs.lane[slices] == 0]
    last_lane = int(repairs.lane[rows].max(initial=0))
    if not len(labels):
        return
    start, end = trace.start[slices], ends[slices]
    begin, finish = _move_labels(_nested(start, end), start, trace.start[labels], ends[labels])
    length = ends[labels] - trace.start[labels]
    length[np.isin(labels, trace.named(Kind.ANNOTATION, prefix=STEP_MARK))] = 0
    fits = (begin == trace.start[labels]) & (finish == ends[labels]) | (2 * (finish - begin) > length)
    begin, finish = np.where(fits, begin, trace.start[labels]), np.where(fits, finish, ends[labels])
    repairs.later[labels], repairs.earlier[labels] = begin - trace.start[labels], ends[labels] - finish
    order = np.lexsort((-finish, begin))
    if not fits.all() or _has_crossings(begin[order], finish[order]):
        lanes = _assign_lanes(begin[order], finish[order], np.zeros_like(fits), ~fits[order], last_lane)
        repairs.lane[labels[order]] = lanes
        separate = labels[repairs.lane[labels] > 0]
        repairs.later[separate] = repairs.earlier[separate] = 0


def _nested(start: Ints, end: Ints) -> Nesting:
    return nest(np.zeros(len(start), np.int64), start, end)


def _has_crossings(start: Ints, end: Ints) -> bool:
    return bool((_nested(start, end).end < end).any())


def _move_labels(around: Nesting, start: Ints, begin: Ints, finish: Ints) -> tuple[Ints, Ints]:
    parent, end = np.append(around.parent, -1), around.end
    for_starts = _open_at(around, start, begin)
    crossed = for_starts >= 0
    crossed[crossed] = end[for_starts[crossed]] < finish[crossed]
    while crossed.any():
        begin = np.where(crossed, end[for_starts], begin)
        for_starts = np.where(crossed, parent[for_starts], -1)
        crossed = for_starts >= 0
        crossed[crossed] = end[for_starts[crossed]] < finish[crossed]
    for_ends = _open_at(around, start, finish)
    crossed = for_ends >= 0
    crossed[crossed] = start[for_ends[crossed]] > begin[crossed]
    while crossed.any():
        finish = np.where(crossed, start[for_ends], finish)
        for_ends = np.where(crossed, parent[for_ends], -1)
        crossed = for_ends >= 0
        crossed[crossed] = start[for_ends[crossed]] > begin[crossed]
    return begin, finish


def _open_at(around: Nesting, start: Ints, time: Ints) -> Ints:
    return still_open(around, np.searchsorted(start, time, "left") - 1, time + 1)


class _Lane:
    def __init__(self) -> None:
        self._open: list[int] = []
        self._works_until = -1

    def add(self, start: int, end: int, *, is_work: bool) -> bool:
        """Add a slice unless it crosses another slice of the lane; return whether the slice was added.

        Slices must be added in the order of their starts; of equal starts, the longest first.
        """
        while self._open and self._open[-1] <= start:
            self._open.pop()
        if (self._open and self._open[-1] < end) or (is_work and self._works_until > start):
            return False
        self._open.append(end)
        self._works_until = max(self._works_until, end) if is_work else self._works_until
        return True


def _assign_lanes(start: Ints, end: Ints, is_work: Flags, is_out: Flags, last_lane: int = 0) -> list[int]:
    lanes: defaultdict[int, _Lane] = defaultdict(_Lane)
    numbers = []
    for begin, finish, works, out in zip(*(column.tolist() for column in (start, end, is_work, is_out)), strict=True):
        lane = last_lane + 1 if out else 0
        while not lanes[lane].add(begin, finish, is_work=works):
            lane = lane + 1 if lane else last_lane + 1
        numbers.append(lane)
    return numbers
