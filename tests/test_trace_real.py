"""Everything, over twins of recorded traces, and over the recordings themselves where they lie."""

from __future__ import annotations

import numpy as np
import plain_reader
import pytest
from test_memory import check_conservation
from test_modules import check_sums
from test_operators import check_groups
from twins import TRACES

from perfhooks.core import labels
from perfhooks.trace import Kind, read
from perfhooks.trace.kinds import HOST
from perfhooks.trace.nesting import host, idle_threads, intervals
from perfhooks.trace.tables import modules, operators, stacks, steps


@pytest.fixture(params=TRACES)
def name(request):
    return request.param


@pytest.fixture
def path(traces, name):
    return traces / f"{name}.json.gz"


@pytest.fixture
def trace(path):
    return read(path)


def nanos(column):
    """Milliseconds of a table as the whole nanoseconds they came from."""
    return np.rint(column.to_numpy() * 1e6).astype(np.int64)


def test_everything_is_read(trace, path):
    assert len(trace) == len(plain_reader.slices(path))
    assert len(trace.device_rows) == len(plain_reader.slices(path, plain_reader.WORK))
    assert trace.doubts == []
    # of a replayed graph: functions of the host, and events
    assert {trace.name_of(int(row)) for row in trace.rows(Kind.OTHER)} <= {"HostNode: log", "EventRecord"}
    assert (trace.launches >= 0).all()


def test_columns_are_sorted(trace):
    keys = list(
        zip(trace.thread.tolist(), trace.start.tolist(), (-trace.end).tolist(), trace.order.tolist(), strict=True)
    )
    assert keys == sorted(keys)
    assert (trace.end >= trace.start).all()


def test_the_parts_of_a_step_sum_to_its_wall_time(trace, path):
    table = steps.table(trace)
    assert table["step"].to_list() == plain_reader.marked_steps(path)
    check_parts(table)


def check_parts(table):
    parts = [nanos(table[column].fill_null(0)) for column in (*(f"{part}_ms" for part in labels.PARTS), "other_ms")]
    assert (sum(parts) == nanos(table["wall_ms"])).all()
    assert all((part >= 0).all() for part in parts)


def test_the_parts_of_the_device_sum_to_its_span(trace):
    table = steps.table(trace)
    columns = ("compute_ms", "exposed_comm_ms", "exposed_copy_ms", "other_work_ms", "idle_ms")
    if not trace.is_device_traced:
        assert table.select(columns).null_count().row(0) == (table.height,) * len(columns)
        return
    assert (sum(nanos(table[column]) for column in columns) == nanos(table["device_span_ms"])).all()
    ours = columns[:3]
    assert (sum(nanos(table[column]) for column in ours) == nanos(table["busy_ms"])).all()


def test_every_kernel_is_counted_once(trace):
    """In steps at most once, and in the operators exactly."""
    kernels = int((trace.kind == Kind.KERNEL).sum())
    assert (steps.table(trace)["kernels"].sum() or 0) <= kernels
    table = operators.table(trace)
    assert table.filter(table["kind"] == "kernel")["count"].sum() == kernels


def launched_by_operators(trace):
    """Nanoseconds that the device worked for any operator."""
    table = operators.table(trace)
    on_host = table.filter(table["kind"].is_in(["op", "annotation", "runtime", "overhead"]))
    return nanos(on_host["self_device_ms"].fill_null(0)).sum()


def test_device_time_of_operators_equals_their_launched_work(trace, path):
    left, work = plain_reader.unowned(path), plain_reader.slices(path, plain_reader.WORK)
    assert (
        launched_by_operators(trace)
        == sum(each["dur"] for each in work) * 1000 - sum(each["dur"] for each in left) * 1000
    )


@pytest.mark.parametrize("by", ["host", "device", "bytes"])
def test_stacks_sum_to_the_trace(trace, by):
    rows = trace.rows(*HOST)
    on_host = 0
    for thread in np.unique(trace.thread[rows]):
        mine = rows[trace.thread[rows] == thread]
        on_host += intervals.total(intervals.union(trace.start[mine], trace.end[mine]))
    sizes = trace.instants.size
    work = (trace.end - trace.start)[trace.device_rows]
    expected = {"host": on_host, "device": int(work.sum()), "bytes": int(sizes[sizes > 0].sum())}
    # what idle threads wait is left out
    waited = host.tree(trace).nesting.own[idle_threads.waiting(trace)].sum() if by == "host" else 0
    assert sum(stacks.folded(trace, by).values()) == expected[by] - waited


