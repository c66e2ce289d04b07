"""Collectives, copies and synchronisations: the rows behind the columns of the step table."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_reader import slices
from twins import TRACES

from perfhooks import testing
from perfhooks.analysis.ranks import collectives as matching
from perfhooks.report.handlers import collectives as of_rank
from perfhooks.run.capture import Capture
from perfhooks.testing import annotation, kernel, launch, op, python_frame, slice_event, step_mark
from perfhooks.trace import Kind, read
from perfhooks.trace.names import messages
from perfhooks.trace.tables import collectives, copies, steps, synchronisations

MS = 1e-6
ALL_REDUCE = {
    "Collective_name": "allreduce",
    "In_msg_nelems": 1000,
    "Out_msg_nelems": 1000,
    "dtype": "Float",
    "Group_size": 4,
    "Process_Group_Name": "0",
}
GROUPS = {"pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4}]}


def trace_of(tmp_path, events, **metadata):
    return read(testing.write_trace(tmp_path / "t.json", events, **metadata))


def rows(tmp_path, events, module=collectives, **metadata):
    return module.table(trace_of(tmp_path, events, **metadata)).rows(named=True)


def nanos(value):
    return None if value is None else round(value / MS)


# --- collectives


def test_kernel_contains_its_message_size(tmp_path):
    events = [
        step_mark(3, 0, 100),
        launch(1, 10, 20),
        kernel(1, 200, 1200, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=9, **ALL_REDUCE),
    ]
    (row,) = rows(tmp_path, events, distributedInfo=GROUPS)
    assert (row["step"], nanos(row["start_ms"]), nanos(row["duration_ms"])) == (3, 200, 1000)
    assert (row["operation"], row["backend"], row["dtype"], row["bytes"]) == ("all_reduce", "nccl", "Float", 4000)
    assert (row["group"], row["group_description"], row["group_size"]) == ("0", "default_pg", 4)
    assert (row["device"], row["stream"]) == (0, "9")
    assert row["algorithm_gb_per_s"] == pytest.approx(4)
    assert row["bus_gb_per_s"] == pytest.approx(6)


@pytest.mark.parametrize(
    ("name", "ranks", "factor"),
    [
        ("all_reduce", 8, 14 / 8),
        ("all_gather", 8, 7 / 8),
        ("reduce_scatter", 8, 7 / 8),
        ("all_to_all", 8, 7 / 8),
        ("broadcast", 8, 1),
        ("reduce", 8, 1),
        ("send", None, 1),
        ("all_reduce", 1, 0),
        ("all_reduce", None, None),
        ("barrier", 8, None),
        (None, 8, None),
    ],
)
def test_bus_factors_equal_those_of_nccl_tests(name, ranks, factor):
    assert collectives.bus_factor(name, ranks) == factor


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("all_gather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgs)", "reduce_scatter"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t", "broadcast"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("void multimem_all_reduce_kernel<c10::BFloat16>", "all_reduce"),
        ("wait", None),
        ("init", None),
        (None, None),
    ],
)
def test_operations_have_one_name_for_all_backends(text, name):
    assert messages.operation(text) == name


def test_exposed_time_excludes_concurrent_computation(tmp_path):
    """On any device of the process; copies hide nothing, and neither does other communication."""
    events = [
        kernel(1, 0, 100, name="nccl_all_reduce", stream=9),
        kernel(2, 20, 50),
        kernel(3, 40, 60, device=1),
        kernel(4, 70, 90, name="Memcpy DtoD", category="gpu_memcpy"),
        kernel(5, 60, 100, name="nccl_broadcast", stream=10),
    ]
    assert [nanos(row["exposed_ms"]) for row in rows(tmp_path, events)] == [60, 40]


@pytest.mark.parametrize("around", [[op("record_param_comms", 0, 100)], []], ids=["in a record", "first of all"])
def test_old_kernels_are_identified_by_labels_around_the_launch(tmp_path, around):
    """Before torch 2.1 the kernel has no arguments, but the label has the tensor."""
    events = [
        *around,
        annotation("nccl:all_reduce", 10, 90, Input_Dims=[[300], [2, 100]], Input_type=["float", "c10::Half"]),
        launch(1, 20, 30),
        kernel(1, 200, 300, name="ncclKernel_SendRecv"),
    ]
    (row,) = rows(tmp_path, events)
    assert (row["operation"], row["bytes"], row["dtype"], row["group_size"]) == ("all_reduce", 1600, "float", None)
    assert row["algorithm_gb_per_s"] == pytest.approx(16)
    assert row["bus_gb_per_s"] is None


def test_record_with_the_external_id_describes_the_kernel(tmp_path):
    events = [
        op("record_param_comms", 0, 100, external=5, **ALL_REDUCE),
        annotation("nccl:all_reduce", 10, 90, external=6),
        kernel(1, 200, 300, name="ncclDevKernel_Generic", external=5),
    ]
    (row,) = rows(tmp_path, events)
    assert (row["operation"], row["bytes"], row["group"], row["group_size"]) == ("all_reduce", 4000, "0", 4)


def test_host_collectives_are_rows_without_device_collectives(tmp_path):
    """Of gloo with what it took; what is only asked for has no bandwidth, and is left out where devices were traced."""
    gloo = annotation("gloo:all_gather", 0, 100, tid=7, Input_Dims=[[10]], Input_type=["float"])
    nccl = annotation("nccl:broadcast", 50, 60, Input_Dims=[[10]], Input_type=["double"])
    info = {"pg_config": [{"pg_name": "0", "pg_size": 2}], "backend": "gloo"}
    first, second = rows(tmp_path, [gloo, nccl], distributedInfo=info)
    assert (first["operation"], first["bytes"], first["exposed_ms"]) == ("all_gather", 80, None)
    assert first["bus_gb_per_s"] == pytest.approx(0.4)
    assert (second["operation"], second["backend"], second["bytes"]) == ("broadcast", "nccl", 80)
    assert second["algorithm_gb_per_s"] is second["device"] is second["stream"] is None
    (alone,) = rows(tmp_path, [gloo, nccl, kernel(1, 0, 10)])
    assert alone["operation"] == "all_gather"


def test_records_of_other_operations_are_no_collectives(tmp_path):
    events = [op("record_param_comms", 0, 10, Collective_name=name) for name in ("init", "wait", "")]
    assert rows(tmp_path, events) == []


def test_range_open_at_the_end_of_recording_has_no_length(tmp_path):
    events = [
        annotation("gloo:all_reduce", at, end, Input_Dims=[[10]], Input_type=["float"])
        for at, end in [(0, 9), (20, 20)]
    ]
    whole, still_open = rows(tmp_path, events)
    assert (whole["duration_ms"], still_open["duration_ms"]) == (pytest.approx(9e-6), None)
    assert still_open["start_ms"] == pytest.approx(20e-6)


def test_a_barrier_has_no_bandwidth(tmp_path):
    events = [
        annotation("gloo:barrier", 0, 10),
        kernel(1, 0, 10, name="nccl_x", **ALL_REDUCE | {"Collective_name": "barrier"}),
    ]
    assert [row["algorithm_gb_per_s"] for row in rows(tmp_path, events)] == [None, None]


@pytest.mark.parametrize(
    "args",
    [
        {"dtype": "Quaternion"},
        {"dtype": 7},
        {"In_msg_nelems": 2**62, "Out_msg_nelems": 2**62},
        {"Process_Group_Name": [1], "dtype": None},
    ],
)
def test_impossible_values_are_null(tmp_path, args):
    (row,) = rows(tmp_path, [kernel(1, 0, 10, **ALL_REDUCE | args)])
    assert row["bytes"] is None
    assert row["operation"] == "all_reduce"


@pytest.mark.parametrize("dims", ["x", 3, [3], [["a"]], [[-1]], [[[5]]], [[2**70]], [[]], None])
def test_odd_shapes_give_no_size(tmp_path, dims):
    events = [annotation("gloo:all_reduce", 0, 10, Input_Dims=dims, Input_type=["TensorList"])]
    assert [row["bytes"] for row in rows(tmp_path, events)] == [None]


@pytest.mark.parametrize("info", [7, {"pg_config": 3}, {"pg_config": [3, {}, {"pg_name": "0", "pg_size": "many"}]}])
def test_odd_process_groups_are_ignored(tmp_path, info):
    (row,) = rows(tmp_path, [annotation("gloo:all_reduce", 0, 10)], distributedInfo=info)
    assert row["group_size"] is None


@pytest.mark.parametrize(
    ("base", "known"), [(2**63 - 1, 0), (2**62, 0), (-(2**62), 0), (2**70, 0), ("0", 0), (2**62 - 1, 2**62 - 1)]
)
def test_a_base_of_times_that_cannot_be_is_none(tmp_path, base, known):
    """Times of a file may be as large as they can: with the base they still are numbers."""
    late = 3_999_999_999_000_000_000
    events = [launch(1, late, late + 9), kernel(1, late + 10, late + 20, name="ncclDevKernel_AllReduce_Sum_f32")]
    trace = read(testing.write_trace(tmp_path / "t.json", events, baseTimeNanoseconds=base))
    (start,) = of_rank.rows(Capture(), trace)["start_ns"].to_list()
    assert start == pytest.approx(known + late, rel=1e-12)


def test_work_launched_before_the_window_matches_no_other_rank(tmp_path):
    """One rank began to record later, so its trace has the end of a collective that the other has not."""
    rows = []
    for rank in (0, 1):
        events = [launch(10, 100, 110), kernel(10, 200, 300 + 40 * rank, name="ncclDevKernel_AllReduce")]
        events += [kernel(4, 50, 190, name="ncclDevKernel_AllReduce")] * rank
        trace = read(testing.write_trace(tmp_path / f"{rank}.json", events))
        assert collectives.table(trace).height == 1 + rank
        rows.append(of_rank.rows(Capture(rank=rank), trace))
    (row,) = matching.by_collective(matching.match(pl.concat(rows))).rows(named=True)
    assert (nanos(row["duration_ms"]), nanos(row["wait_ms"]), row["last_rank"]) == (100, 40, 0)


def test_exposed_sums_to_that_of_the_steps(traces):
    """Where collectives do not overlap each other, as in this trace."""
    trace = read(traces / "a100-ddp2-train.json.gz")
    table, summed = collectives.table(trace), steps.table(trace)
    for step, expected in summed.select("step", "exposed_comm_ms").rows():
        assert nanos(table.filter(table["step"] == step)["exposed_ms"].sum()) == nanos(expected)


def check_rows(trace, count):
    found = collectives.table(trace)
    assert found.height == count
    assert found["operation"].null_count() == 0
    assert (found["exposed_ms"].fill_null(0) <= found["duration_ms"]).all()
    assert (found["exposed_ms"].fill_null(0) >= 0).all()
    copied = copies.table(trace)
    assert copied.height == int((trace.kind == Kind.COPY).sum())
    assert copied["kind"].null_count() == 0
    waits = synchronisations.table(trace)
    assert waits["host_ms"].sum() >= steps.table(trace)["sync_ms"].sum() - 1e-9


@pytest.mark.parametrize("name", TRACES)
def test_traces_of_all_dialects_contain_collectives_copies_waits(traces, name):
    path = traces / f"{name}.json.gz"
    # where no device was recorded, the labels say it
    told = slices(path, {"kernel"}) or slices(path, {"user_annotation"})
    check_rows(read(path), len([each for each in told if re.search("nccl|gloo:", each["name"])]))


COLLECTIVES = {
    "a100-ddp2-train-3steps": 21,
    "b200-eager-stacks-shapes": 74,
    "sampled-128ranks-rank0": 10,
    "sampled-128ranks-rank1": 10,
    "cpu-only-rank34": 10,
    "odd-no-distributed-info": 6,
}


def test_real_traces_contain_all_collectives_copies_and_waits(recordings):
    for path in recordings.glob("*.json.gz"):
        check_rows(read(path), COLLECTIVES.get(path.name.removesuffix(".json.gz"), 0))


# --- copies


def copy(correlation, start, end, name="Memcpy HtoD (Pageable -> Device)", **args):
    return kernel(correlation, start, end, name=name, category="gpu_memcpy", **args)


def test_copy_has_direction_and_speed(tmp_path):
    events = [
        step_mark(0, 0, 100),
        op("aten::copy_", 0, 50, external=1),
        launch(1, 10, 20, name="cudaMemcpyAsync"),
        copy(1, 30, 130, bytes=1000, external=1),
        copy(2, 200, 250, name="Memcpy PtoP (Device -> Device)"),
        copy(3, 300, 310, name="a vendor's copy", bytes=5),
    ]
    first, second, third = rows(tmp_path, events, copies)
    assert (first["step"], first["kind"], first["source"], first["target"]) == (0, "HtoD", "pageable", "device")
    assert (first["bytes"], first["gb_per_s"], first["operator"]) == (1000, pytest.approx(10), "aten::copy_")
    assert (second["kind"], second["bytes"], second["gb_per_s"], second["blocking"]) == ("PtoP", None, None, None)
    assert (third["kind"], third["source"], third["gb_per_s"]) == (None, None, pytest.approx(0.5))


@pytest.mark.parametrize(
    ("events", "blocking"),
    [
        ([launch(1, 10, 20, name="cudaMemcpyAsync")], False),
        ([launch(1, 10, 20, name="cudaMemcpy")], True),
        ([launch(1, 10, 20, name="hipMemcpyWithStream")], True),
        ([launch(1, 10, 80, name="cudaMemcpyAsync")], True),
        ([launch(1, 10, 20, name="cudaMemcpyAsync"), launch(2, 30, 70, name="cudaStreamSynchronize")], True),
        ([launch(1, 10, 20, name="cudaMemcpyAsync"), launch(2, 210, 220, name="cudaStreamSynchronize")], False),
        ([launch(1, 10, 20, name="cudaMemcpyAsync"), launch(2, 30, 70, name="cudaStreamSynchronize", tid=9)], False),
        ([], None),
    ],
)
def test_copy_blocks_if_the_host_waits_for_the_copy(tmp_path, events, blocking):
    """In its call, or before the operator that made it ends; others may wait as they like."""
    found = rows(tmp_path, [op("aten::copy_", 0, 200, external=1), *events, copy(1, 40, 60, external=1)], copies)
    assert [row["blocking"] for row in found] == [blocking]


def test_slow_call_for_pinned_memory_does_not_block(tmp_path):
    events = [launch(1, 0, 100, name="cudaMemcpyAsync"), copy(1, 40, 60, name="Memcpy HtoD (Pinned -> Device)")]
    assert [row["blocking"] for row in rows(tmp_path, events, copies)] == [False]


# --- synchronisations


def test_wait_has_its_operator_and_line(tmp_path):
    """The outermost operator, and the innermost line of one's own."""
    events = [
        step_mark(7, 0, 100),
        python_frame("train.py(12): step", 0, 100),
        python_frame("torch/nn/modules/module.py(99): _call_impl", 5, 90),
        python_frame("<built-in method item>", 6, 80),
        op("aten::is_nonzero", 10, 80),
        op("aten::item", 20, 70),
        launch(1, 30, 60, name="cudaStreamSynchronize"),
    ]
    (row,) = rows(tmp_path, events, synchronisations)
    assert (row["step"], row["call"], row["operator"]) == (7, "cudaStreamSynchronize", "aten::is_nonzero")
    assert (nanos(row["start_ms"]), nanos(row["host_ms"])) == (30, 30)
    assert row["line"] == "train.py(12): step"


