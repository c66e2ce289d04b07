"""One trace of all ranks: nobody's events lost or mixed, clocks together, whole blocks at a time."""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import msgspec
import pytest
import twins
from hypothesis import given
from hypothesis import strategies as st
from many_ranks import ManyRanks
from typer.testing import CliRunner

import perfhooks.trace
from perfhooks.analysis.ranks.merge import _DECODE, _shift_time, merge, rank_set
from perfhooks.cli.actions import merge as merging
from perfhooks.cli.app import app, main
from perfhooks.core.errors import OptionError, PerfhooksError, TraceError
from perfhooks.testing import PID, flow, kernel, launch, op, slice_event, step_mark, write_trace
from perfhooks.trace.tables import operators, steps
from perfhooks.trace.writing.raw_events import RawEvents

WINDOW = "train-000010-000012"


def meta(kind, pid, value, tid=0):
    key = {"process_name": "name", "thread_name": "name", "process_labels": "labels"}.get(kind, "sort_index")
    return {"ph": "M", "name": kind, "ts": 1.5, "pid": pid, "tid": tid, "args": {key: value}}


def events(rank):
    """A trace as Kineto writes it: host, a device, its own marks, links, and the names of all of them."""
    forward, backward = op("linear", 10, 20), op("autograd::engine::evaluate_function: X", 40, 50)
    return [
        meta("process_name", PID, "python3"),
        meta("process_labels", PID, "CPU"),
        meta("process_sort_index", PID, PID),
        *(meta("process_labels", device, f"GPU {device}") for device in (0, 1)),
        meta("process_sort_index", 0, 1 << 24),
        meta("thread_name", PID, "thread 100 (python)", tid=PID),
        meta("thread_name", 1, "stream 7", tid=7),
        step_mark(rank, 0, 100),
        *(forward, backward, *flow(1, forward, backward)),
        launch(1, 12, 15),
        kernel(1, 30, 60, name='odd "}, {" name'),
        slice_event("Trace", "PyTorch Profiler (0)", 0, 100, pid="Spans", tid="PyTorch Profiler"),
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 0.1},
    ]


@pytest.fixture
def run(tmp_path):
    """A run of three ranks; the clock of rank 1 is 2 ms ahead, and rank 2 counts from another base."""
    folder = ManyRanks(ranks=3, node=3, windows=1, clock_ms={1: 2.0}).write(tmp_path / "run")
    base = 1_790_857_026 * 10**9
    for rank in range(3):
        moved = [dict(event) for event in events(rank)]
        for event in moved:
            event["ts"] = round(event["ts"] + (2000 if rank == 1 else 0) - (5 if rank == 2 else 0) + 1000, 3)
        name = f"rank{rank}.pt.trace.json" + (".gz" if rank else "")
        info = {"backend": "nccl", "rank": rank, "world_size": 3}
        write_trace(
            folder / WINDOW / name,
            moved,
            baseTimeNanoseconds=base + (5000 if rank == 2 else 0),
            distributedInfo=info,
        )
    return folder


def merged(result):
    opener = gzip.open if result.path.suffix == ".gz" else open
    with opener(result.path, "rt") as file:
        return json.load(file)


