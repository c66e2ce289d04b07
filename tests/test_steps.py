from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks import testing
from perfhooks.core import labels
from perfhooks.run.steps import Steps
from perfhooks.testing import annotation, kernel, launch, memory, op, step_mark
from perfhooks.trace import read
from perfhooks.trace.tables import steps

MS = 1e-6
HOST = [*(f"{part}_ms" for part in labels.PARTS), "other_ms"]
NODE = "autograd::engine::evaluate_function: MulBackward0"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def rows(tmp_path, events, metadata=(), **options):
    trace = read(testing.write_trace(tmp_path / "t.json", events, **dict(metadata)))
    return steps.table(trace, **options).rows(named=True)


def nanos(row, *columns):
    return [None if row[column] is None else round(row[column] / MS) for column in columns]


def test_a_moment_belongs_to_the_innermost_label(tmp_path):
    """Other labels are transparent, and what lies outside of the step does not count."""
    events = [
        step_mark(3, 100, 200),
        annotation("forward", 90, 150),
        annotation("my block", 100, 140),
        annotation("transfer", 110, 120),
        annotation("validation", 160, 210),
    ]
    (row,) = rows(tmp_path, events)
    assert row["step"] == 3
    assert nanos(row, "wall_ms", "forward_ms", "transfer_ms", "validation_ms", "other_ms") == [100, 40, 10, 40, 10]


def test_unlabelled_moments_are_inferred(tmp_path):
    """Data from the DataLoader's ranges, and else from the optimizer's and from autograd's nodes on any thread."""
    events = [
        step_mark(0, 0, 100),
        annotation(LOADER, 0, 20),
        annotation("Optimizer.step#SGD.step", 70, 80),
        op(NODE, 30, 60, tid=7),
        op(NODE, 90, 130, tid=7),
        op(NODE, 10, 15),
    ]
    (row,) = rows(tmp_path, events)
    assert nanos(row, "data_ms", "optimizer_ms", "backward_ms", "other_ms") == [20, 10, 40, 30]
    assert row["forward_ms"] is row["transfer_ms"] is row["validation_ms"] is row["checkpoint_ms"] is None


def test_labels_win_over_inference(tmp_path):
    events = [step_mark(0, 0, 100), annotation("forward", 0, 50), annotation(LOADER, 40, 60), op(NODE, 45, 70, tid=7)]
    (row,) = rows(tmp_path, events)
    assert nanos(row, "forward_ms", "data_ms", "backward_ms", "other_ms") == [50, 10, 10, 30]


def test_labels_of_another_thread_are_not_the_steps(tmp_path):
    events = [step_mark(0, 0, 100), annotation("forward", 0, 50, tid=7)]
    (row,) = rows(tmp_path, events)
    assert row["forward_ms"] is None
    assert nanos(row, "other_ms") == [100]


def test_part_of_a_single_step_is_zero_in_other_steps(tmp_path):
    events = [step_mark(0, 0, 100), step_mark(1, 100, 200), annotation("checkpoint", 150, 170)]
    assert [nanos(row, "checkpoint_ms") for row in rows(tmp_path, events)] == [[0], [20]]


def test_shadows_of_marks_on_a_stream_are_no_steps(tmp_path):
    shadow = testing.slice_event("gpu_user_annotation", "ProfilerStep#0", 0, 500, pid=0, tid=7)
    assert [row["step"] for row in rows(tmp_path, [step_mark(0, 0, 100), shadow])] == [0]


def test_trace_without_marks_is_one_step(tmp_path):
    (row,) = rows(tmp_path, [op("a", 10, 20), kernel(1, 500, 600)])
    assert row["step"] is None
    assert nanos(row, "wall_ms", "busy_ms") == [590, 100]


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


def test_work_belongs_to_the_step_that_launched_the_work(tmp_path):
    """Even if it ran in the next one; whoever launched it, on whatever thread."""
    events = [
        step_mark(0, 0, 100),
        step_mark(1, 100, 200),
        *(launch(1, 90, 95), kernel(1, 150, 160)),
        *(launch(2, 50, 60, tid=7), kernel(2, 155, 175)),
        *(launch(3, 110, 120), kernel(3, 300, 400)),
        kernel(99, 120, 130, name="its launch was lost"),
    ]
    first, second = rows(tmp_path, events)
    assert (first["kernels"], second["kernels"]) == (2, 2)
    assert nanos(first, "device_span_ms", "busy_ms", "idle_ms") == [25, 25, 0]
    assert nanos(second, "device_span_ms", "busy_ms", "other_work_ms", "idle_ms") == [280, 110, 25, 145]


def test_communication_is_detected_by_arguments_or_name(tmp_path):
    events = [
        step_mark(0, 0, 1000),
        kernel(1, 0, 100, name="gemm"),
        kernel(2, 50, 150, name="ncclDevKernel_AllReduce_Sum", stream=9),
        kernel(3, 200, 250, name="anything", Collective_name="allreduce"),
        kernel(4, 140, 210, name="Memcpy DtoH", category="gpu_memcpy", stream=9),
        kernel(5, 300, 310, name="synccl"),
    ]
    (row,) = rows(tmp_path, events)
    assert nanos(row, "compute_ms", "comm_ms", "exposed_comm_ms", "exposed_copy_ms", "idle_ms") == [
        110,
        150,
        100,
        50,
        50,
    ]


