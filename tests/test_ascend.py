"""Traces of torch_npu say what traces of the same training on a GPU say."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import http.server
import json
import sys
import threading

import fsspec
import msgspec
import npu_twins
import polars as pl
import pytest
import twins
from npu_twins import Spelling

from perfhooks import trace
from perfhooks.cli import app
from perfhooks.cli.actions import mirror, show
from perfhooks.trace import Kind
from perfhooks.trace.tables import device_time
from perfhooks.trace.window import Tables

ENCODE = msgspec.json.Encoder(decimal_format="number").encode
TRAINING = dataclasses.replace(twins.DIALECTS["a100-ddp2-train"], stacks=True)
SPELLINGS = {
    "level 0": Spelling(level=0),
    "level 1": Spelling(),
    "level 2": Spelling(level=2),
    "2024": Spelling(is_of_2024=True),
    "relative": Spelling(is_relative=True, communication="Communication"),
    "device 3": Spelling(device=3),
}
LACKS = {"level 0": {"launches", "syncs", "sync_ms"}, "2024": {"launches"}}
"""Columns of steps for which a spelling has nothing."""
HANDED_OVER = ("launching", "start latency", "launched, not started")
"""Causes of idle time between the operator and the kernel: an NPU's queue has two threads of the host for that."""


@pytest.fixture(scope="module")
def kineto():
    return twins.Machine(TRAINING).whole()


@pytest.fixture(params=SPELLINGS)
def spelled(request):
    return request.param


def written(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = ENCODE(content)
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    return path


def window(path, content):
    return Tables(trace.read(written(path, content)))


@pytest.fixture
def both(tmp_path, kineto, spelled):
    """The tables of the training on a GPU, and on an NPU."""
    npu = npu_twins.by_torch_npu(kineto, SPELLINGS[spelled])
    return window(tmp_path / "kineto.json", kineto), window(tmp_path / "trace_view.json", npu)


RECORDED = ("level0/rank0", "level1/rank0", "level1/rank1", "level2/rank0", "npu2024")
ALTERNATIVES = {"forward_ms": "forward_ms_from_links_only", "backward_ms": "backward_ms_from_nodes_only"}
"""Another right value of a column whose own value is unknown."""


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_steps_equal_those_of_torch_npu(recordings, name):
    folder = recordings / "ascend"
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))[name]
    (path,) = (path for place in folder.glob(f"{name}*") for path in place.rglob("trace_view.json.gz"))
    tables = Tables(trace.read(path))
    (row,) = tables.steps.to_dicts()
    least = expected.pop("sync_ms_without_blocking_copies")
    most = expected.pop("sync_ms")
    assert (row["sync_ms"] is None) == (most is None)
    assert most is None or least - 1e-6 <= row["sync_ms"] <= most + 1e-6
    assert len(tables.trace.rows(Kind.COPY)) == expected.pop("copies")
    for column, alternative in ALTERNATIVES.items():
        value = expected.pop(alternative)
        expected[column] = value if expected[column] is None else expected[column]
    assert {column: row[column] for column in expected} == {
        column: pytest.approx(value, abs=1e-6) if isinstance(value, float) else value
        for column, value in expected.items()
    }


def test_steps_equal_those_of_the_gpu_trace(both, spelled):
    gpu, npu = (each.steps for each in both)
    for column in gpu.columns:
        if column in LACKS.get(spelled, ()):
            assert npu[column].null_count() == npu.height, column
        elif column != "rank":
            assert gpu[column].equals(npu[column]), (column, gpu[column].to_list(), npu[column].to_list())
    assert npu["rank"].to_list() == [None] * 3
    assert both[1].checks["name"].to_list() == []


def test_kernels_have_their_operators_and_stacks(both, spelled):
    columns = ["name", "count", "total_ms", "gap_before_ms", "operators"]
    gpu, npu = (each.kernels.filter(pl.col("class") == "compute").select(columns) for each in both)
    assert gpu.equals(npu)
    assert set(both[1].kernels["device"]) == {SPELLINGS[spelled].device}
    of_gpu, of_npu = (each.stacks("device") for each in both)
    of_gpu = {stack.replace("cudaLaunchKernel;", ""): time for stack, time in of_gpu.items()}
    kept = [stack for stack in of_gpu if stack.split(";")[-1] in set(gpu["name"])]
    assert len(kept) > 10
    assert {stack: of_npu[stack] for stack in kept} == {stack: of_gpu[stack] for stack in kept}
    assert sum(of_npu.values()) == sum(of_gpu.values())


