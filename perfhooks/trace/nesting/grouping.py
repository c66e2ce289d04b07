"""Rows put together by what they have in common: by arrays, for a query costs more than what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Ints

_SPARSE: Final = 16
"""Times as many possible values as rows: up to here a list of all of them is made faster than the rows are sorted."""


class Groups(NamedTuple):
    """Groups of rows, in the order of their first rows."""

    of: Ints
    """For each row its group."""
    first: Ints
    """For each group its first row."""

    def summed(self, values: Ints, rows: slice = slice(None)) -> Ints:
        """The sum of each group, of values of some of the rows; exact."""
        return summed(self.of[rows], values, len(self.first))


def summed(place: Column, values: Ints, count: int) -> Ints:
    """The exact sum of the values at each place; those at -1 count nowhere."""
    total = np.zeros(count + 1, np.int64)  # the last is what -1 is the place of
    np.add.at(total, place, values)
    return total[:-1]


def groups(*keys: Column) -> Groups:
    """Group the rows that have the same keys.

    Args:
        keys: numbers from 0, one for each row.
    """
    number: Ints = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        values, place = distinct(number * (int(key.max(initial=0)) + 1) + key)
        number = place
    count = len(values)
    first = np.empty(count, np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]  # of several rows the first one is written last
    order = np.argsort(first, kind="stable")
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    return Groups(place[number], first[order])


def distinct(values: Column) -> tuple[Ints, Ints]:
    """The distinct values, ascending, and for each value its place among them; what ``numpy.unique`` finds by sorting.

    Args:
        values: numbers from 0.
    """
    most = int(values.max(initial=0)) + 1
    if most > _SPARSE * len(values):
        found, place = np.unique(values, return_inverse=True)
        return found.astype(np.int64), place.ravel()
    present = np.zeros(most, np.bool_)
    present[values] = True
    number = np.cumsum(present) - 1
    return np.flatnonzero(present), number[values]
