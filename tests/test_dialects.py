"""The same work says the same, whichever recorder wrote it down."""

from __future__ import annotations

import dataclasses
import gzip
import json
from decimal import Decimal

import msgspec
import polars as pl
import pytest
import twins
from twins import DIALECTS, TRACES

from perfhooks import testing
from perfhooks.core.errors import TraceError
from perfhooks.trace import read
from perfhooks.trace.nesting.device import own_times
from perfhooks.trace.reading import reader
from perfhooks.trace.window import Tables

LACKS = ("occupancy_percent",)
"""Columns that torch's new recorder cuspy has nothing for; `docs/files.md` lists them."""
ENCODE = msgspec.json.Encoder(decimal_format="number").encode


def tables(path):
    """Every table of a trace, and the folded stacks."""
    trace = read(path)
    window = Tables(trace, trace.rank or 0)
    properties = [name for name, each in vars(Tables).items() if isinstance(each, property)]
    found = {name: getattr(window, name) for name in properties}
    found = {name: table for name, table in found.items() if isinstance(table, pl.DataFrame)}
    assert len(found) >= 14
    stacks = {f"stacks {by}": pl.DataFrame([*window.stacks(by).items()], orient="row") for by in ("host", "device")}
    return found | {"operators": window.operators(), "by line": window.operators(by=["shapes", "stack"])} | stacks


def assert_twins(folder, name, file):
    """Kineto's file and its twin have the same tables, but for what the twin's recorder has nothing for."""
    for dialect, events in (("kineto", file), ("next", twins.by_next_recorder(file))):
        (folder / f"{dialect}.json").write_bytes(ENCODE(events))
    here, there = tables(folder / "kineto.json"), tables(folder / "next.json")
    for table, rows in here.items():
        lacked = [column for column in LACKS if column in rows.columns]
        if there[table].height:
            assert there[table].select(pl.all_horizontal(pl.col(lacked).is_null()).all()).item() if lacked else True
        assert rows.drop(lacked).equals(there[table].drop(lacked)), (name, table)


@pytest.mark.parametrize("name", [name for name in TRACES if not DIALECTS[name].is_next and not DIALECTS[name].is_old])
def test_tables_of_next_recorder_equal_those_of_kineto(tmp_path, name):
    assert_twins(tmp_path, name, twins.Machine(DIALECTS[name]).whole())


@pytest.mark.slow
def test_tables_of_next_recorder_twins_are_equal(tmp_path, recordings):
    decode = json.JSONDecoder(parse_float=Decimal, strict=False).decode
    for path in sorted(recordings.glob("*.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            recorded = decode(file.read())
        if path.name.startswith("a100"):  # 113 of 8,740 calls name an operator that is not in the file
            events = recorded["traceEvents"]
            known = {number(event) for event in events if event.get("cat") == "cpu_op"}
            kept = [event for event in events if event.get("cat") != "cuda_runtime" or number(event) in known]
            recorded["traceEvents"] = kept
        assert_twins(tmp_path, path.name, recorded)


@pytest.mark.parametrize("name", ["v100-resnet-train", "a100-ddp2-train"])
def test_times_written_as_text_are_exact(tmp_path, monkeypatch, name):
    """Numbers since 1970 with decimals, or relative to a base; typed chunks are among those read."""
    monkeypatch.setattr(reader, "BLOCK", 4096)
    file = twins.Machine(DIALECTS[name]).whole()
    texts = file | {"traceEvents": [event | {"ts": str(event["ts"])} for event in file["traceEvents"]]}
    for kind, events in (("numbers", file), ("texts", texts)):
        (tmp_path / f"{kind}.json").write_bytes(ENCODE(events))
    numbers, read_texts = (tables(tmp_path / f"{kind}.json") for kind in ("numbers", "texts"))
    for table, rows in numbers.items():
        assert rows.equals(read_texts[table]), table


@pytest.mark.parametrize("time", ["", "soon", "NaN", "sNaN", "Infinity", "1e999999", "-1e30"])
def test_invalid_time_loses_its_event(tmp_path, time):
    events = [testing.op(f"op{number}", 10_000 * number, 10_000 * number + 5) for number in range(9)]
    texts = [event | {"ts": f"{1736408883686740 + int(event['ts'])}.710"} for event in events]
    texts[4]["ts"] = time
    trace = read(testing.write_trace(tmp_path / "t.json", texts))
    assert trace.start.tolist() == [1736408883686740710 + 10_000 * number for number in range(9) if number != 4]
    assert [(doubt.name, doubt.count) for doubt in trace.doubts] == [("records-without-time", 1)]


def number(event):
    return event.get("args", {}).get("External id")


def test_steps_of_torch_1_9_equal_those_of_later_traces(tmp_path):
    """There everything is an operator, and the mark of a step was one that copies from the host to the device."""
    old = DIALECTS["v100-torch-1.9"]
    for name, dialect in (("old", old), ("later", dataclasses.replace(old, is_old=False))):
        (tmp_path / f"{name}.json").write_bytes(ENCODE(twins.Machine(dialect).whole()))
    old_steps, later = (tables(tmp_path / f"{name}.json")["steps"] for name in ("old", "later"))
    for part in ("data", "transfer", "forward", "backward", "optimizer"):
        assert later[f"{part}_ms"].min() > 0
    assert old_steps.drop("ops").equals(later.drop("ops")), "of the operators, the inner half of each node is not there"


def test_operators_inside_torch_1_9_nodes_create_no_nodes(tmp_path):
    """A thread that trains on the host runs both passes; the last operator makes the first node."""

    def operator(name, start, end):
        return testing.slice_event("Operator", name, start, end)

    events = [operator("aten::t", 0, 10), operator("aten::addmm", 10, 20), operator("AddmmBackward", 30, 50)]
    events += [operator("aten::t", 32, 40), operator("TBackward", 50, 60), operator("aten::t", 70, 80)]
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    number = trace.argument("sequence").tolist()
    assert [trace.name_of(row) for row in range(6)][2] == "autograd::engine::evaluate_function: AddmmBackward"
    assert (number[0], number[1]) == (number[4], number[2])
    assert (number[3], number[5]) == (-1, -1)


def work(category, name, start, end, **args):
    return testing.slice_event(category, name, start, end, pid=0, tid=7, device=0, stream=7, **args)


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (("HtoD", "pageable", "device"), ("HtoD", "pageable", "device")),
        (("DtoH", "device", "pinned"), ("DtoH", "device", "pinned")),
        ((9, "pinned", "pageable"), ("HtoH", "pinned", "pageable")),
        (("DtoD", "device_static", 3), ("DtoD", None, None)),
        (("HtoD", "pageable", None), (None, None, None)),
    ],
)
def test_copy_kind_is_read_from_its_arguments(tmp_path, kinds, said):
    args = {
        key: kind for key, kind in zip(("copy kind", "src kind", "dst kind"), kinds, strict=True) if kind is not None
    }
    path = testing.write_trace(
        tmp_path / "t.json", [testing.op("aten::x", 0, 9), work("gpu_memcpy", "Memcpy", 2, 4, **args)]
    )
    (copy,) = tables(path)["copies"].select("kind", "source", "target").iter_rows()
    assert copy == said


