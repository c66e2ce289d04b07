"""Stretches of one thread, each with the part of a step that it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfhooks.trace.nesting import intervals
from perfhooks.trace.nesting.slices import nest, still_open

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Intervals


class Spans(NamedTuple):
    """Stretches and which part each is, sorted by start, the longest first."""

    start: Ints
    end: Ints
    part: list[str]

    @property
    def moments(self) -> Intervals:
        """When any of them is open."""
        return intervals.union(self.start, self.end)

    @property
    def edges(self) -> Ints:
        """When one begins or ends."""
        return np.concatenate([self.start, self.end])

    def of(self, part: str) -> Intervals:
        """When one of a part is open."""
        mine = np.array([each == part for each in self.part], np.bool_)
        return intervals.union(self.start[mine], self.end[mine])

    def joined(self, *others: Spans) -> Spans:
        """All of several."""
        every = (self, *others)
        start, end = (np.concatenate([each[place] for each in every]) for place in (0, 1))
        return _in_order(start, end, [part for each in every for part in each.part])

    def innermost(self) -> dict[str, Intervals]:
        """The moments at which each part is the innermost that is open."""
        if not self.part:
            return {}
        nesting = nest(np.zeros(len(self.start), np.int64), self.start, self.end)
        cuts = intervals.distinct(self.start, nesting.end)
        # from the one that began last to the innermost that is still open
        owner = still_open(nesting, np.searchsorted(self.start, cuts[:-1], "right") - 1, cuts[:-1] + 1)
        part = np.array([*self.part, ""])[owner]
        return {name: intervals.union(cuts[:-1][part == name], cuts[1:][part == name]) for name in set(self.part)}


def from_moments(moments: Mapping[str, Intervals]) -> Spans:
    """Stretches from the moments of each part."""
    every = [each for each in moments.values() if len(each)]
    joined = np.concatenate([intervals.nothing(), *every])
    return _in_order(joined[:, 0], joined[:, 1], [part for part, each in moments.items() for _ in range(len(each))])


def layered(layers: tuple[Spans, ...], parts: tuple[str, ...]) -> dict[str, Intervals]:
    """Give each moment to the first layer that has something open, and there to the innermost."""
    found = dict.fromkeys(parts, intervals.nothing())
    taken = intervals.nothing()
    for layer in layers:
        for part, moments in layer.innermost().items():
            found[part] = intervals.joined(found[part], intervals.subtract(moments, taken))
        if layer.part:
            taken = intervals.joined(taken, layer.moments)
    return found


def _in_order(start: Ints, end: Ints, part: list[str]) -> Spans:
    order = np.lexsort((-end, start))
    return Spans(start[order], end[order], [part[place] for place in order.tolist()])
