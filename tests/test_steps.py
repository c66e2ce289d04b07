from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks import testing
from perfhooks.core import labels
from perfhooks.run.steps import Steps
from perfhooks.testing import annotation, kernel, launch, op, step_mark
from perfhooks.trace import read
from perfhooks.trace.tables import steps

MS = 1e-6
HOST = [*(f"{part}_ms" for part in labels.PARTS), "other_ms"]
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def rows(tmp_path, events, metadata=(), **options):
    trace = read(testing.write_trace(tmp_path / "t.json", events, **dict(metadata)))
    return steps.table(trace, **options).rows(named=True)


def nanos(row, *columns):
    return [None if row[column] is None else round(row[column] / MS) for column in columns]


def test_step_without_marks_is_on_the_thread_of_the_loop(tmp_path):
    """However much more there is on that one: the loop waits for data, and is seen to."""
    loop = [
        annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 60_000_000),
        op("aten::mm", 60_000_000, 70_000_000),
    ]
    node = op("autograd::engine::evaluate_function: MmBackward0", 70_000_000, 90_000_000, tid=2)
    inner = [
        op("aten::mm", 70_000_000 + place * 1_000_000, 71_000_000 + place * 1_000_000, tid=2) for place in range(10)
    ]
    (row,) = rows(tmp_path, [*loop, node, *inner])
    assert (row["data_ms"], row["wall_ms"]) == (60, 90)


def test_the_trace_knows_its_rank_better_than_the_caller(tmp_path):
    events = [step_mark(0, 0, 100)]
    assert rows(tmp_path, events, {"distributedInfo": {"rank": 3}}, rank=1)[0]["rank"] == 3
    assert rows(tmp_path, events, rank=1, stage="validate")[0]["rank"] == 1


# --- against a slow obvious implementation: every nanosecond looked at by itself


spans = st.tuples(st.integers(0, 60), st.integers(0, 25))
labelled = st.lists(st.tuples(st.sampled_from([*labels.PARTS, "mine"]), spans), max_size=6)
OURS = {
    "Optimizer.step#A.step": "optimizer",
    **{labels.AUTOMATIC[part]: part for part in ("forward", "backward", "checkpoint")},
}
unwritten = st.lists(st.tuples(st.sampled_from([LOADER, *OURS]), spans), max_size=5)
work = st.lists(
    st.tuples(spans, spans, st.sampled_from(["gemm", "nccl_x", "copy"]), st.integers(1, 3), st.booleans()), max_size=8
)


def nested(pairs):
    """Slices of one thread, cut so that none crosses another."""
    found = []
    for name, (start, span) in sorted(pairs, key=lambda pair: (pair[1][0], -pair[1][1])):
        end = start + span
        for _, begin, finish in found:
            if begin <= start < finish:
                end = min(end, finish)
        found.append((name, start, end))
    return found


def slow_host(step, marked, ranges):
    count = dict.fromkeys(HOST, 0)
    for moment in range(*step):
        opened = [name for name, start, end in marked if start <= moment < end and name in labels.PARTS]
        running = [name for name, start, end in ranges if start <= moment < end]
        ours = [name for name in running if name in OURS]
        part = (opened and opened[-1]) or (LOADER in running and "data") or (ours and OURS[ours[-1]]) or "other"
        count[f"{part}_ms"] += 1
    return count


@pytest.mark.slow
@given(labelled, unwritten, unwritten, st.lists(st.integers(1, 30), min_size=1, max_size=3))
def test_host_parts_equal_a_count_of_each_nanosecond(tmp_path_factory, pairs, ours, others, lengths):
    edges = np.cumsum([0, *lengths]).tolist()
    marked, ranges = nested(pairs), nested(ours)
    events = [step_mark(number, *edges[number : number + 2], tid=1) for number in range(len(lengths))]
    events += [annotation(name, start, end, tid=1) for name, start, end in [*marked, *ranges]]
    events += [annotation(name, start, end, tid=2) for name, start, end in nested(others)]
    found = rows(tmp_path_factory.mktemp("fuzz"), events)
    for number, row in enumerate(found):
        expected = slow_host(edges[number : number + 2], marked, ranges)
        assert {name: value or 0 for name, value in zip(HOST, nanos(row, *HOST), strict=True)} == expected


