"""Grouping of rows by numpy, because a polars query takes longer for few rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Ints

MAX_SPARSITY: Final = 16
"""Maximum ratio of possible values to rows at which a lookup table is faster than sorting."""


class Groups(NamedTuple):
    of: Ints
    first: Ints

    def summed(self, values: Ints, rows: slice = slice(None)) -> Ints:
        """Return the exact sum of ``values`` for each group. ``values`` has one entry for each of ``rows``."""
        return summed(self.of[rows], values, len(self.first))


def summed(index: Column, values: Ints, count: int) -> Ints:
    """Return the exact sum of the values of each index from 0. Index -1 is ignored."""
    total = np.zeros(count + 1, np.int64)
    np.add.at(total, index, values)
    return total[:-1]


def groups(*keys: Column) -> Groups:
    """Group rows with equal keys. Keys are integers from 0."""
    number: Ints = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        values, index = distinct(number * (int(key.max(initial=0)) + 1) + key)
        number = index
    count = len(values)
    first = np.empty(count, np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]  # the first row of a group is written last
    order = np.argsort(first, kind="stable")
    index = np.empty(count, np.int64)
    index[order] = np.arange(count)
    return Groups(index[number], first[order])


def distinct(values: Column) -> tuple[Ints, Ints]:
    most = int(values.max(initial=0)) + 1
    if most > MAX_SPARSITY * len(values):
        unique, index = np.unique(values, return_inverse=True)
        return unique.astype(np.int64), index.ravel()
    present = np.zeros(most, np.bool_)
    present[values] = True
    number = np.cumsum(present) - 1
    return np.flatnonzero(present), number[values]
