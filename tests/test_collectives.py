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
from perfhooks.testing import annotation, kernel, launch, op
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


def trace_of(tmp_path, events, **metadata):
    return read(testing.write_trace(tmp_path / "t.json", events, **metadata))


def rows(tmp_path, events, module=collectives, **metadata):
    return module.table(trace_of(tmp_path, events, **metadata)).rows(named=True)


def nanos(value):
    return None if value is None else round(value / MS)


# --- collectives


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


@pytest.mark.slow
def test_real_traces_contain_all_collectives_copies_and_waits(recordings):
    for path in recordings.glob("*.json.gz"):
        check_rows(read(path), COLLECTIVES.get(path.name.removesuffix(".json.gz"), 0))


# --- copies


def copy(correlation, start, end, name="Memcpy HtoD (Pageable -> Device)", **args):
    return kernel(correlation, start, end, name=name, category="gpu_memcpy", **args)


# --- synchronisations


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