def test_counts(tmp_path):
    events = [
        step_mark(0, 0, 100),
        op("a", 0, 10),
        op("b", 20, 30, tid=7),
        op("late", 100, 110),
        launch(1, 0, 5),
        launch(2, 10, 15, name="cudaMemcpyAsync"),
        launch(3, 20, 25, name="cudaGraphLaunch"),
        launch(4, 30, 40, name="cudaStreamSynchronize"),
        launch(5, 35, 45, name="cudaMemcpy", tid=7),
        launch(6, 50, 60, name="cudaStreamWaitEvent"),
        kernel(1, 200, 210),
        kernel(3, 220, 230),
    ]
    (row,) = rows(tmp_path, events)
    assert {name: row[name] for name in ("ops", "launches", "kernels", "syncs")} == {
        "ops": 2,
        "launches": 2,
        "kernels": 2,
        "syncs": 2,
    }
    assert nanos(row, "sync_ms") == [15]


def test_backend_without_launches_has_no_launch_count(tmp_path):
    """Meta's MTIA submits jobs; and what it calls a request for DMA is a copy, and a wait no work."""
    events = [step_mark(0, 0, 100), testing.slice_event("mtia_runtime", "runFunction", 10, 20, correlation=1)]
    for number, (name, start) in enumerate([("fc", 30), ("dma_request", 50), ("event_wait", 60)], 1):
        events.append(kernel(number, start, start + 10, name=name, category="mtia_ccp_events"))
    (row,) = rows(tmp_path, events)
    assert (row["launches"], row["kernels"]) == (None, 1)
    assert nanos(row, "busy_ms", "compute_ms", "exposed_copy_ms") == [20, 10, 10]
    (row,) = rows(tmp_path, [step_mark(0, 0, 100), launch(1, 10, 20, name="cudaMemcpyAsync")])
    assert row["launches"] == 0


def test_memory_is_that_of_the_device(tmp_path):
    mb = 1 << 20
    events = [
        step_mark(0, 10, 100),
        step_mark(1, 100, 200),
        memory(5, 4 * mb, allocated=4 * mb, device=0),
        memory(20, 8 * mb, allocated=12 * mb, device=0),
        memory(30, -8 * mb, allocated=4 * mb, device=0),
        memory(40, mb, allocated=mb, device=1),
        memory(50, 99 * mb, allocated=99 * mb),
    ]
    first, second = rows(tmp_path, events)
    assert (first["allocated_peak_mb"], first["alloc_count"]) == (12, 2)
    assert (second["allocated_peak_mb"], second["alloc_count"]) == (5, 0)


def test_memory_is_that_of_the_host_without_a_device(tmp_path):
    (row,) = rows(tmp_path, [step_mark(0, 0, 100), memory(5, 64, allocated=1 << 20)])
    assert (row["allocated_peak_mb"], row["alloc_count"]) == (1, 1)


def test_unknown_values_are_null(tmp_path):
    (row,) = rows(tmp_path, [step_mark(0, 0, 100)])
    known = {name for name, value in row.items() if value is not None}
    assert known == {"stage", "step", "wall_ms", "other_ms"}


def test_the_trace_knows_its_rank_better_than_the_caller(tmp_path):
    events = [step_mark(0, 0, 100)]
    assert rows(tmp_path, events, {"distributedInfo": {"rank": 3}}, rank=1)[0]["rank"] == 3
    assert rows(tmp_path, events, rank=1, stage="validate")[0]["rank"] == 1


def test_a_trace_without_any_slice_has_no_steps(tmp_path):
    (row,) = [memory(5, 64)]
    trace = read(testing.write_trace(tmp_path / "t.json", [row]))
    assert steps.table(trace).height == 0


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


def test_work_launched_before_the_window_belongs_to_no_step(tmp_path):
    """Though it ran in one; it is other work there, and no idle time."""
    events = [
        step_mark(0, 0, 100),
        kernel(3, 20, 40, name="ncclDevKernel_AllReduce", stream=9),
        *(launch(4, 0, 5), kernel(4, 10, 15), launch(5, 5, 10), kernel(5, 50, 60)),
    ]
    (row,) = rows(tmp_path, events)
    assert row["kernels"] == 2
    assert nanos(row, "device_span_ms", "busy_ms", "comm_ms", "other_work_ms", "idle_ms") == [50, 15, 0, 20, 15]


def test_work_without_a_launch_belongs_to_the_step_of_its_time(tmp_path):
    first, second = rows(
        tmp_path, [step_mark(0, 0, 100), step_mark(1, 100, 200), kernel(3, 20, 40), kernel(4, 150, 160)]
    )
    assert (first["kernels"], second["kernels"]) == (1, 1)


def test_work_of_other_steps_is_no_idle_time(tmp_path):
    events = [
        step_mark(0, 0, 100),
        step_mark(1, 100, 200),
        *(launch(1, 10, 15), kernel(1, 20, 40)),
        *(launch(2, 90, 95), kernel(2, 180, 190)),
        *(launch(3, 110, 115), kernel(3, 120, 175)),
    ]
    first, second = rows(tmp_path, events)
    assert nanos(first, "device_span_ms", "busy_ms", "other_work_ms", "idle_ms") == [170, 30, 55, 85]
    assert nanos(second, "device_span_ms", "busy_ms", "other_work_ms", "idle_ms") == [55, 55, 0, 0]


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