def test_library_line_is_used_without_a_line_of_the_user(tmp_path):
    frames = [python_frame("torch/optim/sgd.py(3): step", 0, 100), python_frame("nn.Module: Linear_0", 1, 90)]
    (row,) = rows(tmp_path, [*frames, launch(1, 30, 60, name="cudaDeviceSynchronize")], synchronisations)
    assert (row["operator"], row["line"]) == (None, "torch/optim/sgd.py(3): step")


def test_number_of_an_unrelated_operator_is_ignored(tmp_path):
    """Calls outside of operators bear their own correlation as external id in some traces."""
    events = [
        op("early", 0, 10, external=9),
        *(op("busy", 20 + i, 21 + i, external=100 + i) for i in range(3)),
        *(launch(200 + i, 20 + i, 21 + i, external=100 + i) for i in range(3)),
        launch(9, 50, 60, name="cudaDeviceSynchronize", external=9),
    ]
    assert [row["operator"] for row in rows(tmp_path, events, synchronisations)] == [None]


def test_waits_of_the_tracer_are_joined_to_their_calls(tmp_path):
    def reported(kind, correlation, start, end):
        event = slice_event("cuda_sync", kind, start, end, pid=0, tid=7)
        return event | {"args": {"cuda_sync_kind": kind, "stream": 7, "correlation": correlation, "device": 0}}

    events = [
        op("conv", 0, 200),
        *(launch(1, 10, 40, name="cudaStreamSynchronize"), reported("Stream Sync", 1, 12, 38)),
        *(launch(2, 50, 55, name="cudaStreamWaitEvent"), reported("Stream Wait Event", 2, 51, 53)),
        reported("Context Sync", 3, 90, 95),
    ]
    found = [
        (row["call"], row["kind"], nanos(row["host_ms"]), nanos(row["device_ms"]), row["operator"])
        for row in rows(tmp_path, events, synchronisations)
    ]
    assert found == [
        ("cudaStreamSynchronize", "Stream Sync", 30, 26, "conv"),
        ("cudaStreamWaitEvent", "Stream Wait Event", None, 2, "conv"),
        ("Context Sync", "Context Sync", None, 5, None),
    ]


