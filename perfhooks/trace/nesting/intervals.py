"""Exact algebra of time intervals: integer nanoseconds, half open, as sorted disjoint (n, 2) arrays.

::

    a                |-------|     |-----|
    b                    |------------|
    joined(a, b)     |-------------------|
    intersect(a, b)      |---|     |--|
    subtract(a, b)   |---|            |--|
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.trace.model import Column, Ints, Trace

Intervals: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.int64]]"
Flags: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"


MS: Final = 1e-6
"""Milliseconds in a nanosecond."""


def union(start: Ints, end: Ints) -> Intervals:
    """The moments that lie in any of the intervals, which may overlap, be empty and come in any order.

    Args:
        start: first nanosecond of each.
        end: first nanosecond after each.
    """
    kept = end > start
    order = np.argsort(start[kept], kind="stable")
    start, end = start[kept][order], end[kept][order]
    if not len(start):
        return nothing()
    reached = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reached[:-1])))
    return np.stack([start[first], reached[np.append(first[1:], len(start)) - 1]], axis=1)


def of_slices(trace: Trace, rows: Ints) -> Intervals:
    """The moments that lie in any of some slices."""
    return union(trace.start[rows], trace.end[rows])


def nothing() -> Intervals:
    """No moment at all."""
    return np.empty((0, 2), np.int64)


def joined(*sets: Intervals) -> Intervals:
    """The moments that lie in any of the sets."""
    every = np.concatenate([nothing(), *sets])
    return union(every[:, 0], every[:, 1])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The moments that lie in both sets."""
    return _where(a, b, lambda in_a, in_b: in_a & in_b)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The moments of ``a`` that do not lie in ``b``."""
    return _where(a, b, lambda in_a, in_b: in_a & ~in_b)


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The moments of ``a`` from ``start`` to before ``end``."""
    first, last = np.searchsorted(a[:, 1], start, "right"), np.searchsorted(a[:, 0], end, "left")
    clipped = np.clip(a[first : max(first, last)], start, end)
    return clipped[clipped[:, 1] > clipped[:, 0]]


def total(a: Intervals) -> int:
    """The length of a set, in nanoseconds."""
    return int((a[:, 1] - a[:, 0]).sum())


def within(a: Intervals, start: Ints, end: Ints) -> Ints:
    """The length of a set inside each of many windows, which may overlap: the same as clipping to each, but faster."""
    return _length_before(a, end) - _length_before(a, np.minimum(start, end))


def highest(values: Ints, first: Ints, last: Ints) -> Ints:
    """The highest of the values from each first place to before each last one; 0 where that is none.

    Ranges may overlap: each is looked up in two stretches, whose lengths are powers of two.
    """
    found = np.zeros(len(first), np.int64)
    width = np.maximum(last - first, 0)
    size, tops = 1, values
    while len(mine := np.flatnonzero(width >= size)):
        mine = mine[width[mine] < 2 * size]
        found[mine] = np.maximum(tops[first[mine]], tops[last[mine] - size])
        tops = np.maximum(tops[:-size], tops[size:])
        size *= 2
    return found


def distinct(*values: Column) -> Ints:
    """All the values, each once, ascending.

    By sorting, which takes what is sorted already as it is: NumPy's ``unique`` hashes since 2.3, and of a million
    values waits for memory ten times as long.
    """
    every = np.sort(np.concatenate(values), kind="stable")
    first = np.ones(len(every), np.bool_)
    first[1:] = every[1:] != every[:-1]
    return every[first]


def _length_before(a: Intervals, time: Ints) -> Ints:
    """How much of a set lies before each time."""
    lengths = np.concatenate(([0], np.cumsum(a[:, 1] - a[:, 0])))
    begun = np.searchsorted(a[:, 0], time, "right")
    if not len(a):
        return np.zeros(len(time), np.int64)
    unfinished = np.maximum(a[np.maximum(begun - 1, 0), 1] - time, 0)
    return lengths[begun] - np.where(begun > 0, unfinished, 0)


def _where(a: Intervals, b: Intervals, rule: Callable[[Flags, Flags], Flags]) -> Intervals:
    """The moments for which a rule of membership in two sets holds."""
    cuts = distinct(a.ravel(), b.ravel())
    held = rule(covers(a, cuts[:-1]), covers(b, cuts[:-1]))
    return union(cuts[:-1][held], cuts[1:][held])


def places(first: Ints, last: Ints) -> Ints:
    """The numbers from each first one to before each last one, one range after the other."""
    count = last - first
    numbers: Ints = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count - first, count)
    return numbers


def covers(a: Intervals, time: Ints) -> Flags:
    """Which times lie in a disjoint set: as many have begun as have ended, or one more."""
    return np.searchsorted(a[:, 0], time, "right") > np.searchsorted(a[:, 1], time, "right")
