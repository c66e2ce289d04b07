from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_reader import WORK, slices
from twins import TRACES

from perfhooks import KernelTable, OptionError, testing
from perfhooks.report import handlers
from perfhooks.run.capture import Capture
from perfhooks.testing import kernel, launch, op, python_frame, slice_event
from perfhooks.trace import read
from perfhooks.trace.nesting import device
from perfhooks.trace.tables import kernels
from perfhooks.trace.window import Tables

MS = 1e-6
OCCUPANCY = "est. achieved occupancy %"


def trace_of(tmp_path, events, **metadata):
    return read(testing.write_trace(tmp_path / "t.json", events, **metadata))


def rows(tmp_path, events, make=kernels.table):
    return make(trace_of(tmp_path, events)).rows(named=True)


def nanos(value):
    return None if value is None else round(value / MS)


def test_rows_are_per_device_and_name_by_time(tmp_path):
    events = [
        kernel(1, 0, 10, name="small"),
        kernel(2, 20, 120, name="gemm"),
        kernel(3, 130, 190, name="gemm"),
        kernel(4, 0, 30, name="gemm", device=1),
    ]
    found = rows(tmp_path, events)
    assert [(row["device"], row["name"], row["count"]) for row in found] == [
        (0, "gemm", 2),
        (1, "gemm", 1),
        (0, "small", 1),
    ]
    assert [nanos(found[0][name]) for name in ("total_ms", "mean_ms", "min_ms", "max_ms")] == [160, 80, 60, 100]


def test_classes_equal_those_of_the_step_table(tmp_path):
    events = [
        kernel(1, 0, 50, name="gemm"),
        kernel(2, 50, 90, name="ncclDevKernel_AllReduce"),
        kernel(3, 90, 120, name="mine", Collective_name="allreduce"),
        kernel(4, 120, 140, name="Memcpy HtoD (Pinned -> Device)", category="gpu_memcpy"),
        kernel(5, 140, 150, name="Memset (Device)", category="gpu_memset"),
    ]
    assert [row["class"] for row in rows(tmp_path, events)] == [
        "compute",
        "communication",
        "communication",
        "copy",
        "set",
    ]


def test_name_in_two_classes_has_two_rows(tmp_path):
    """Only what has the arguments of a collective communicates."""
    events = [kernel(1, 0, 10, name="mine"), kernel(2, 10, 15, name="mine", Collective_name="allreduce")]
    assert [(row["class"], row["count"]) for row in rows(tmp_path, events)] == [("compute", 1), ("communication", 1)]


def test_occupancy_is_weighted_by_time_or_null(tmp_path):
    events = [
        kernel(1, 0, 30, **{OCCUPANCY: 10}),
        kernel(2, 40, 50, **{OCCUPANCY: 50}),
        kernel(3, 60, 1000),
        kernel(4, 1000, 1001, name="other"),
    ]
    known, unknown = rows(tmp_path, events)
    assert known["occupancy_percent"] == pytest.approx(20)
    assert unknown["occupancy_percent"] is None
    assert rows(tmp_path, [kernel(1, 0, 1)])[0]["occupancy_percent"] is None


def test_gaps_are_those_of_the_stream(tmp_path):
    """Overlapping work leaves none; the first on a stream has none before it, the last none behind it."""
    events = [
        kernel(1, 100, 200, name="a"),
        kernel(2, 230, 300, name="b"),
        kernel(3, 250, 260, name="c"),
        kernel(4, 310, 320, name="a"),
        kernel(5, 0, 5, name="elsewhere", stream=9),
    ]
    found = {
        row["name"]: [nanos(row[name]) for name in ("gap_before_ms", "gap_after_ms")] for row in rows(tmp_path, events)
    }
    assert found == {"a": [10, 30], "b": [30, 0], "c": [0, 10], "elsewhere": [None, None]}


