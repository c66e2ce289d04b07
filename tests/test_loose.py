"""A folder of traces that others recorded is a run: the same folders and names serve show, report and merge."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
import threading

import pytest

from perfhooks import testing
from perfhooks.cli import app
from perfhooks.cli.actions import show
from perfhooks.report.finishing.adoption import adopted
from perfhooks.run import loose
from perfhooks.testing import kernel, launch, op, step_mark

MS = 1_000_000
STEPS, RANKS, SLOW = 6, 4, 2
BUCKET = {"Collective_name": "allreduce", "dtype": "Float", "In_msg_nelems": 1000, "Out_msg_nelems": 1000}


def of_rank(rank):
    """Steps of 100 ms; one rank computes for 80 of them, the others for 40, and wait for it in an all-reduce."""
    events = []
    for step in range(STEPS):
        at, number = step * 100 * MS, 10 * step + 1
        computes = 80 * MS if rank == SLOW else 40 * MS
        events += [step_mark(step, at, at + 100 * MS), op("aten::mm", at, at + MS)]
        events += [launch(number, at, at + MS // 10), kernel(number, at + MS, at + MS + computes)]
        events += [launch(number + 1, at + MS, at + 2 * MS), op("c10d::allreduce_", at + MS, at + 2 * MS)]
        comm = kernel(number + 1, at + 2 * MS + computes, at + 90 * MS, name="ncclDevKernel_AllReduce", **BUCKET)
        comm["args"] |= {"Process Group Name": "0", "Group size": RANKS}
        events.append(comm)
    return events


NAMES = {
    "inside": ("{}.json", True),
    "inside, packed": ("host_{}.pt.trace.json.gz", True),
    "in the name": ("rank-{}.json", False),
    "in a longer name": ("inference_rank_{}.json.gz", False),
    "SGLang's": ("1700000000.1-TP-{}.trace.json.gz", False),
}


def folder_of(path, name, *, inside, ranks=range(RANKS)):
    path.mkdir()
    for rank in ranks:
        info = {"distributedInfo": {"rank": rank, "world_size": RANKS, "backend": "nccl"}} if inside else {}
        testing.write_trace(path / name.format(rank), of_rank(rank), **info)
    (path / "notes.json").write_text('{"traces": 7}', encoding="utf-8")
    return path


@pytest.fixture(params=NAMES)
def folder(request, tmp_path):
    name, inside = NAMES[request.param]
    return folder_of(tmp_path / "traces", name, inside=inside)


@pytest.fixture
def one_kind(tmp_path):
    return folder_of(tmp_path / "dlrm", "rank-{}.json", inside=False)


def test_rank_is_read_from_the_trace_or_its_name(folder):
    assert sorted(each.rank for each in loose.traces(folder)) == list(range(RANKS))


def test_the_trace_knows_its_rank_better_than_its_name(tmp_path):
    testing.write_trace(tmp_path / "rank-0.json", of_rank(3), distributedInfo={"rank": 3})
    assert [each.rank for each in loose.traces(tmp_path)] == [3]


@pytest.mark.parametrize("rank", [-1, 10**6, "3", True])
def test_invalid_ranks_are_ignored(tmp_path, rank):
    testing.write_trace(tmp_path / "rank-2.json", of_rank(2), distributedInfo={"rank": rank})
    assert [each.rank for each in loose.traces(tmp_path)] == [2]


@pytest.mark.parametrize("name", ["frank1.json", "trace.json", "http-3.json"])
def test_name_without_a_rank_has_none(tmp_path, name):
    testing.write_trace(tmp_path / name, of_rank(0))
    assert [each.rank for each in loose.traces(tmp_path)] == [None]


def test_windows_contain_one_trace_per_rank(tmp_path):
    for name in ("a-rank0.json", "a-rank1.json", "b-rank0.json", "b-rank1.json", "alone.json"):
        testing.write_trace(tmp_path / name, of_rank(0))
    groups = [[each.name for each in group] for group in loose.windows(loose.traces(tmp_path))]
    assert groups == [["a-rank0.json", "a-rank1.json"], ["b-rank0.json", "b-rank1.json"], ["alone.json"]]


@pytest.fixture
def call(monkeypatch, capfdbinary):
    """Runs the command line in this process: exit code, standard output, standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["perfhooks", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            app.main()
        out, err = capfdbinary.readouterr()
        return ended.value.code or 0, out.decode(), err.decode()

    return run


def test_all_ranks_are_shown(call, folder):
    code, text, errors = call("show", folder, "--csv", "-t", "steps")
    assert (code, errors) == (0, "")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(int(row["rank"]), int(row["step"])) for row in rows] == [
        (rank, step) for rank in range(RANKS) for step in range(STEPS)
    ]


