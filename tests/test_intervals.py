from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks.trace.nesting import intervals

spans = st.lists(st.tuples(st.integers(-20, 60), st.integers(0, 15)), max_size=12)


def make(pairs):
    table = np.array([(start, start + length) for start, length in pairs], np.int64).reshape(-1, 2)
    return intervals.union(table[:, 0], table[:, 1])


def points(pairs):
    return {moment for start, length in pairs for moment in range(start, start + length)}


def members(found):
    assert found.dtype == np.int64
    assert (found[:, 0] < found[:, 1]).all(), "no empty interval"
    assert (found[1:, 0] > found[:-1, 1]).all(), "sorted, disjoint and not touching"
    return {moment for start, end in found.tolist() for moment in range(start, end)}


@pytest.mark.slow
@given(spans, spans)
def test_set_algebra_is_that_of_sets_of_points(a, b):
    assert members(make(a)) == points(a)
    assert members(intervals.intersect(make(a), make(b))) == points(a) & points(b)
    assert members(intervals.subtract(make(a), make(b))) == points(a) - points(b)
    assert members(intervals.joined(make(a), make(b))) == points(a) | points(b)


@pytest.mark.slow
@given(spans, st.integers(-30, 70), st.integers(-30, 70))
def test_clipping_keeps_the_points_inside(a, start, end):
    expected = {moment for moment in points(a) if start <= moment < end}
    assert members(intervals.clip(make(a), start, end)) == expected
    assert intervals.total(intervals.clip(make(a), start, end)) == len(expected)
    assert intervals.within(make(a), np.array([start]), np.array([end])).tolist() == [len(expected)]


def test_lengths_are_exact_beyond_double_precision():
    """Epoch nanoseconds do not fit a double."""
    start = 1_711_964_646_000_000_001
    found = intervals.union(np.array([start]), np.array([start + 3]))
    assert intervals.total(found) == 3
    assert intervals.within(found, np.array([start + 1]), np.array([start + 9])).tolist() == [2]


def test_empty_array_is_a_valid_set():
    none = intervals.nothing()
    assert intervals.total(none) == 0
    assert intervals.total(intervals.subtract(none, make([(0, 5)]))) == 0
    assert intervals.within(none, np.array([0]), np.array([9])).tolist() == [0]
    assert len(intervals.joined()) == 0


@pytest.mark.parametrize("size", [10, 100_000])
def test_touching_intervals_are_joined(size):
    edges = np.arange(size, dtype=np.int64)
    assert intervals.union(edges, edges + 1).tolist() == [[0, size]]


@pytest.mark.slow
@given(st.lists(st.integers(-50, 50), max_size=40), st.data())
def test_maxima_of_ranges_equal_a_simple_computation(values, data):
    place = st.integers(0, len(values))
    pairs = np.array(data.draw(st.lists(st.tuples(place, place), max_size=8)), np.int64).reshape(-1, 2)
    found = intervals.highest(np.array(values, np.int64), *pairs.T)
    assert found.tolist() == [max(values[first:last], default=0) for first, last in pairs.tolist()]


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(-5, 20), max_size=8), min_size=1, max_size=4))
def test_distinct_values_of_all_arrays_are_sorted(lists):
    found = intervals.distinct(*(np.array(each, np.int64) for each in lists))
    assert found.tolist() == sorted(set().union(*lists))


@pytest.mark.parametrize("room", ["trace", "findings"])
def test_sets_of_many_values_are_built_by_sorting(room):
    """NumPy's set functions hash since 2.3: of a million values that takes 200 times as long, and grows faster."""
    files = (Path(intervals.__file__).parents[1] / room).glob("*.py")
    used = [path.name for path in files if re.search(r"np\.(?:union1d|setdiff1d|intersect1d)", path.read_text("utf-8"))]
    assert used == []