def test_launching_operators_are_listed_by_time(tmp_path):
    events = []
    for number, (name, span) in enumerate([("one", 10), ("two", 30), ("two", 30), ("three", 20), ("four", 5)], 1):
        events += [op(name, 100 * number, 100 * number + 50, external=number)]
        events += [kernel(number, 1000 * number, 1000 * number + span, external=number)]
    (row,) = rows(tmp_path, events)
    assert row["operators"] == "two, three, one"
    assert rows(tmp_path, [kernel(1, 0, 1)])[0]["operators"] is None


def test_innermost_operator_replaces_missing_external_ids(tmp_path):
    events = [op("outer", 0, 100), op("inner", 10, 50), launch(1, 20, 30), kernel(1, 200, 210)]
    assert rows(tmp_path, events)[0]["operators"] == "inner"


def test_work_launched_before_the_window_has_a_row_of_its_own(tmp_path):
    """In `by_launch`; in the table it counts with the others of its name, and the window stands among the operators."""
    events = [
        kernel(3, 0, 40, name="gemm"),
        *(op("mm", 10, 20, external=1), launch(5, 10, 15, external=1)),
        kernel(5, 50, 60, name="gemm", external=1),
        kernel(9, 70, 75, name="gemm"),
    ]
    (row,) = rows(tmp_path, events)
    assert (row["count"], row["operators"]) == (3, "(launched before the window), mm")
    found = {row["operator"]: nanos(row["total_ms"]) for row in rows(tmp_path, events, kernels.by_launch)}
    assert found == {"(launched before the window)": 40, "mm": 10, None: 5}


def test_by_launch_separates_operators(tmp_path):
    events = [
        op("one", 0, 50, external=1),
        op("two", 50, 90, external=2),
        kernel(1, 100, 110, external=1),
        kernel(2, 120, 150, external=2),
        kernel(3, 160, 161),
    ]
    found = [
        (row["operator"], row["name"], nanos(row["total_ms"])) for row in rows(tmp_path, events, kernels.by_launch)
    ]
    assert found == [("two", "gemm", 30), ("one", "gemm", 10), (None, "gemm", 1)]


NESTED = [
    *(op("aten::conv2d", 0, 50, external=1), op("aten::add", 50, 90, external=2)),
    *(launch(1, 5, 8, external=1), launch(2, 10, 15, external=1), launch(3, 55, 60, external=2)),
    kernel(1, 100, 200, name="diopiConvolution2d", external=1),
    kernel(2, 120, 150, name="im2col_kernel", external=1),
    kernel(4, 160, 170, name="Memcpy DtoD (Device -> Device)", category="gpu_memcpy", external=1),
    *(kernel(3, 210, 250, name="add", external=2), kernel(5, 110, 140, name="im2col_kernel", stream=9)),
]
"""What torch_dipu's runtime reports: a call of the maker's library on the stream, with its kernels in it."""
WORKED = {7: 140, 9: 30}
"""Nanoseconds in which each stream ran anything."""


def test_nested_kernels_of_a_stream_count_once(tmp_path):
    trace = trace_of(tmp_path, NESTED)
    found = {row["name"]: (nanos(row["total_ms"]), row["class"]) for row in kernels.table(trace).rows(named=True)}
    assert found == {
        "diopiConvolution2d": (60, "compute"),
        "im2col_kernel": (60, "compute"),
        "add": (40, "compute"),
        "Memcpy DtoD (Device -> Device)": (10, "copy"),
    }
    every = Tables(trace)
    rows = {row["name"]: row for row in every.operators().rows(named=True)}
    assert nanos(rows["aten::conv2d"]["self_device_ms"]) == 100
    assert nanos(rows["aten::add"]["self_device_ms"]) == 40
    whole = sum(WORKED.values())
    assert nanos(every.kernels["total_ms"].sum()) == whole
    assert nanos(every.kernels_by_launch["total_ms"].sum()) == whole
    assert nanos(every.categories["device_ms"].sum()) == whole
    assert sum(every.stacks("device").values()) == whole
    on_device = every.operators().filter(pl.col("kind").is_in(["kernel", "copy"]))
    assert nanos(on_device["self_device_ms"].sum()) == whole