def test_idle_time_has_the_causes_of_the_gpu(both, spelled):
    causes, alike = [], dict.fromkeys(HANDED_OVER, "handed over")
    if spelled == "level 0":  # without the calls that wait
        alike["waiting for the device"] = "code between operators"
    for each in both:
        found = each.idle().with_columns(pl.col("cause").replace(alike))
        causes.append(dict(found.group_by("cause").agg(pl.col("idle_ms").sum().round(6)).iter_rows()))
    assert causes[0] == causes[1]
    idle = device_time.idle(both[1].trace)
    assert int(idle.length.sum()) == round(both[1].steps["device_idle_ms"].sum() * 1e6)


def test_time_in_the_queue_is_launching(tmp_path, kineto):
    npu = window(tmp_path / "t.json", npu_twins.by_torch_npu(kineto)).idle()
    gpu = window(tmp_path / "k.json", kineto).idle()
    launching = [each.filter(cause="launching")["idle_ms"].sum() for each in (gpu, npu)]
    assert launching[1] > launching[0]
    assert npu.filter(cause="launched, not started").height == 0


def test_collectives_have_bytes_and_group(both, spelled):
    found = both[1].collectives
    told = found.select("step", "operation", "backend", "group", "dtype", "bytes", "device").unique().rows()
    assert sorted(told) == [
        (step, "all_reduce", "hccl", "586", "FP32", 4000, SPELLINGS[spelled].device) for step in (4, 5, 6)
    ]
    assert found["exposed_ms"].equals(both[0].collectives["exposed_ms"])


def test_copies_have_a_direction(both, spelled):
    gpu, npu = (each.copies for each in both)
    assert npu.select("kind", "source", "target").unique().rows() == [("HtoD", "host", "device")]
    assert npu["duration_ms"].equals(gpu["duration_ms"])
    assert npu["blocking"].to_list() == ([None] * 3 if spelled == "level 0" else gpu["blocking"].to_list())


def test_copy_blocks_if_the_operator_around_the_copy_waits(tmp_path, kineto):
    """The operator of torch_npu that asks for the copy ends before that."""
    events = npu_twins.by_torch_npu(kineto)
    copy = next(event for event in events if event["name"] == "aten::copy_")
    inner = copy | {"name": "acl_memcpy_host_to_device", "dur": copy["dur"] - 1}
    wait = next(event for event in events if event["name"] == "AscendCL@aclrtSynchronizeDevice")
    inside = wait | {"ts": f"{copy['ts'].split('.')[0]}.999", "dur": copy["dur"] - 1}
    found = [window(tmp_path / "t.json", [*events, *more]).copies for more in ([inner], [inner, inside])]
    assert [each["operator"][0] for each in found] == ["acl_memcpy_host_to_device"] * 2
    assert [each["blocking"][0] for each in found] == [False, True]


def test_shapes_are_lists(both):
    shapes = [
        each.operators(["shapes"]).filter(kind="op").select("name", "input_shapes", "count").sort(pl.all())
        for each in both
    ]
    assert shapes[0].equals(shapes[1])


def test_counters_have_their_device_and_hold_no_clocks(both, spelled):
    found = both[1].counters
    assert found.select("counter", "unit", "device").unique().rows() == [
        ("HBM 0/Read Read(MB/s)", "MB/s", SPELLINGS[spelled].device)
    ]


def test_garbage_collection_is_a_cause_of_idle_time(tmp_path, kineto):
    writer = npu_twins._Writer(kineto, Spelling())
    events = npu_twins.by_torch_npu(kineto)
    mark = next(event for event in events if event["name"] == "ProfilerStep#4")
    loader = next(event for event in events if event["name"] == twins.LOADER)
    garbage = loader | {"name": "GC", "cat": "GC", "pid": writer.pid("Python GC"), "args": {}}
    found = window(tmp_path / "t.json", [*events, garbage])
    assert mark["tid"] == loader["tid"]
    assert found.idle().filter(cause="collecting garbage")["idle_ms"].sum() == pytest.approx(
        float(loader["dur"]) / 1000
    )


@pytest.mark.parametrize("name", ["teacher", "my loss (teacher)", "forward"])
def test_labels_of_the_user_are_no_operators(tmp_path, kineto, name):
    """A label that holds operators and lies in none; torch_npu writes it as an operator."""
    events = npu_twins.by_torch_npu(kineto)
    plain = window(tmp_path / "plain.json", events)
    first = next(event for event in events if event["name"] == "aten::conv2d")
    begin = str(first["ts"])[:-4] + ".000"  # within the microsecond before
    label = first | {"name": name, "ts": begin, "dur": first["dur"] + 2, "args": {"Sequence number": -1}}
    labelled = window(tmp_path / "labelled.json", [*events, label])
    assert [labelled.trace.name_of(row) for row in labelled.trace.rows(Kind.ANNOTATION)].count(name) == 1
    assert labelled.steps["ops"].equals(plain.steps["ops"])
    assert name in labelled.labels["name"]


