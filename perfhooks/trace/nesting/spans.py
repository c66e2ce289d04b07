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
    """Intervals of one thread, each with its part of the step, sorted by start.

    Among equal starts, the longest interval is first.
    """

    start: Ints
    end: Ints
    part: list[str]

    @property
    def moments(self) -> Intervals:
        return intervals.union(self.start, self.end)

    @property
    def edges(self) -> Ints:
        return np.concatenate([self.start, self.end])

    def of(self, part: str) -> Intervals:
        is_part = np.array([name == part for name in self.part], np.bool_)
        return intervals.union(self.start[is_part], self.end[is_part])

    def joined(self, *more: Spans) -> Spans:
        sources = (self, *more)
        start, end = (np.concatenate([spans[index] for spans in sources]) for index in (0, 1))
        return _in_order(start, end, [part for spans in sources for part in spans.part])

    def innermost(self) -> dict[str, Intervals]:
        if not self.part:
            return {}
        nesting = nest(np.zeros(len(self.start), np.int64), self.start, self.end)
        cuts = intervals.distinct(self.start, nesting.end)
        owner = still_open(nesting, np.searchsorted(self.start, cuts[:-1], "right") - 1, cuts[:-1] + 1)
        part = np.array([*self.part, ""])[owner]
        return {name: intervals.union(cuts[:-1][part == name], cuts[1:][part == name]) for name in set(self.part)}


def from_moments(moments: Mapping[str, Intervals]) -> Spans:
    non_empty = [spans for spans in moments.values() if len(spans)]
    joined = np.concatenate([intervals.nothing(), *non_empty])
    return _in_order(
        joined[:, 0],
        joined[:, 1],
        [part for part, spans in moments.items() for _ in range(len(spans))],
    )


def layered(layers: tuple[Spans, ...], parts: tuple[str, ...]) -> dict[str, Intervals]:
    """Return the intervals of each part of a step.

    If intervals of several ``layers`` overlap, the first layer decides the part.
    """
    by_part = dict.fromkeys(parts, intervals.nothing())
    assigned = intervals.nothing()
    for layer in layers:
        for part, moments in layer.innermost().items():
            by_part[part] = intervals.joined(by_part[part], intervals.subtract(moments, assigned))
        if layer.part:
            assigned = intervals.joined(assigned, layer.moments)
    return by_part


def _in_order(start: Ints, end: Ints, part: list[str]) -> Spans:
    order = np.lexsort((-end, start))
    return Spans(start[order], end[order], [part[index] for index in order.tolist()])