def test_operators_replace_calls_that_were_not_recorded(tmp_path):
    events = [op("aten::item", 0, 30), op("aten::_local_scalar_dense", 5, 25), op("aten::nonzero", 40, 50)]
    assert rows(tmp_path, events, synchronisations) == []
    found = rows(tmp_path, [*events, kernel(1, 0, 10)], synchronisations)
    assert [(row["call"], row["operator"], nanos(row["host_ms"])) for row in found] == [
        ("aten::item", "aten::item", 30),
        ("aten::nonzero", "aten::nonzero", 10),
    ]


spans = st.tuples(st.integers(0, 60), st.integers(0, 25))


@pytest.mark.slow
@given(st.lists(st.tuples(spans, st.booleans(), st.integers(1, 3)), max_size=8))
def test_exposed_is_that_of_every_nanosecond(tmp_path_factory, pieces):
    events = [
        kernel(number, start, start + span, name="nccl" if comm else "gemm", stream=stream)
        for number, ((start, span), comm, stream) in enumerate(pieces, 1)
    ]
    busy = set()
    for (start, span), comm, _ in pieces:
        busy |= set() if comm else set(range(start, start + span))
    expected = [len(set(range(start, start + span)) - busy) for (start, span), comm, _ in pieces if comm]
    found = rows(tmp_path_factory.mktemp("c"), [op("nothing", 0, 1), *events])
    assert sorted(nanos(row["exposed_ms"]) for row in found) == sorted(expected)
    assert np.isfinite([row["duration_ms"] for row in found]).all()
