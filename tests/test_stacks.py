from __future__ import annotations

import io
import json
import subprocess
import sys
import time

import pytest
import torch
import warm
from hypothesis import given
from hypothesis import strategies as st

import perfhooks
from perfhooks import Capture, OptionError, Stacks, testing
from perfhooks.record.watch import watcher
from perfhooks.record.watch.sampling import outwards
from perfhooks.trace import Kind, read
from perfhooks.trace.kinds import HOST
from perfhooks.trace.nesting import intervals
from perfhooks.trace.tables import stacks

SCRIPT = """
import sys
import numpy as np
import torch

def search(table):
    return np.argwhere(table > 1.5)

def main():
    table = np.random.default_rng(0).standard_normal((800, 800))
    with torch.profiler.profile(with_stack=True) as prof:
        for _ in range(3):
            search(table)
            torch.ones(8).sum()
    prof.export_chrome_trace(sys.argv[1])

main()
"""


def host_time(trace):
    """The union of each host thread's slices, in nanoseconds, the obvious way."""
    rows = trace.rows(*HOST)
    total = 0
    for thread in set(trace.thread[rows].tolist()):
        mine = rows[trace.thread[rows] == thread]
        total += intervals.total(intervals.union(trace.start[mine], trace.end[mine]))
    return total