DEVICE = (
    *("device_span_ms", "busy_ms", "idle_ms", "compute_ms", "comm_ms", "exposed_comm_ms", "exposed_copy_ms"),
    "other_work_ms",
)


@pytest.mark.slow
@given(work, st.lists(st.integers(1, 30), min_size=1, max_size=3), st.integers(0, 6))
def test_device_parts_equal_a_count_of_each_nanosecond(tmp_path_factory, pieces, lengths, first):
    """Correlation ids count from 1; those of before the window are smaller than the first that a call has."""
    edges = np.cumsum([0, *lengths]).tolist()
    events = [step_mark(number, *edges[number : number + 2]) for number in range(len(lengths))]
    mine, others = {number: [] for number in range(len(lengths))}, []
    recorded = {number for number, (*_, known) in enumerate(pieces, 1) if known and number > first}
    for number, ((asked, took), (begun, span), name, stream, _) in enumerate(pieces, 1):
        known = number in recorded
        start = max(begun, asked) if known else begun
        if known:
            events.append(launch(number, asked, asked + took, tid=stream))
        category = "gpu_memcpy" if name == "copy" else "kernel"
        events.append(kernel(number, start, start + span, name=name, category=category, stream=number))
        moment = asked if known else -1 if recorded and number < min(recorded) else start
        step = next((step for step in mine if edges[step] <= moment < edges[step + 1]), None)
        (others if step is None else mine[step]).append((name, start, start + span))
    for number, row in enumerate(rows(tmp_path_factory.mktemp("fuzz"), events)):
        rest = others + [piece for step, each in mine.items() if step != number for piece in each]
        is_known = recorded or any(name != "copy" for _, _, name, _, _ in pieces)
        assert nanos(row, *DEVICE) == (slow_device(mine[number], rest) if is_known else [None] * len(DEVICE))
        assert not is_known or sum(nanos(row, *DEVICE[2:4], *DEVICE[5:])) == nanos(row, "device_span_ms")[0]


def slow_device(pieces, others):
    at = {name: set() for name in ("gemm", "nccl_x", "copy")}
    for name, start, end in pieces:
        at[name] |= set(range(start, end))
    compute, comm, copy = at.values()
    busy = compute | comm | copy
    span = range(min(busy), max(busy) + 1) if busy else range(0)
    other = {moment for _, start, end in others for moment in range(start, end)} & set(span) - busy
    exposed = (len(comm - compute), len(copy - compute - comm))
    return [len(span), len(busy), len(span) - len(busy | other), len(compute), len(comm), *exposed, len(other)]


@pytest.mark.parametrize("stage", ["train", "predict"])
def test_stage_is_in_the_table(tmp_path, stage):
    assert rows(tmp_path, [step_mark(0, 0, 1)], stage=stage)[0]["stage"] == stage


def test_one_long_wait_is_not_part_of_a_usual_step():
    numbers, wall = np.arange(400), np.full(400, 10.0)
    wall[100] = 3000.0
    flags, none = np.ones(400, bool), np.full(400, np.nan)
    found = Steps(numbers, flags, ~flags, wall, wall - 8, none, none, ~flags)
    assert found.typical().waiting == pytest.approx(0.2)


def test_steps_long_by_waiting_for_data_count_as_waiting():
    """A worker that makes two batches at once: every second step waits ten times as long as a step works."""
    numbers, wall = np.arange(40), np.array([10.0, 110.0] * 20)
    flags, none = np.ones(40, bool), np.full(40, np.nan)
    found = Steps(numbers, flags, ~flags, wall, wall - 10, none, none, ~flags)
    assert found.unrecorded().waiting == pytest.approx(100 / 120)
    assert found.typical().waiting == pytest.approx(100 / 120)