def test_a_task_of_an_unknown_type_is_a_check(tmp_path, kineto):
    events = npu_twins.by_torch_npu(kineto)
    kernel = next(event for event in events if event.get("args", {}).get("Task Type") == "AI_CORE")
    kernel["args"]["Task Type"] = "QUANTUM_SQE"
    found = window(tmp_path / "t.json", events)
    assert found.checks.filter(name="unknown-tasks")["count"].to_list() == [1]
    assert found.steps["kernels"].to_list() == [None, 26, 26], "whether it is work is unknown"


def test_links_written_as_doubles_are_followed(tmp_path, kineto):
    """Ends of links that lost 100 ns still belong to their slices."""
    events = npu_twins.by_torch_npu(kineto)
    plain = window(tmp_path / "plain.json", events)
    for event in events:
        if event["ph"] in "sf" and event["cat"] in ("async_npu", "HostToDevice"):
            whole, decimals = event["ts"].split(".")
            event["ts"] = f"{whole}.{max(int(decimals) - 100, 0):03d}"
    inexact = window(tmp_path / "inexact.json", events)
    assert inexact.kernels.equals(plain.kernels)
    assert inexact.steps.equals(plain.steps)


def test_work_belongs_to_the_operator_that_queued_the_work(tmp_path, kineto):
    """If a link leads from an operator that began after the work."""
    events = npu_twins.by_torch_npu(kineto)
    plain = window(tmp_path / "plain.json", events)
    starts = [event for event in events if event["ph"] == "s" and event.get("cat") == "async_npu"]
    last = max(starts, key=lambda event: event["ts"])
    starts[0] |= {"tid": last["tid"], "ts": last["ts"]}
    crossed = window(tmp_path / "crossed.json", events)
    assert crossed.kernels.equals(plain.kernels)
    assert "kernels-before-launch" not in crossed.checks["name"]


def test_trace_of_the_device_without_a_host_is_read(tmp_path, kineto):
    events = npu_twins.by_torch_npu(kineto)
    of_host = {"cpu_op", "python_function", "enqueue", "dequeue", "async_task_queue", "fwdbwd"}
    kept = [event for event in events if event.get("cat") not in of_host]
    found = window(tmp_path / "t.json", [event for event in kept if event["args" if "args" in event else "name"]])
    assert found.steps["kernels"].item() == found.kernels.filter(pl.col("class") != "copy")["count"].sum() > 0