def test_ranks_are_shown_with_their_names(run):
    result = merge(run)
    assert result.path == run / WINDOW / "merged.pt.trace.json.gz"
    assert (result.ranks, result.aligned, result.problems) == ((0, 1, 2), True, ())
    found = merged(result)["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in found if event["name"] == "process_name"}
    wanted = [f"rank {rank}{what}" for rank in range(3) for what in ("", " GPU 0", " marks", " Spans")]
    assert sorted(names.values()) == sorted(wanted), "and no device that did nothing"
    assert {event["pid"] for event in found} == set(names)
    order = {event["pid"]: event["args"]["sort_index"] for event in found if event["name"] == "process_sort_index"}
    sort = [names[pid] for pid in sorted(names, key=order.get)]
    assert [name for name in sort if name.endswith(("0", "1", "2"))] == [
        name for rank in range(3) for name in (f"rank {rank}", f"rank {rank} GPU 0")
    ]
    assert 0 not in names, "a viewer takes process 0 for something else"
    threads = [event["args"]["name"] for event in found if event["name"] == "thread_name"]
    assert threads == ["thread 100 (python)"] * 3


def test_no_event_is_lost_or_changed_but_for_its_place_and_time(run):
    found = [event for event in merged(merge(run))["traceEvents"] if event["ph"] != "M"]
    for rank in range(3):
        given_here = [event for event in events(rank) if event["ph"] != "M"]
        mine = [event for event in found if event["pid"] // 1000 == rank + 1]
        assert [event["name"] for event in mine] == [event["name"] for event in given_here]
        for event, wanted in zip(mine, given_here, strict=True):
            changed = {"pid", "ts", "id"}
            assert {k: v for k, v in event.items() if k not in changed} == {
                k: v for k, v in wanted.items() if k not in changed
            }


def test_clocks_and_time_bases_are_aligned(run):
    """To the nanosecond: rank 1's clock is 2 ms ahead, and rank 2 counts from 5 us later."""
    found = merged(merge(run))
    starts = {event["args"]["Ev"] if "Ev" in event.get("args", {}) else event["name"]: event["ts"]
              for event in found["traceEvents"] if event["name"].startswith("ProfilerStep#")}  # fmt: skip
    assert starts == {f"ProfilerStep#{rank}": pytest.approx(1000.0, abs=1e-4) for rank in range(3)}
    assert found["perfhooks"]["clock_offset_ms"]["1"] == pytest.approx(-2, abs=1e-6)
    assert found["distributedInfo"] == {"backend": "nccl", "world_size": 3}


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ('{"traceEvents": []}', 0),
        ('{"deviceProperties": nan, "traceEvents": []}', 0),
        ("{}", 1),
        ('{"traceEvents": [{"ph": ', 1),
    ],
)
def test_traces_without_readable_events_give_an_empty_trace(run, text, problems):
    (run / WINDOW / "rank0.pt.trace.json").write_text(text)
    result = merge(run, ranks=[0])
    assert merged(result)["traceEvents"] == []
    assert len(result.problems) == problems


def test_links_of_different_ranks_stay_separate(run):
    found = merged(merge(run))["traceEvents"]
    ids = [(event["ph"], event["id"]) for event in found if event["ph"] in ("s", "f")]
    assert len(set(ids)) == 6
    assert {one for phase, one in ids if phase == "s"} == {one for phase, one in ids if phase == "f"}


def test_merged_trace_is_read_as_one_rank(run):
    with pytest.raises(TraceError, match="several processes"):
        perfhooks.trace.read(merge(run).path)
    trace = perfhooks.trace.read(merge(run, ranks=[1]).path)
    assert trace.doubts == []
    assert (len(trace), len(trace.flows.time)) == (6, 1)
    assert steps.table(trace)["step"].to_list() == [1]
    assert operators.table(trace).height > 0


PLUGIN = """
import sys
from torch_tb_profiler.io.cache import Cache
from torch_tb_profiler.profiler.data import RunProfileData
print(len(RunProfileData.parse("worker", "0", sys.argv[1], Cache()).events))
"""


