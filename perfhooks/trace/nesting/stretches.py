"""Disjoint stretches of time, each with a cause, and how they are cut and told another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfhooks.trace.nesting import intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.trace.model import Column, Flags, Ints
    from perfhooks.trace.nesting.intervals import Intervals


class Stretches(NamedTuple):
    """Stretches of time with what the host did in them."""

    of: Column
    """Which of the stretches that were asked about."""
    start: Ints
    end: Ints
    cause: Column
    row: Column

    def taken(self, chosen: Flags | Ints) -> Stretches:
        """Some of them."""
        return Stretches(*(each[chosen] for each in self))


def pieces(start: Ints, end: Ints, cause: Ints, row: Ints) -> Stretches:
    """Those of some stretches that have a length; in few bytes each, as there may be millions."""
    of = np.flatnonzero(end > start)
    return Stretches(of.astype(np.int32), start[of], end[of], cause[of].astype(np.int8), row[of].astype(np.int32))


def joined(*several: Stretches) -> Stretches:
    """All of them, one set after the other."""
    if len(several) == 1:
        return several[0]
    return Stretches(*(np.concatenate(each) for each in zip(*several, strict=True)))


def told(found: Stretches, layers: Sequence[tuple[int, Intervals]], *, of: tuple[int, ...]) -> Stretches:
    """Give disjoint stretches that have one of some causes another one where moments say so; the first that do.

    Args:
        found: the stretches, by time.
        layers: causes and their moments.
        of: the causes that may change.
    """
    layers = [(cause, moments) for cause, moments in layers if len(moments)]
    if not layers or not len(found.of):
        return found
    found = _split(found, intervals.distinct(*(moments.ravel() for _, moments in layers)))
    changes = np.zeros(1 + max(int(found.cause.max()), *of), np.bool_)
    changes[list(of)] = True
    may_change = changes[found.cause]
    for cause, moments in layers:
        inside = intervals.places(*(np.searchsorted(found.start, edge, "left") for edge in moments.T))
        inside = inside[may_change[inside]]
        found.cause[inside] = cause
        may_change[inside] = False
    return found


def _split(found: Stretches, time: Ints) -> Stretches:
    """Cut disjoint stretches at some times, both ascending."""
    place = np.searchsorted(found.start, time, "right") - 1
    inner = (place >= 0) & (time > found.start[place]) & (time < found.end[place])
    if not inner.any():
        return found
    place, time = place[inner], time[inner]
    copied = Stretches(*(np.insert(each, place + 1, each[place]) for each in found))
    new = place + 1 + np.arange(len(place))
    copied.start[new] = copied.end[new - 1] = time
    return copied
