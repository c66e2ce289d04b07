"""Set operations on half-open time intervals in integer nanoseconds, as sorted disjoint arrays of shape (n, 2).

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
NOTABLE: Final = 0.01
"""Minimum ratio of a difference or gain to report, because two recordings of the same program differ by about 1%."""
MOST: Final = 0.8
"""Minimum fraction that counts as most of the whole. A step with a smaller fraction of the usual kernels has lost
kernels. torch_tb_profiler has the same rule.
"""
NEARLY_ALL: Final = 0.9
"""Minimum fraction that counts as the whole despite inexact clocks and records."""


def union(start: Ints, end: Ints) -> Intervals:
    """Return the union of unsorted intervals, which may overlap or be empty."""
    is_non_empty = end > start
    order = np.argsort(start[is_non_empty], kind="stable")
    start, end = start[is_non_empty][order], end[is_non_empty][order]
    if not len(start):
        return nothing()
    latest_end = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], start[1:] > latest_end[:-1])))
    return np.stack([start[first], latest_end[np.append(first[1:], len(start)) - 1]], axis=1)


def of_slices(trace: Trace, rows: Ints) -> Intervals:
    return union(trace.start[rows], trace.end[rows])


def nothing() -> Intervals:
    return np.empty((0, 2), np.int64)


def joined(*sets: Intervals) -> Intervals:
    stacked = np.concatenate([nothing(), *sets])
    return union(stacked[:, 0], stacked[:, 1])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    return _combine(a, b, lambda in_a, in_b: in_a & in_b)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    return _combine(a, b, lambda in_a, in_b: in_a & ~in_b)


def clip(a: Intervals, start: int, end: int) -> Intervals:
    first, last = np.searchsorted(a[:, 1], start, "right"), np.searchsorted(a[:, 0], end, "left")
    clipped = np.clip(a[first : max(first, last)], start, end)
    return clipped[clipped[:, 1] > clipped[:, 0]]


def total(a: Intervals) -> int:
    return int((a[:, 1] - a[:, 0]).sum())


def within(a: Intervals, start: Ints, end: Ints) -> Ints:
    """Return the total length of the intervals between each ``start`` and ``end``, in ns."""
    return _length_before(a, end) - _length_before(a, np.minimum(start, end))


def highest(values: Ints, first: Ints, last: Ints) -> Ints:
    """Return the maximum of ``values[first:last]`` for each range; 0 for an empty range."""
    maximum = np.zeros(len(first), np.int64)
    width = np.maximum(last - first, 0)
    size, tops = 1, values
    while len(ranges := np.flatnonzero(width >= size)):
        ranges = ranges[width[ranges] < 2 * size]
        maximum[ranges] = np.maximum(tops[first[ranges]], tops[last[ranges] - size])
        tops = np.maximum(tops[:-size], tops[size:])
        size *= 2
    return maximum


def distinct(*values: Column) -> Ints:
    """Return the sorted distinct values. ``numpy.unique`` is ten times slower, because it hashes since numpy 2.3."""
    ordered = np.sort(np.concatenate(values), kind="stable")
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def _length_before(a: Intervals, time: Ints) -> Ints:
    lengths = np.concatenate(([0], np.cumsum(a[:, 1] - a[:, 0])))
    started = np.searchsorted(a[:, 0], time, "right")
    if not len(a):
        return np.zeros(len(time), np.int64)
    remaining = np.maximum(a[np.maximum(started - 1, 0), 1] - time, 0)
    return lengths[started] - np.where(started > 0, remaining, 0)


def _combine(a: Intervals, b: Intervals, rule: Callable[[Flags, Flags], Flags]) -> Intervals:
    cuts = distinct(a.ravel(), b.ravel())
    is_member = rule(covers(a, cuts[:-1]), covers(b, cuts[:-1]))
    return union(cuts[:-1][is_member], cuts[1:][is_member])


def places(first: Ints, last: Ints) -> Ints:
    count = last - first
    numbers: Ints = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count - first, count)
    return numbers


def covers(a: Intervals, time: Ints) -> Flags:
    return np.searchsorted(a[:, 0], time, "right") > np.searchsorted(a[:, 1], time, "right")