def test_checks_report_nested_but_not_concurrent_kernels(tmp_path):
    (row,) = (row for row in Tables(trace_of(tmp_path, NESTED)).checks.rows(named=True) if "nested" in row["name"])
    assert (row["severity"], row["name"], row["count"]) == ("info", "nested-kernels", 2)
    assert row["text"].startswith("2 of 5 kernels, copies and memsets lie within others of the same stream")
    crossing = [op("a", 0, 10), kernel(1, 100, 200), kernel(2, 150, 250), kernel(3, 110, 120, stream=9)]
    every = Tables(trace_of(tmp_path, crossing))
    assert "nested-kernels" not in every.checks["name"].to_list()
    assert nanos(every.kernels["total_ms"].sum()) == 210


def test_module_counts_its_kernels_once(tmp_path):
    frame = python_frame("nn.Module: Conv2d_0", 0, 52, Python_module_id=0)
    every = Tables(trace_of(tmp_path, [frame, *NESTED]))
    assert [nanos(row) for row in every.modules["forward_device_ms"]] == [100]


def test_a_device_with_a_name_instead_of_a_number_is_null(tmp_path):
    event = slice_event("privateuse1_kernel", "add", 0, 10, pid="npu:0", tid=3)
    (row,) = rows(tmp_path, [event])
    assert row["device"] is None


def test_a_number_that_counts_no_device_is_null(tmp_path):
    (row,) = rows(tmp_path, [slice_event("kernel", "add", 0, 10, pid=2**64, tid=3)])
    assert row["device"] is None


def test_tables_without_device_work_are_empty(tmp_path):
    trace = trace_of(tmp_path, [op("a", 0, 10)])
    assert kernels.table(trace).is_empty()
    assert kernels.by_launch(trace).is_empty()
    assert kernels.table(trace).schema["occupancy_percent"] == pl.Float64


spans = st.tuples(st.integers(0, 80), st.integers(0, 20))
work = st.lists(
    st.tuples(
        spans, st.sampled_from(["a", "b"]), st.integers(1, 2), st.integers(0, 1), st.none() | st.integers(0, 100)
    ),
    max_size=12,
)


def slow(pieces):
    """The obvious way: for every name, look at every piece, and at every other on its stream."""
    found = {}
    for start, end, name, stream, place, occupancy in pieces:
        others = sorted((s, -e) for s, e, _, other, where, _ in pieces if (other, where) == (stream, place))
        index = others.index((start, -end))
        before = max((-e for _, e in others[:index]), default=None)
        row = found.setdefault((place, name), {"spans": [], "gaps": [], "occupancy": []})
        row["spans"].append(own(start, end, others))
        row["gaps"] += [] if before is None else [max(start - before, 0)]
        row["occupancy"] += [] if occupancy is None else [(occupancy, own(start, end, others))]
    return found


def own(start, end, others):
    """The length of one piece less those that lie in it and in no shorter one: the last that is open holds a piece."""
    opened, length = [], end - start
    for begin, last in ((begin, -last) for begin, last in others):
        while opened and (begin >= opened[-1][1] or last > opened[-1][1]):
            opened.pop()
        length -= last - begin if opened and opened[-1] == (start, end) else 0
        opened.append((begin, last))
    return length


@pytest.mark.slow
@given(work)
def test_table_equals_a_simple_computation(tmp_path_factory, drawn):
    pieces = [
        (start, start + span, name, stream, place, occupancy) for (start, span), name, stream, place, occupancy in drawn
    ]
    pieces = [
        piece
        for number, piece in enumerate(pieces)
        if (piece[0], piece[1], *piece[3:5]) not in {(each[0], each[1], *each[3:5]) for each in pieces[:number]}
    ]
    events = [op("nothing", 0, 1)] + [
        kernel(
            number,
            start,
            end,
            name=name,
            stream=stream,
            device=place,
            **({} if occupancy is None else {OCCUPANCY: occupancy}),
        )
        for number, (start, end, name, stream, place, occupancy) in enumerate(pieces, 1)
    ]
    expected = slow(pieces)
    found = {(row["device"], row["name"]): row for row in rows(tmp_path_factory.mktemp("k"), events)}
    assert found.keys() == expected.keys()
    for key, row in found.items():
        lengths, gaps, weights = (expected[key][name] for name in ("spans", "gaps", "occupancy"))
        assert (row["count"], nanos(row["total_ms"])) == (len(lengths), sum(lengths))
        assert row["mean_ms"] == pytest.approx(sum(lengths) / len(lengths) * MS)
        assert row["gap_before_ms"] == (pytest.approx(sum(gaps) / len(gaps) * MS) if gaps else None)
        weight = sum(span for _, span in weights)
        mean = sum(each * span for each, span in weights) / weight if weight else None
        assert row["occupancy_percent"] == (None if mean is None else pytest.approx(mean))


