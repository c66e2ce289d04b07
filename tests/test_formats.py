"""Files that torch.profiler's exporter did not write: read where they hold PyTorch's events, else named and refused."""

from __future__ import annotations

import bz2
import json
import lzma
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from twins import DIALECTS, Machine

from perfhooks import testing
from perfhooks.cli import app
from perfhooks.core.errors import TraceError
from perfhooks.trace import Kind, read
from perfhooks.trace.tables import checks, steps

HOST = {"ph": "X", "pid": 1, "tid": 1, "ts": 10.0, "dur": 5.0}
FOREIGN = {
    "TensorFlow": {
        "displayTimeUnit": "ns",
        "metadata": {"highres-ticks": True},
        "traceEvents": [
            {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:GPU:0"}},
            HOST | {"name": "MatMul", "args": {"tf_op": "model/dense/MatMul", "long_name": "model/dense/MatMul"}},
        ],
    },
    "JAX": {"traceEvents": [HOST | {"name": "fusion.1", "args": {"hlo_op": "fusion.1", "hlo_module": "jit_step"}}]},
    "rocprof": {
        "traceEvents": [
            {"args": {"name": "0 CPU HIP API"}, "ph": "M", "pid": "2", "name": "process_name"},
            HOST | {"name": "hipLaunchKernel", "args": {"BeginNs": "10", "EndNs": "20", "DurationNs": "10"}},
        ]
    },
    "VizTracer": {
        "traceEvents": [HOST | {"name": "main (a.py:3)", "cat": "FEE"}],
        "viztracer_metadata": {"version": "0.16"},
    },
    "ONNX Runtime": [
        HOST | {"name": "model_loading_uri", "cat": "Session", "args": {}},
        HOST | {"name": "Conv_1_kernel_time", "cat": "Node", "args": {"op_name": "Conv"}},
        HOST | {"name": "sgemm", "cat": "Kernel", "args": {"stream": "7"}},
    ],
    "a browser": {"traceEvents": [HOST | {"name": "RunTask", "cat": "devtools.timeline"}]},
    "py-spy": [HOST | {"name": "main", "cat": "py-spy", "ph": phase} for phase in "BE"],
    "format is unknown": {"traceEvents": [HOST | {"name": "work", "cat": "mine"}]},
}


@pytest.mark.parametrize("program", FOREIGN)
def test_a_file_without_pytorch_events_is_named(tmp_path, program):
    (tmp_path / "t.json").write_text(json.dumps(FOREIGN[program]))
    with pytest.raises(TraceError, match=rf"t\.json contains no PyTorch event: .*{program}"):
        read(tmp_path / "t.json")


ARCHIVES = {
    "zip": b"PK\x03\x04" + json.dumps([HOST | {"name": "aten::mm", "cat": "cpu_op"}]).encode(),
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(40),
    "xz": lzma.compress(b'{"traceEvents": []}'),
    "bzip2": bz2.compress(b'{"traceEvents": []}'),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_other_archives_than_gzip_are_named(tmp_path, name):
    (tmp_path / "t.json").write_bytes(ARCHIVES[name])
    with pytest.raises(TraceError, match=rf"t\.json is no trace: it is an archive \({name}\): unpack it"):
        read(tmp_path / "t.json")


@pytest.mark.parametrize("text", ["[]", '{"traceEvents": []}', '{"schemaVersion": 1, "traceEvents": []}'])
def test_a_file_without_events_is_refused(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(TraceError, match=r"t\.json contains no event$"):
        read(tmp_path / "t.json")


def test_a_recording_of_nothing_is_a_check(tmp_path):
    span = HOST | {"name": "PyTorch Profiler (0)", "cat": "Trace", "pid": "Spans", "tid": "PyTorch Profiler"}
    (tmp_path / "t.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [span]}))
    table = checks.table(read(tmp_path / "t.json"))
    assert table["text"].to_list() == ["neither operators nor device work were recorded"]


@pytest.mark.parametrize("words", [["show"], ["show", "-t", "kernels", "--csv"], ["report"], ["flame"], ["merge"]])
@pytest.mark.parametrize("program", ["TensorFlow", "py-spy", "format is unknown"])
def test_commands_refuse_such_files_and_folders(tmp_path, monkeypatch, capfd, words, program):
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "rank0.json").write_text(json.dumps(FOREIGN[program]))
    monkeypatch.chdir(tmp_path)
    for target in [folder] if words == ["merge"] else [folder / "rank0.json", folder]:
        monkeypatch.setattr(sys, "argv", ["perfhooks", words[0], str(target), *words[1:]])
        with pytest.raises(SystemExit) as ended:
            app.main()
        out, err = capfd.readouterr()
        assert (ended.value.code, out) == (2, "")
        assert program in err
        assert "Traceback" not in err


LEGACY = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autograd.profiler.profile() as profiler:
    for _ in range(3):
        with torch.profiler.record_function("enumerate(DataLoader)#fetch"):
            batch = torch.randn(4, 8)
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
profiler.function_events.export_chrome_trace(sys.argv[1])
"""


@pytest.mark.browser
def test_the_legacy_export_of_torch_is_read(tmp_path):
    path = tmp_path / "t.json"
    subprocess.run([sys.executable, "-c", LEGACY, path], check=True, timeout=120)
    written = json.loads(path.read_bytes())
    trace = read(path)
    names = [trace.names[name] for name in trace.name]
    assert sorted(names) == sorted(event["name"] for event in written if event["ph"] == "X")
    kinds = dict(zip(names, trace.kind.tolist(), strict=True))
    assert kinds["aten::addmm"] == kinds["SumBackward0"] == Kind.OP
    assert kinds["Optimizer.step#SGD.step"] == kinds["enumerate(DataLoader)#fetch"] == Kind.ANNOTATION
    (row,) = steps.table(trace).rows(named=True)
    assert row["ops"] == sum(kind == Kind.OP for kind in trace.kind)
    assert all(row[part] > 0 for part in ("data_ms", "backward_ms", "optimizer_ms"))
    assert row["busy_ms"] is None


def test_runtime_calls_in_old_exports_are_no_operators(tmp_path):
    """With a GPU torch writes them among the operators, and no kernels."""
    events = [("aten::mm", 0, 30), ("cudaLaunchKernel", 10, 5), ("cudaDeviceSynchronize", 40, 7)]
    legacy = [
        {"name": name, "ph": "X", "ts": start, "dur": span, "tid": 1, "pid": "CPU functions", "args": {}}
        for name, start, span in events
    ]
    link = {"name": "aten::mm", "ph": "s", "ts": 0, "tid": 1, "pid": "CPU functions", "id": 0, "cat": "cpu_to_cuda"}
    (tmp_path / "t.json").write_text(json.dumps([legacy[0], link, *legacy[1:]]))
    (row,) = steps.table(read(tmp_path / "t.json")).rows(named=True)
    assert (row["ops"], row["launches"], row["syncs"]) == (1, 1, 1)


def test_kernels_of_torch_1_are_read(tmp_path):
    events = [("aten::mm", 0, 30, "CPU functions"), ("sgemm", 20, 50, "CUDA functions")]
    legacy = [
        {"name": name, "ph": "X", "ts": start, "dur": span, "tid": 0, "pid": pid, "args": {}}
        for name, start, span, pid in events
    ]
    (tmp_path / "t.json").write_text(json.dumps(legacy))
    (row,) = steps.table(read(tmp_path / "t.json")).rows(named=True)
    assert (row["ops"], row["kernels"], row["busy_ms"]) == (1, 1, pytest.approx(0.05))


def edges(event, *, named=True):
    """The same slice as two events."""
    end = {"ph": "E", "pid": event["pid"], "tid": event["tid"], "ts": event["ts"] + event["dur"]}
    begin = {key: value for key, value in event.items() if key != "dur"}
    return begin | {"ph": "B"}, end | ({"name": event["name"], "cat": event["cat"]} if named else {})


def in_order(pairs):
    """Beginnings and ends by time; of several at once, ends and outer slices first."""
    keyed = []
    for place, (begin, end) in enumerate(pairs):
        keyed += [((begin["ts"], 1, -end["ts"], place), begin), ((end["ts"], 0, -begin["ts"], -place), end)]
    return [event for _, event in sorted(keyed, key=lambda pair: pair[0])]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("dialect", ["a100-ddp2-train", "v100-resnet-train", "h100-bert-small"])
def test_beginnings_and_ends_make_the_same_trace(tmp_path, dialect, named):
    encode = msgspec.json.Encoder(decimal_format="number").encode
    file = Machine(DIALECTS[dialect]).whole()
    (tmp_path / "x.json").write_bytes(encode(file))
    slices = [event for event in file["traceEvents"] if event["ph"] == "X"]
    others = [event for event in file["traceEvents"] if event["ph"] != "X"]
    file["traceEvents"] = [*others, *in_order([edges(event, named=named) for event in slices])]
    (tmp_path / "be.json").write_bytes(encode(file))
    plain, paired = read(tmp_path / "x.json"), read(tmp_path / "be.json")
    assert paired.doubts == []
    assert len(paired) == len(plain)
    assert np.array_equal(np.sort(paired.start), np.sort(plain.start))
    assert np.array_equal(np.sort(paired.end), np.sort(plain.end))
    assert steps.table(paired).equals(steps.table(plain))


def test_a_beginning_without_an_end_has_no_length(tmp_path):
    events = in_order([edges(testing.op("aten::mm", 1000, 5000)), edges(testing.op("aten::add", 2000, 3000))])
    events = [event for event in events if (event["name"], event["ph"]) != ("aten::mm", "E")]
    events.append({"ph": "E", "pid": 7, "tid": 7, "ts": 9.0})
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    assert [trace.names[name] for name in trace.name] == ["aten::add"]
    assert {row["name"]: row["count"] for row in checks.table(trace).rows(named=True)}["records-without-length"] == 2


def test_a_byte_order_mark_is_no_damage(tmp_path):
    path = testing.write_trace(tmp_path / "t.json", [testing.op("aten::mm", 0, 10_000)], distributedInfo={"rank": 3})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    found = read(path)
    assert (found.rank, found.doubts, len(found)) == (3, [], 1)