@pytest.fixture
def folder(tmp_path, kineto):
    """The folders of two processes, as torch_npu leaves them."""
    for rank in (0, 1):
        process = tmp_path / "result" / f"node1_{4100 + rank}_2025010907_ascend_pt"
        written(process / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", npu_twins.by_torch_npu(kineto))
        written(process / "ASCEND_PROFILER_OUTPUT" / "communication.json", {"step4": {"collective": {}}})
        written(process / f"profiler_info_{rank}.json", {"rank_id": rank, "config": {}})
    return tmp_path / "result"


@pytest.fixture
def perfhooks(monkeypatch, capfd):
    """Runs a command in this process; returns its standard output."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["perfhooks", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            app.main()
        out, err = capfd.readouterr()
        assert not ended.value.code, err
        return out

    return call


def targets(folder):
    process = sorted(folder.iterdir())[1]
    return [process / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", process, folder]


def test_rank_is_read_from_the_file_beside_the_trace(folder):
    trace_file, process, whole = targets(folder)
    for target, ranks in (
        (trace_file, {1}),
        (process, {1}),
        (process / "ASCEND_PROFILER_OUTPUT", {1}),
        (whole, {0, 1}),
    ):
        assert set(show.tables(str(target), ["steps"])["steps"]["rank"]) == ranks
    (process / "profiler_info_1.json").unlink()
    for target in (trace_file, process):
        assert set(show.tables(str(target), ["steps"])["steps"]["rank"]) == {None}


@pytest.mark.slow
@pytest.mark.parametrize("target", [0, 1, 2])
def test_every_command_accepts_a_trace_and_folders(folder, tmp_path, target, perfhooks):
    path, ranks = targets(folder)[target], [0, 1] if target == 2 else [1]
    assert len(perfhooks("show", path, "-t", "steps").splitlines()) == 1 + 3 * len(ranks)
    told = perfhooks("show", path, "--format", "markdown")
    assert "| device busy |" in told
    assert str(targets(folder)[0]) in told
    perfhooks("report", path, "-o", tmp_path / "report.html")
    assert "hcom_allReduce" in (tmp_path / "report.html").read_text()
    assert f"rank{'s 0-1' if target == 2 else ' 1'}" in perfhooks("merge", path, "-o", tmp_path / "merged.json")
    merged = json.loads((tmp_path / "merged.json").read_bytes())["traceEvents"]
    assert {type(event["ts"]) for event in merged if event["ph"] == "X"} <= {int, float}
    names = {event["args"]["name"] for event in merged if event["name"] == "process_name"}
    assert {f"rank {rank} {name}" for rank in ranks for name in ("Python", "CANN", "Ascend Hardware", "HCCL")} <= names
    assert "the profiled steps (3 and 3 steps" in perfhooks("compare", path, path)


@pytest.mark.slow
def test_findings_equal_those_of_the_gpu_trace(tmp_path, spelled):
    """A fast device that waits for the host."""
    fast = twins.Machine(dataclasses.replace(TRAINING, slowness=1, layers=12, facts={})).whole()
    npu = npu_twins.by_torch_npu(fast, SPELLINGS[spelled])
    found = [
        show.compute(trace.read(written(tmp_path / f"{name}.json", content)), "findings")
        for name, content in (("gpu", fast), ("npu", npu))
    ]
    assert found[0]["rule"].to_list() == found[1]["rule"].to_list() == ["host-bound", "waiting-for-data"]
    advice = found[1].filter(found[1]["rule"] == "host-bound").row(0, named=True)
    assert "cuda" not in " ".join(map(str, advice.values())).lower()
    evidence = found[1]["evidence"][0]
    assert "the kernels differ from step to step" not in evidence, "only the numbers of collectives differ"
    assert ("50 kernels in" if "launches" in LACKS.get(spelled, ()) else "50 launches in") in evidence


DAMAGES = {
    "no names": lambda event: None if event["ph"] == "M" and event["name"] == "thread_name" else event,
    "no ends": lambda event: None if event["ph"] == "f" else event,
    "no calls": lambda event: None if "AscendCL" in event["name"] or "Node@" in event["name"] else event,
    "odd arguments": lambda event: event | {"args": {key: [value] for key, value in event.get("args", {}).items()}},
    "large numbers": lambda event: event | {"args": {"connection_id": 2**63 - 1, "correlation_id": -(2**63)}},
    "odd processes": lambda event: event | {"pid": str(event["pid"])},
    "odd shapes": lambda event: event | {"args": {"Input Dims": "a,;\r\n9" * 9, "Input type": ";;"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_affects_only_damaged_events(tmp_path, kineto, damage):
    events = [event for event in map(DAMAGES[damage], npu_twins.by_torch_npu(kineto)) if event is not None]
    found = window(tmp_path / "t.json", events)
    for name, table in vars(Tables).items():
        if isinstance(table, property):
            getattr(found, name)
    for name in show.TABLES:
        show.compute(found.trace, name)
    assert found.steps["step"].to_list() == [4, 5, 6]


@pytest.fixture(params=["file", "memory", "http"])
def url(request, folder, monkeypatch, tmp_path):
    """The URL of the folder of both processes, with files of the profiler that nobody needs."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    mirror._base.cache_clear()
    written(min(folder.iterdir()) / "PROF_000" / "host.json", [])
    if request.param == "file":
        yield folder.as_uri()
    elif request.param == "memory":
        system = fsspec.filesystem("memory")
        system.put(str(folder), "/result", recursive=True)
        yield "memory://result"
        system.rm("/result", recursive=True)
    else:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder.parent))
        monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield f"http://127.0.0.1:{server.server_address[1]}/result"
            server.shutdown()
            thread.join()


@pytest.mark.slow
@pytest.mark.process
def test_every_command_accepts_a_url_of_a_trace_and_of_folders(url, folder, tmp_path, perfhooks):
    """As it accepts the same folder on this machine."""
    trace_file, process, whole = ([f"{url}/{path.relative_to(folder)}" for path in targets(folder)[:2]] + [url])[:3]
    for target, ranks in (
        (trace_file, [1]),
        (process, [1]),
        (f"{process}/ASCEND_PROFILER_OUTPUT", [1]),
        (whole, [0, 1]),
    ):
        rows = perfhooks("show", target, "-t", "steps").splitlines()
        column = rows[0].split(",").index("rank")
        assert {int(row.split(",")[column]) for row in rows[1:]} == set(ranks), target
        assert "| device busy |" in perfhooks("show", target, "--format", "markdown")
        perfhooks("report", target, "-o", tmp_path / "report.html")
        assert "hcom_allReduce" in (tmp_path / "report.html").read_text()
        named = f"rank{'s 0-1' if len(ranks) == 2 else ' 1'}"
        assert named in perfhooks("merge", target, "-o", tmp_path / "merged.json"), target
        assert "the profiled steps (3 and 3 steps" in perfhooks("compare", target, process)
    assert not list((tmp_path / "tmp").rglob("host.json"))
