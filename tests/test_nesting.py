from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks import testing
from perfhooks.trace import read
from perfhooks.trace.kinds import Kind
from perfhooks.trace.nesting import device, host, intervals
from perfhooks.trace.nesting import slices as nesting
from perfhooks.trace.nesting.slices import nest, outermost

slices = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=25)


def columns(rows):
    table = np.array([(thread, start, start + length) for thread, start, length in rows], np.int64).reshape(-1, 3)
    order = np.lexsort((-table[:, 2], table[:, 1], table[:, 0]))
    return table[order].T


def torch_rule(thread, start, end):
    """The stack of torch.autograd.profiler_util, one thread after the other."""
    parents, stack = [], []
    for row in range(len(start)):
        if row and thread[row] != thread[row - 1]:
            stack = []
        while stack and (start[row] >= end[stack[-1]] or end[row] > end[stack[-1]]):
            stack.pop()
        parents.append(stack[-1] if stack else -1)
        stack.append(row)
    return parents


@pytest.mark.slow
@pytest.mark.parametrize("few", [-1, 0, 8])
@given(slices)
def test_parents_equal_those_of_torch_for_crossing_slices(few, rows):
    thread, start, end = columns(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "_MAX_CROSSED_PASSES", few)
        found = nest(thread, start, end)
    assert found.parent.tolist() == torch_rule(thread, start, end)
    assert all(map(np.array_equal, found, nest(thread, start, end)))


@pytest.mark.slow
@given(slices)
def test_depth_is_the_number_of_ancestors(rows):
    found = nest(*columns(rows))
    for row, depth in enumerate(found.depth.tolist()):
        chain = []
        while (row := found.parent[row]) >= 0:
            chain.append(row)
        assert len(chain) == depth
    roots = outermost(found.parent)
    assert (found.parent[roots] == -1).all()


@pytest.mark.slow
@given(slices)
def test_self_times_sum_to_the_union_of_each_thread(rows):
    thread, start, end = columns(rows)
    found = nest(thread, start, end)
    assert (found.own >= 0).all()
    for each in np.unique(thread):
        mine = thread == each
        assert found.own[mine].sum() == intervals.total(intervals.union(start[mine], end[mine]))


@pytest.mark.slow
@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=4), max_leaves=40))
def test_properly_nested_tree_is_restored(tree):
    """Slices that nest properly take the fast way, and it finds the tree they were made from."""
    rows, parents = [], []

    def lay(node, begin, parent):
        mine = len(rows)
        rows.append([begin, begin + 1])
        parents.append(parent)
        now = begin
        for child in node:
            now = lay(child, now, mine)
        rows[mine][1] = now + 1
        return now + 1

    lay(tree, 0, -1)
    table = np.array(rows, np.int64)
    found = nest(np.zeros(len(rows), np.int64), table[:, 0], table[:, 1])
    assert found.parent.tolist() == parents


def test_forty_thousand_nested_calls_are_supported():
    """More than fits into two bytes, as in a recursion without an end."""
    start = np.arange(40_000)
    found = nest(np.zeros(len(start), np.int64), start, 100_000 - start)
    assert np.array_equal(found.parent, start - 1)
    assert np.array_equal(found.depth, start)


def test_crossed_slice_ends_at_the_crossing_slice():
    """A Python frame that was open when a step mark began does not hold the step."""
    thread, start, end = np.zeros(2, np.int64), np.array([0, 5]), np.array([10, 100])
    found = nest(thread, start, end)
    assert found.parent.tolist() == [-1, -1]
    assert found.end.tolist() == [5, 100]
    assert found.own.tolist() == [5, 95]


def test_empty_input_has_no_nesting():
    none = np.empty(0, np.int64)
    assert nest(none, none, none).parent.tolist() == []


@pytest.mark.slow
@given(slices, st.data())
def test_paths_are_numbered_equally_by_both_methods(rows, data):
    found = nest(*columns(rows))
    frame = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows))), np.int64)
    skipped = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), np.bool_)
    texts = []
    for number in (host._paths_by_level, host._paths_by_entry):
        made = number(found, frame, skipped)
        assert (made.parents < np.arange(len(made.parents))).all()
        joined = host.joined(made.parents, [str(each) for each in made.frames.tolist()], ";")
        assert len(set(joined)) == len(joined)
        texts.append([joined[each] if each >= 0 else "" for each in made.node.tolist()])
    assert texts[0] == texts[1]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 20), st.integers(1, 2)),
        min_size=1,
        max_size=12,
    )
)
def test_ancestors_are_equal_in_full_and_partial_trees(tmp_path_factory, made):
    """Where slices cross, the tree of all may say something else: then it is not asked."""
    events = [testing.op(name, start, start + span, tid=tid) for name, start, span, tid in made]
    trace = read(testing.write_trace(tmp_path_factory.mktemp("x") / "t.json", events))
    rows, candidates = trace.rows(Kind.OP), trace.named(Kind.OP, names="a")
    found = device._in_tree(trace, rows, candidates)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "_in_tree", lambda *_: None)
        expected = device.holders(trace, rows, candidates)
    assert found is None or found.tolist() == expected.tolist()
    nested = host.tree(trace).nesting.end.tolist() == trace.end[host.tree(trace).row].tolist()
    assert found is not None or not nested