@pytest.mark.parametrize("name", TRACES)
def test_every_kernel_of_any_dialect_is_counted_once(traces, name):
    path = traces / f"{name}.json.gz"
    trace, work = read(path), slices(path, WORK)
    spans = int(sum(each["dur"] for each in work) * 1000)
    for table in (kernels.table(trace), kernels.by_launch(trace)):
        assert table["count"].sum() == len(trace.device_rows) == len(work)
        assert nanos(table["total_ms"].sum()) == pytest.approx(spans, abs=1)


@pytest.mark.parametrize("name", ["a100-ddp2-train", "mi300-bert-small", "sampled-128ranks-rank0"])
def test_every_kernel_of_any_dialect_has_an_operator(traces, name):
    """By its external id, or in old traces, where that is something else, by the time of its launch."""
    trace = read(traces / f"{name}.json.gz")
    assert (device.owners(trace) >= 0).all()
    assert kernels.table(trace)["operators"].null_count() == 0


# --- the handler


def test_handler_writes_the_table_with_a_device(tmp_path):
    trace = trace_of(tmp_path, [kernel(1, 0, 1000)])
    (artifact,) = handlers.build("kernels").artifacts(Capture(), trace)
    assert artifact.name == "kernels.csv"
    with (tmp_path / "k.csv").open("wb") as file:
        artifact.write(file)
    table = pl.read_csv(tmp_path / "k.csv")
    assert table["name"].to_list() == ["gemm"]
    assert table["total_ms"].to_list() == [0.001]


def test_handler_can_separate_operators(tmp_path):
    trace = trace_of(tmp_path, [kernel(1, 0, 1000)])
    (artifact,) = handlers.build({"type": "kernels", "by_launch": True}).artifacts(Capture(), trace)
    with (tmp_path / "k.csv").open("wb") as file:
        artifact.write(file)
    assert "operator" in pl.read_csv(tmp_path / "k.csv").columns


def test_handler_writes_nothing_without_a_device(tmp_path):
    assert list(KernelTable().artifacts(Capture(), trace_of(tmp_path, [op("a", 0, 1)]))) == []


@pytest.mark.parametrize("options", [{"by_launch": 1}, {"row_limit": 0}, {"row_limit": "all"}])
def test_the_handler_refuses_bad_options(options):
    with pytest.raises(OptionError):
        KernelTable(**options)


def test_work_of_a_cuda_graph_has_its_recorded_name(tmp_path):
    """As ``torch.cuda.graph_annotations.mark_kernels`` gives it; the one call that replays the graph is of no use."""
    replay = [testing.op("replay", 0, 90, external=3), testing.launch(5, 1, 2, name="cudaGraphLaunch", external=3)]
    node = {"external": 3, "name": "gemm"}
    events = [
        testing.kernel(5, 10, 20, **node, graph_node_id=7),
        testing.kernel(5, 20, 40, **node, graph_node_id=8),
        testing.kernel(5, 40, 60, external=3, name="eager"),
    ]
    events[0]["args"]["name"], events[1]["args"]["name"] = "attention", "mlp"
    events[2]["args"]["name"] = "no node of a graph"
    table = kernels.by_launch(read(testing.write_trace(tmp_path / "t.json", [*replay, *events])))
    spent = {operator: nanos(total) for operator, total in table.select("operator", "total_ms").rows()}
    assert spent == {"attention": 10, "mlp": 20, "replay": 20}