@pytest.fixture(scope="module")
def argwhere(channel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stacks")
    (folder / "search.py").write_text(SCRIPT)
    done = warm.run(channel, folder / "search.py", folder / "t.json", timeout=300)
    assert done.returncode == 0, done.stderr
    return read(folder / "t.json")


@pytest.mark.process
def test_a_slow_call_of_numpy_is_in_the_stacks(argwhere):
    """What somebody opens a flame graph for: who calls argwhere, and what it costs."""
    found = stacks.folded(argwhere)
    mine = [stack for stack in found if "argwhere" in stack]
    assert mine
    frames = next(stack for stack in mine if "search" in stack).split(";")
    order = [
        next(place for place, frame in enumerate(frames) if name in frame)
        for name in (": main", ": search", "argwhere")
    ]
    assert order == sorted(order)
    assert any(stack.endswith("aten::sum") and ": main" in stack for stack in found)


@pytest.mark.process
def test_uninteresting_frames_are_dropped_and_their_time_is_not(argwhere):
    everything, interesting = stacks.folded(argwhere, skip=None), stacks.folded(argwhere)
    assert any("torch/profiler" in stack for stack in everything)
    assert not any("torch/profiler" in stack for stack in interesting)
    assert sum(everything.values()) == sum(interesting.values()) == host_time(argwhere)


def test_names_cannot_break_the_format(tmp_path):
    events = [testing.op("a;b\nc 1", 0, 5), testing.op(" ", 10, 11)]
    found = stacks.folded(read(testing.write_trace(tmp_path / "t.json", events)))
    file = io.BytesIO()
    stacks.write(found, file)
    assert file.getvalue() == b"a:b c 1 5\n? 1\n"


def speedscope(found, **options):
    file = io.BytesIO()
    stacks.write_speedscope(found, file, name="rank 0", **options)
    return json.loads(file.getvalue())


def check_speedscope(document):
    """What speedscope's own schema and its reader of sampled profiles ask for."""
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    assert all(isinstance(frame["name"], str) and set(frame) <= {"name", "file", "line", "col"} for frame in frames)
    assert 0 <= document["activeProfileIndex"] < len(document["profiles"])
    for profile in document["profiles"]:
        assert set(profile) == {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}
        assert profile["type"] == "sampled"
        assert profile["unit"] in {"none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"}
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
        assert all(0 <= frame < len(frames) for sample in profile["samples"] for frame in sample)


@pytest.mark.process
def test_speedscope_gets_the_same_stacks(argwhere):
    found = stacks.folded(argwhere)
    document = speedscope(found)
    check_speedscope(document)
    (profile,) = document["profiles"]
    names = [frame["name"] for frame in document["shared"]["frames"]]
    texts = [";".join(names[frame] for frame in sample) for sample in profile["samples"]]
    assert dict(zip(texts, profile["weights"], strict=True)) == found
    assert len(set(names)) == len(names)


def test_speedscope_gets_file_and_line():
    document = speedscope({"a/b.py(12): f;<built-in function g>;odd(99999999999999999999): h": 5}, unit="bytes")
    check_speedscope(document)
    assert document["profiles"][0]["unit"] == "bytes"
    assert document["shared"]["frames"] == [
        {"name": "a/b.py(12): f", "file": "a/b.py", "line": 12},
        {"name": "<built-in function g>"},
        {"name": "odd(99999999999999999999): h"},
    ]


def test_speedscope_opens_a_profile_without_stacks():
    check_speedscope(speedscope({}))


@pytest.mark.parametrize(("by", "unit"), [("host", "nanoseconds"), ("device", "nanoseconds"), ("bytes", "bytes")])
def test_the_handler_writes_speedscope_on_request(by, unit, tmp_path):
    trace = read(testing.write_trace(tmp_path / "t.json", [testing.op("aten::mm", 0, 5), testing.memory(3, 64)]))
    ((name, write),) = Stacks(by=by, format="speedscope").artifacts(Capture(first=7), trace)
    assert name == ("stacks.speedscope.json" if by == "host" else f"stacks.{by}.speedscope.json")
    file = io.BytesIO()
    write(file)
    document = json.loads(file.getvalue())
    check_speedscope(document)
    assert document["profiles"][0]["unit"] == unit
    assert document["name"] == f"train from step 7, rank 0: {by}"


def test_unknown_format_is_rejected():
    with pytest.raises(OptionError, match="format must be 'folded' or 'speedscope', got 'svg'"):
        Stacks(format="svg")


def test_innermost_frames_stay(tmp_path):
    events = [testing.python_frame(f"a.py({line}): f", line, 100 - line) for line in range(1, 5)]
    events += [testing.op("aten::mm", 10, 20), testing.launch(1, 11, 12), testing.kernel(1, 500, 600)]
    events += [testing.op("aten::mm", 200, 210)]
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    for depth, expected in (
        (1, "a.py(4): f"),
        (2, "a.py(3): f;a.py(4): f"),
        (9, ";".join(f"a.py({n}): f" for n in range(1, 5))),
    ):
        texts, place = stacks.by_depth(trace, depth)
        named = trace.named(Kind.OP, names=["aten::mm"]).tolist()
        inside, outside = (place[row] for row in named)
        assert texts[inside] == texts[place[trace.device_rows[0]]] == expected
        assert outside == -1


names = st.sampled_from(["aten::mm", "a.py(1): f", "runpy.py(1): run", "x;y"])
kinds = st.sampled_from(["cpu_op", "python_function", "user_annotation", "cuda_runtime"])
spans = st.lists(
    st.tuples(kinds, names, st.integers(0, 60), st.integers(0, 20), st.integers(1, 3)), min_size=1, max_size=30
)


@pytest.mark.slow
@given(spans)
def test_no_host_time_is_lost(tmp_path_factory, rows):
    events = [testing.slice_event(kind, name, start, start + span, tid=tid) for kind, name, start, span, tid in rows]
    trace = read(testing.write_trace(tmp_path_factory.mktemp("fuzz") / "t.json", events))
    for skip in (None, stacks.UNINTERESTING, "."):
        assert sum(stacks.folded(trace, skip=skip).values()) == host_time(trace)


@pytest.mark.process
def test_stacks_need_no_torch_and_no_polars():
    code = "import sys, perfhooks.trace, perfhooks.trace.tables.stacks; print({'torch', 'polars'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300).stdout
        == "set()\n"
    )


def wait_for_watcher():
    """Beside other threads, the profiler starts it later, and a busy machine may not have run it."""
    until = time.monotonic() + 300
    while not any(
        frame.f_code.co_filename == watcher.__file__
        for frame in outwards(sys._current_frames().get(getattr(watcher._watcher._thread, "ident", None)))
    ):
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.mark.recorder
def test_no_thread_of_perfhooks_is_in_the_stacks_of_a_run(tmp_path):
    """The watcher waits as long as a window takes, so a window would count twice."""
    schedule = "wait=1 warmup=1 active=3 repeat=1"
    with perfhooks.Profiler(schedule=schedule, with_stack=True, out=tmp_path, run="r", background=False) as prof:
        wait_for_watcher()
        for _ in prof.steps(range(8)):
            torch.ones(64, 64) @ torch.ones(64, 64)
    (path,) = tmp_path.glob("r/*/*.pt.trace.json.gz")
    trace = read(path)
    assert any("watcher.py" in name for name in trace.names)
    assert not any("watcher.py" in stack for stack in stacks.folded(trace, skip=None))