def test_memset_gets_the_name_of_kineto(tmp_path):
    events = [testing.op("aten::x", 0, 9), work("gpu_memset", "Memset", 2, 4, **{"memory kind": 3})]
    (name,) = tables(testing.write_trace(tmp_path / "t.json", events))["kernels"]["name"]
    assert name == "Memset (Device)"


def test_host_function_in_a_cuda_graph_keeps_the_device_idle(tmp_path):
    """It is written on the stream that waits for it, as a moment is at which an event is recorded."""
    kernel = [
        testing.op("aten::x", 0, 9),
        testing.launch(5, 1, 2),
        work("kernel", "k", 3, 8, correlation=5),
    ]
    nodes = [
        work("graph_host_node", "HostNode: log", 8, 5008, correlation=0, **{"graph node id": 3}),
        work("graph_event_node", "EventRecord", 5008, 5008, correlation=0, **{"graph node id": 4}),
    ]
    without = tables(testing.write_trace(tmp_path / "without.json", [*kernel, testing.annotation("all", 0, 6000)]))
    there = tables(testing.write_trace(tmp_path / "with.json", [*kernel, *nodes, testing.annotation("all", 0, 6000)]))
    for table in ("steps", "kernels", "gaps", "categories"):
        assert without[table].equals(there[table])


def test_work_of_a_cuda_graph_is_on_its_stream(tmp_path):
    """torch draws it on another lane where it is asked to (``graph_lanes="all"``), on which streams overlap."""

    def events(lane=None):
        calls = [testing.op("aten::x", 0, 70), testing.launch(5, 1, 2, name="cudaGraphLaunch")]
        for stream, start, end in ((7, 10, 40), (9, 15, 30), (7, 45, 60)):
            kernel = testing.kernel(5, start, end, stream=lane or stream)
            kernel["args"] |= {"original_stream": stream} if lane else {}
            calls.append(kernel)
        return calls

    plain = read(testing.write_trace(tmp_path / "plain.json", events()))
    drawn = read(testing.write_trace(tmp_path / "drawn.json", events(lane=100_008)))
    assert own_times(drawn).tolist() == own_times(plain).tolist() == [30, 15, 15]
    assert [thread.tid for thread in drawn.threads if thread.tid in (7, 9)] == [7, 9]


@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["packed", "plain"])
def test_perfetto_trace_reports_how_to_write_json(tmp_path, pack):
    """As torch's new recorder cuspy writes it to a name that ends in .pftrace; its first bytes are of a real one."""
    begin = bytes.fromhex("0a2a408090b3fc83dc90a7185001321c0a0c0806108090b3fc83dc90a7180a0c08011080") + bytes(9)
    (tmp_path / "t.pftrace").write_bytes(pack(begin))
    with pytest.raises(
        TraceError, match=r"is no trace: it has Perfetto's .*ends in \.json or \.json\.gz, and torch writes JSON$"
    ):
        read(tmp_path / "t.pftrace")