@pytest.mark.parametrize("name", ["a100-ddp2-train", "v100-resnet-train"])
def test_backward_on_another_thread_is_detected(trace, path):
    table = steps.table(trace)
    nodes = trace.named(Kind.OP, prefix="autograd::engine::evaluate_function: ")
    marks = trace.named(Kind.ANNOTATION, prefix=labels.STEP_MARK)
    assert not set(trace.thread[nodes].tolist()) & set(trace.thread[marks].tolist())
    told = [each for each in plain_reader.slices(path, {"cpu_op"}) if each["name"].startswith("autograd::engine::")]
    assert nanos(table["backward_ms"]).sum() >= sum(each["dur"] for each in told) * 1000 > 0
    assert (table["backward_ms"] < table["wall_ms"]).all()
    assert (table["optimizer_ms"] > 0).all()


@pytest.mark.parametrize("name", ["sampled-128ranks-rank0"])
def test_external_ids_equal_to_correlations_are_replaced(trace):
    """In traces of torch before 2.1 they hit operators that have nothing to do with the launch."""
    rows = trace.rows(Kind.RUNTIME, Kind.KERNEL)
    assert not (trace.external[rows] == trace.correlation[rows]).any()
    assert set(trace.external[rows].tolist()) <= {-1, *trace.external[trace.rows(Kind.OP)].tolist()}
    assert (trace.external[trace.rows(Kind.OP)] > 0).all()


@pytest.mark.parametrize("name", ["v100-resnet-train"])
def test_absolute_times_are_exact(trace, path):
    """Microseconds since 1970 with three decimals do not fit a double."""
    slices = plain_reader.slices(path)
    told = [plain_reader.nanos(each)[0] for each in slices]
    assert trace.start[trace.order.argsort()].tolist() == told
    assert any(int(float(each["ts"]) * 1000) != time for each, time in zip(slices, told, strict=True))


@pytest.mark.parametrize("name", ["a100-ddp2-train"])
def test_ends_of_flows_without_a_start_do_no_harm(trace, path):
    events = plain_reader.content(path)["traceEvents"]
    begun, ended = ({e["id"] for e in events if (e["ph"], e.get("cat")) == (phase, "ac2g")} for phase in "sf")
    assert ended - begun
    assert len(trace.flows.time) == len([e for e in events if (e["ph"], e.get("cat")) == ("s", "fwdbwd")]) > 0
    assert (trace.flows.backward_time >= trace.flows.time).all()


def test_ranks_are_read(traces):
    known = {"cpu-only-rank34": 34, "sampled-128ranks-rank1": 1, "odd-no-distributed-info": None}
    assert {name: read(traces / f"{name}.json.gz").rank for name in known} == known


# name: slices, step marks, kernels + copies + sets
RECORDED = {
    "a100-ddp2-train-3steps": (26933, [4, 5, 6], 3774),
    "v100-resnet-train-5steps": (45420, [101, 102, 103, 104, 105], 6095),
    "b200-eager-stacks-shapes": (22355, [None], 929),
    "h100-bert-small": (2060, [6], 61),
    "mi300-bert-small": (2133, [6], 61),
    "mi250-minitoy-train": (113, [1, 2], 16),
    "mi210-gpu-only": (1194, [None], 562),
    "triton-compile": (115, [None], 12),
    "alexnet-cuda-sync": (868, [None], 98),
    "sampled-128ranks-rank0": (4811, [551, 552], 1204),
    "sampled-128ranks-rank1": (4676, [551, 552], 1154),
    "cpu-only-rank34": (16, [551], 0),
    "odd-no-distributed-info": (2467, [1009], 0),
}

OUTSIDE_OF_OPERATORS = {
    "mi210-gpu-only": 5_343_422,  # all of it: there are no operators
}
"""Nanoseconds of work that no operator or label launched."""


def check_known(name, trace):
    """What was looked up in each recording once."""
    table = steps.table(trace)
    assert (len(trace), table["step"].to_list(), len(trace.device_rows)) == RECORDED[name]
    spans = (trace.end - trace.start)[trace.device_rows].sum()
    assert launched_by_operators(trace) == spans - OUTSIDE_OF_OPERATORS.get(name, 0)
    if name == "a100-ddp2-train-3steps":
        assert len(trace.flows.time) == 543
        assert (table["backward_ms"] > 10).all()
    if name == "v100-resnet-train-5steps":
        assert trace.start[trace.order.argmin()] == 1712195495519689047
        assert (table["backward_ms"] > 10).all()


@pytest.mark.slow
def test_recordings_of_real_machines_have_consistent_sums(recordings):
    for path in recordings.glob("*.json.gz"):
        trace = read(path)
        if path.name.removesuffix(".json.gz") in RECORDED:
            check_known(path.name.removesuffix(".json.gz"), trace)
        assert trace.doubts == []
        assert Kind.OTHER not in trace.kind
        test_columns_are_sorted(trace)
        check_parts(steps.table(trace))
        test_the_parts_of_the_device_sum_to_its_span(trace)
        test_every_kernel_is_counted_once(trace)
        for by in ("host", "device", "bytes"):
            test_stacks_sum_to_the_trace(trace, by)
        for by in operators.GROUPS:
            check_groups(trace, by)
        check_sums(modules.table(trace))
        check_conservation(trace)
