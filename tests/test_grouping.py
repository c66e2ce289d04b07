from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks.trace.nesting import grouping


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 10**6]), st.integers(-5, 2**61)), max_size=20))
def test_rows_are_grouped_in_the_order_of_their_first_rows(rows):
    """Whatever the keys are, near to each other or far apart."""
    first, second, values = (np.array([row[place] for row in rows], np.int64) for place in range(3))
    found = grouping.groups(first, second)
    expected: dict[tuple[int, int], list[int]] = {}
    for place, row in enumerate(rows):
        expected.setdefault(row[:2], []).append(place)
    assert found.first.tolist() == [places[0] for places in expected.values()]
    assert [np.flatnonzero(found.of == group).tolist() for group in range(len(expected))] == list(expected.values())
    sums = [sum(rows[place][2] for place in places) for places in expected.values()]
    wrapped = [(each + 2**63) % 2**64 - 2**63 for each in sums]  # as integers of 64 bits are added
    assert found.summed(values).tolist() == wrapped


@pytest.mark.parametrize("values", [[], [0], [3, 1, 3, 0], [10**9, 5, 10**9]])
def test_distinct_values_equal_those_of_numpy(values):
    """By a list of all possible values, and by sorting where it would be long."""
    given = np.array(values, np.int64)
    expected, place = np.unique(given, return_inverse=True)
    found = grouping.distinct(given)
    assert found[0].tolist() == expected.tolist()
    assert found[1].tolist() == place.ravel().tolist()