@pytest.mark.process
def test_merged_traces_open_in_the_plugin_of_tensorboard(traces, tmp_path):
    run = ManyRanks(ranks=2, node=2, windows=1).write(tmp_path / "run")
    for rank in range(2):
        source = traces / "a100-ddp2-train.json.gz"
        (run / WINDOW / f"rank{rank}.pt.trace.json.gz").write_bytes(source.read_bytes())
    path = merge(run).path
    one = perfhooks.trace.read(source)
    command = [sys.executable, "-W", "ignore", "-c", PLUGIN, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > len(one)


def test_ranks_can_be_chosen_and_the_file_named(run, tmp_path):
    result = merge(run / WINDOW, tmp_path / "two.json", ranks=rank_set("0,2"))
    assert result.path == tmp_path / "two.json"
    assert result.ranks == (0, 2)
    assert "ranks 0, 2" in str(result)
    assert len({event["pid"] // 1000 for event in merged(result)["traceEvents"]}) == 2


def test_latest_window_of_a_run_is_merged(run):
    late = run / "train-000110-000112"
    late.mkdir()
    for path in (run / WINDOW).glob("rank0.*"):
        (late / path.name).write_bytes(path.read_bytes())
    facts = json.loads((late / "rank0.capture.json").read_text())
    (late / "rank0.capture.json").write_text(json.dumps(facts | {"time": facts["time"] + 60}))
    assert merge(run).path.parent == late


def test_broken_trace_affects_only_its_rank(run):
    path = run / WINDOW / "rank1.pt.trace.json.gz"
    path.write_bytes(path.read_bytes()[:-40])
    (run / WINDOW / "rank0.pt.trace.json").write_text('{"no": "events"}')
    result = merge(run)
    assert [problem.split(" is")[0] for problem in result.problems] == ["rank 0", "rank 1"]
    assert {event["pid"] // 1000 for event in merged(result)["traceEvents"]} >= {3}


def test_without_collectives_ranks_keep_their_clocks(run):
    for path in (run / WINDOW).glob("*.collectives.csv"):
        path.unlink()
    result = merge(run)
    assert not result.aligned
    assert "clock of each rank's host" in str(result)


@pytest.mark.parametrize("what", ["nothing", "window"])
def test_missing_traces_are_reported(tmp_path, what):
    run = ManyRanks(ranks=2).write(tmp_path / "run")
    target = run / WINDOW if what == "window" else run
    with pytest.raises(PerfhooksError, match=r"has no (trace|window)"):
        merge(target)
    with pytest.raises(PerfhooksError, match="no folder"):
        merge(tmp_path / "else")


def test_events_are_split_at_their_ends(tmp_path, monkeypatch):
    """Blocks of a few bytes: cuts fall into names, lists and objects that look like the end of an event."""
    monkeypatch.setattr("perfhooks.trace.writing.raw_events.BLOCK", 400)
    monkeypatch.setattr("perfhooks.trace.reading.source._PACKED_BLOCK", 50)
    draw = random.Random(7)
    odd = ["}, {", '"', "\\", "}]}", ', "traceEvents": [', "ü"]
    wanted = [
        {"ph": "X", "name": "".join(draw.choices(odd, k=3)), "pid": 1, "tid": 1, "ts": n / 8, "dur": 1,
         "args": {"list": [{"a": n}, {"b": [n, {"c": "}, {"}]}]}}
        for n in range(200)
    ]  # fmt: skip
    found = []
    path = write_trace(tmp_path / "t.json", wanted)
    for events_of_block in RawEvents(path, _DECODE).lists():
        found += [
            json.loads(json.dumps({k: json.loads(bytes(v)) for k, v in each.items()})) for each in events_of_block
        ]
    assert found == wanted


@given(st.integers(0, 8 * 10**15), st.integers(-(10**10), 10**10))
def test_times_are_moved_to_the_nanosecond(nanos, shift):
    text = f"{nanos // 1000}.{nanos % 1000:03d}".encode()
    whole, _, rest = _shift_time(text, shift).decode().lstrip("-").partition(".")
    assert int(whole) * 1000 + int(rest) == abs(nanos + shift)
    assert _shift_time(text, shift).startswith(b"-") == (nanos + shift < 0)


@pytest.mark.parametrize("text", ["12", "12.5", "12.500", "1.25e1", '"12.5"', "12.50000"])
def test_times_are_read_in_all_number_formats(text):
    assert _shift_time(text.encode(), 1000) in (b"13.000", b"13.500")


def test_ranks_are_written_as_numbers_and_ranges():
    assert rank_set("0,4-6, 9") == {0, 4, 5, 6, 9}
    for wrong in ("", "a", "1-", "-1", "1,,2"):
        with pytest.raises(OptionError, match="like 0,4-7"):
            rank_set(wrong)


def perfhooks_merge(*arguments):
    return CliRunner().invoke(app, ["merge", *map(str, arguments)])


def test_verb_prints_the_written_file(run, tmp_path):
    done = perfhooks_merge(run, "-o", tmp_path / "m.json.gz", "--ranks", "0-1")
    assert (done.exit_code, done.stdout) == (0, done.output), "nothing on stderr"
    assert re.search(r"m\.json\.gz \(\S+ \S+\): ranks 0-1, clocks aligned to", done.stdout)
    assert (tmp_path / "m.json.gz").exists()


def test_verb_rejects_bad_input_in_one_line(run, tmp_path, monkeypatch, capsys):
    for arguments in ((tmp_path / "none",), (run, "--ranks", "x"), (run, "-o", tmp_path / "no" / "where.json")):
        monkeypatch.setattr(sys, "argv", ["perfhooks", "merge", *map(str, arguments)])
        with pytest.raises(SystemExit, match="2"):
            main()
        errors = capsys.readouterr().err
        assert errors.startswith("perfhooks: ")
        assert errors.count("\n") == 1


@pytest.mark.process
def test_memory_does_not_grow_with_the_traces(tmp_path):
    run = ManyRanks(ranks=2, windows=1, node=2).write(tmp_path / "run")
    many = [op(f"aten::op{number % 50}", number * 10, number * 10 + 5, external=number) for number in range(100_000)]
    path = write_trace(run / WINDOW / "rank0.pt.trace.json.gz", many)
    (run / WINDOW / "rank1.pt.trace.json.gz").write_bytes(path.read_bytes())
    script = (
        "import sys; from pathlib import Path; from perfhooks.analysis.ranks.merge import merge\n"
        # the largest size that getrusage gives is that of the process which started this one
        "used = lambda: int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]) >> 10\n"
        "import polars; before = used(); merge(Path(sys.argv[1])); print(used() - before)"
    )
    done = subprocess.run([sys.executable, "-c", script, run], capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) < 100, "all events together need 166 MiB"


@pytest.mark.parametrize(("name", "what"), [("t.json", "is a file"), ("nothing", "there is no folder")])
def test_invalid_target_names_the_accepted_targets(tmp_path, name, what):
    (tmp_path / "t.json").write_text('{"traceEvents": []}')
    with pytest.raises(PerfhooksError, match=rf"{what}.*: pass a run, one of its windows, or a folder of traces"):
        merge(tmp_path / name)


def test_progress_is_reported(run):
    heard = []
    merge(run, tell=lambda done, total: heard.append((done, total)))
    assert heard == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize("times", [[(0, 440), (400, 840), (800, 1240)], [(0, 900), (100, 300), (200, 950)]])
def test_overlapping_work_of_a_stream_gets_lanes(tmp_path, times):
    """Programmatic dependent launch: viewers drop slices that cross others on their lane."""
    window = ManyRanks(ranks=2, node=2, windows=1).write(tmp_path / "run") / WINDOW
    for rank in range(2):
        work = [kernel(number, *time) for number, time in enumerate(times, 1)]
        ends = [{"ph": "f", "id": number, "cat": "ac2g", "name": "ac2g", "bp": "e", "pid": 0, "tid": 7,
                 "ts": start / 1000} for number, (start, _) in enumerate(times, 1)]  # fmt: skip
        write_trace(window / f"rank{rank}.pt.trace.json", [step_mark(0, 0, 2000), *work, *ends])
    found = merged(merge(window, tmp_path / "m.json"))["traceEvents"]
    lanes = {}
    for event in found:
        if event.get("cat") == "kernel":
            lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(lanes) > 2
    for slices in map(sorted, lanes.values()):
        assert all(before[1] <= after[0] for before, after in pairwise(slices))
    ends = {(event["pid"], event["tid"], event["ts"]) for event in found if event["ph"] == "f"}
    assert ends == {(*place, start) for place, slices in lanes.items() for start, _ in slices}


# --- owners of names, as a viewer reads them ---


def owners(content):
    """Read a trace plainly: each process with its names, its events, and the names of its lanes."""
    events = content if isinstance(content, list) else content["traceEvents"]
    found = {}
    for event in events:
        process = found.setdefault(str(event.get("pid")), {"events": Counter(), "lanes": {}})
        if event["ph"] == "M" and event["name"].startswith("process_"):
            process[event["name"]] = next(iter(event["args"].values()))
        elif event["ph"] == "M" and event["name"].startswith("thread_"):
            process["lanes"][event["name"], str(event["tid"])] = next(iter(event["args"].values()))
        else:
            process["events"][event["ph"], event["name"]] += 1
    return {pid: process for pid, process in found.items() if process["events"]}


def of_chrome(rank):
    """A trace of begins and ends, of two processes that have names only, and metadata that name nothing."""
    pair = [
        {"ph": phase, "name": "aten::mm", "cat": "cpu_op", "pid": 7, "tid": 1, "ts": at}
        for phase, at in (("B", 1), ("E", 9))
    ]
    other = {"ph": "X", "name": "gemm", "cat": "kernel", "pid": "8", "tid": "stream", "ts": 3, "dur": 2}
    names = [
        meta("process_name", 7, "trainer"),
        meta("process_name", "8", "device"),
        meta("thread_name", "8", "fast", tid="stream"),
    ]
    more = {"ph": "M", "name": "trace_config", "pid": 7, "tid": 0, "args": {"name": "not a process"}}
    return {"traceEvents": [*names, *pair, other, more], "distributedInfo": {"rank": rank}}


DIALECTS = ["kineto", "chrome", *(name for name, dialect in twins.DIALECTS.items() if not dialect.is_next)]


def file_of(dialect, rank):
    if dialect == "kineto":
        return {"traceEvents": events(rank), "distributedInfo": {"rank": rank}}
    return of_chrome(rank) if dialect == "chrome" else twins.Machine(twins.DIALECTS[dialect]).whole()


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
def test_processes_and_lanes_keep_names_and_ranks(dialect, tmp_path):
    encode = msgspec.json.Encoder(decimal_format="number").encode
    given_files = {}
    for rank in (0, 1):
        content = json.loads(encode(file_of(dialect, rank)))
        if isinstance(content, dict):
            content["distributedInfo"] = {"rank": rank}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(content))
        given_files[rank] = owners(content)
    done = perfhooks_merge(tmp_path, "-o", tmp_path / "merged.json")
    assert done.exit_code == 0, done.output
    found = owners(json.loads((tmp_path / "merged.json").read_text()))
    ordered = sorted(found.values(), key=lambda process: process["process_sort_index"])
    ranks = [re.match(r"rank (\d)\b", process["process_name"])[1] for process in ordered]
    assert ranks == sorted(ranks), "the processes of a rank are one group"
    assert len({process["process_name"] for process in ordered}) == len(ordered)
    for rank, processes in given_files.items():
        mine = [process for process in ordered if process["process_name"].startswith(f"rank {rank}")]
        assert len(mine) == len(processes)
        for process in processes.values():
            alike = [
                other for other in mine
                if other["events"] == process["events"] and process["lanes"].items() <= other["lanes"].items()
            ]  # fmt: skip
            assert alike
            named = " ".join(f"{other['process_name']} {other.get('process_labels', '')}" for other in alike)
            assert str(process.get("process_name", "")) in named
    with pytest.raises(TraceError, match="contains several processes; perfhooks reads one process at a time"):
        perfhooks.trace.read(tmp_path / "merged.json")


@pytest.mark.slow
def test_traces_without_a_rank_are_not_merged_silently(tmp_path):
    """Beside those of ranks each is named; alone they are refused."""
    for name in ("a.json", "b.json"):
        write_trace(tmp_path / name, events(0))
    with pytest.raises(PerfhooksError, match=r"have no ranks: name them rank0\.json"):
        merging.merge(str(tmp_path), None, None)
    for rank in (0, 1):
        write_trace(tmp_path / f"rank{rank}.json", events(rank), distributedInfo={"rank": rank})
    done = perfhooks_merge(tmp_path)
    assert done.exit_code == 1
    assert "a.json has no rank, so it is not in the merged trace" in done.output
    assert "ranks 0-1" in done.output
