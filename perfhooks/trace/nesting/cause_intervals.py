from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfhooks.trace.nesting import intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.trace.model import Column, Flags, Ints
    from perfhooks.trace.nesting.intervals import Intervals


class CauseIntervals(NamedTuple):
    """Disjoint intervals of host activity, sorted by time."""

    of: Column
    start: Ints
    end: Ints
    cause: Column
    row: Column

    def taken(self, selection: Flags | Ints) -> CauseIntervals:
        return CauseIntervals(*(column[selection] for column in self))


def pieces(start: Ints, end: Ints, cause: Ints, row: Ints) -> CauseIntervals:
    of = np.flatnonzero(end > start)
    return CauseIntervals(of.astype(np.int32), start[of], end[of], cause[of].astype(np.int8), row[of].astype(np.int32))


def joined(*sets: CauseIntervals) -> CauseIntervals:
    if len(sets) == 1:
        return sets[0]
    return CauseIntervals(*(np.concatenate(columns) for columns in zip(*sets, strict=True)))


def reclassify(
    timeline: CauseIntervals, layers: Sequence[tuple[int, Intervals]], *, of: tuple[int, ...]
) -> CauseIntervals:
    """Replace causes in ``of`` during the intervals of ``layers``; the first layer has priority."""
    layers = [(cause, moments) for cause, moments in layers if len(moments)]
    if not layers or not len(timeline.of):
        return timeline
    timeline = _split(timeline, intervals.distinct(*(moments.ravel() for _, moments in layers)))
    is_replaceable = np.zeros(1 + max(int(timeline.cause.max()), *of), np.bool_)
    is_replaceable[list(of)] = True
    is_open = is_replaceable[timeline.cause]
    for cause, moments in layers:
        inside = intervals.places(*(np.searchsorted(timeline.start, edge, "left") for edge in moments.T))
        inside = inside[is_open[inside]]
        timeline.cause[inside] = cause
        is_open[inside] = False
    return timeline


def _split(timeline: CauseIntervals, time: Ints) -> CauseIntervals:
    index = np.searchsorted(timeline.start, time, "right") - 1
    inner = (index >= 0) & (time > timeline.start[index]) & (time < timeline.end[index])
    if not inner.any():
        return timeline
    index, time = index[inner], time[inner]
    split = CauseIntervals(*(np.insert(column, index + 1, column[index]) for column in timeline))
    new = index + 1 + np.arange(len(index))
    split.start[new] = split.end[new - 1] = time
    return split