@pytest.mark.slow
def test_report_of_a_folder_names_the_straggler(call, one_kind):
    code, text, errors = call("report", one_kind)
    assert (code, errors) == (0, "")
    assert f"Rank {SLOW} computes longer: the other ranks wait 40 ms in a step for this rank." in text
    assert "dlrm" in (one_kind / "report.html").read_text(encoding="utf-8")
    assert not list(one_kind.glob("rank*.csv")), "nothing but the page is left there"


@pytest.mark.slow
def test_the_traces_of_the_folder_are_merged(call, one_kind):
    code, text, errors = call("merge", one_kind)
    assert (code, errors) == (0, "")
    assert "ranks 0-3, clocks aligned" in text
    merged = json.loads(gzip.decompress((one_kind / "merged.pt.trace.json.gz").read_bytes()))
    names = {each["args"]["name"] for each in merged["traceEvents"] if each["name"] == "process_name"}
    assert {f"rank {rank}" for rank in range(RANKS)} <= {name[:6] for name in names}
    assert len(loose.traces(one_kind)) == RANKS, "the merged one is none of them"


@pytest.mark.slow
def test_unreadable_trace_does_not_affect_other_traces(call, one_kind):
    (one_kind / "rank-9.json").write_text('{"traceEvents": [nothing', encoding="utf-8")
    code, text, errors = call("report", one_kind)
    assert code == 1
    assert "rank-9.json" in errors
    assert f"Rank {SLOW} computes longer" in text


def test_unreadable_traces_are_listed_with_reasons(call, tmp_path):
    """And not that there is none."""
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text('{"traceEvents": [nothing', encoding="utf-8")
    code, _, errors = call("report", tmp_path)
    assert code == 2
    assert "a.json" in errors
    assert "b.json" in errors
    assert "has no trace" not in errors


@pytest.mark.parametrize("verb", ["show", "report", "merge"])
def test_folder_without_traces_is_rejected_in_one_line(call, tmp_path, verb):
    (tmp_path / "notes.json").write_text("{}", encoding="utf-8")
    code, text, errors = call(verb, tmp_path)
    assert (code, text) == (2, "")
    assert "traceEvents" in errors


@pytest.mark.slow
def test_ranks_of_one_job_without_a_run_have_a_report(call, traces, tmp_path):
    for rank in (0, 1):
        (tmp_path / f"t{rank}.json.gz").symlink_to(traces / f"sampled-128ranks-rank{rank}.json.gz")
    code, text, _ = call("report", tmp_path, "-o", "-")
    assert code == 0
    assert '"wait_ms"' in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x1f\x8bno archive", "archive is damaged"),
        (b"", "is empty"),
        (b"\0\0", "is no JSON"),
        (b"[[[[", "no list of traceEvents"),
        (b"{}", "no list of traceEvents"),
    ],
)
def test_damaged_file_of_a_folder_is_named(tmp_path, content, reason):
    folder_of(tmp_path / "folder", "rank-{}.json", inside=True)
    (tmp_path / "folder" / "rank-9.pt.trace.json.gz").write_bytes(content)
    with adopted(tmp_path / "folder") as run:
        (problem,) = run.problems
    assert "rank-9.pt.trace.json.gz" in problem
    assert reason in problem


def test_pipe_is_a_trace(tmp_path):
    testing.write_trace(tmp_path / "trace.json", of_rank(0))
    os.mkfifo(tmp_path / "pipe")
    content = (tmp_path / "trace.json").read_bytes()
    threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,), daemon=True).start()
    assert show.tables(str(tmp_path / "pipe"), ["steps"])["steps"].height == STEPS
