from __future__ import annotations

import io
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks import testing
from perfhooks.trace import intervals, read, stacks
from perfhooks.trace.kinds import HOST

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
def argwhere(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stacks")
    (folder / "search.py").write_text(SCRIPT)
    subprocess.run([sys.executable, folder / "search.py", folder / "t.json"], check=True, capture_output=True)
    return read(folder / "t.json")


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


def test_uninteresting_frames_are_dropped_and_their_time_is_not(argwhere):
    everything, interesting = stacks.folded(argwhere, skip=None), stacks.folded(argwhere)
    assert any("torch/profiler" in stack for stack in everything)
    assert not any("torch/profiler" in stack for stack in interesting)
    assert sum(everything.values()) == sum(interesting.values()) == host_time(argwhere)


def test_recursion_is_kept(tmp_path):
    frames = [testing.python_frame("a.py(1): f", depth, 100 - depth) for depth in range(3)]
    found = stacks.folded(read(testing.write_trace(tmp_path / "t.json", frames)))
    assert found == {"a.py(1): f;a.py(1): f;a.py(1): f": 96, "a.py(1): f;a.py(1): f": 2, "a.py(1): f": 2}


def test_device_time_moves_to_the_stack_that_launched_it(tmp_path):
    events = [
        testing.python_frame("a.py(1): f", 0, 100),
        testing.op("aten::mm", 10, 50),
        testing.launch(1, 20, 30),
        testing.kernel(1, 500, 700, name="gemm;x"),
        testing.kernel(9, 800, 805, name="lost"),
    ]
    found = stacks.folded(read(testing.write_trace(tmp_path / "t.json", events)), "device")
    assert found == {"a.py(1): f;aten::mm;cudaLaunchKernel;gemm:x": 200, f"{stacks.UNKNOWN};lost": 5}


def test_bytes_go_to_the_innermost_open_slice_of_their_thread(tmp_path):
    events = [
        testing.python_frame("a.py(1): f", 0, 100),
        testing.op("aten::empty", 10, 20),
        testing.op("aten::other", 10, 20, tid=7),
        testing.memory(15, 64),
        testing.memory(16, -64),
        testing.memory(50, 32),
        testing.memory(500, 8),
    ]
    found = stacks.folded(read(testing.write_trace(tmp_path / "t.json", events)), "bytes")
    assert found == {"a.py(1): f;aten::empty": 64, "a.py(1): f": 32, stacks.OUTSIDE: 8}


def test_names_cannot_break_the_format(tmp_path):
    events = [testing.op("a;b\nc 1", 0, 5), testing.op(" ", 10, 11)]
    found = stacks.folded(read(testing.write_trace(tmp_path / "t.json", events)))
    file = io.BytesIO()
    stacks.write(found, file)
    assert file.getvalue() == b"a:b c 1 5\n? 1\n"


def test_steps_share_their_stacks(tmp_path):
    events = [testing.step_mark(3, 0, 10), testing.step_mark(4, 10, 30)]
    assert stacks.folded(read(testing.write_trace(tmp_path / "t.json", events))) == {"ProfilerStep*": 30}


names = st.sampled_from(["aten::mm", "a.py(1): f", "runpy.py(1): run", "x;y"])
kinds = st.sampled_from(["cpu_op", "python_function", "user_annotation", "cuda_runtime"])
spans = st.lists(
    st.tuples(kinds, names, st.integers(0, 60), st.integers(0, 20), st.integers(1, 3)), min_size=1, max_size=30
)


@given(spans)
def test_no_host_time_is_lost(tmp_path_factory, rows):
    events = [testing.slice_event(kind, name, start, start + span, tid=tid) for kind, name, start, span, tid in rows]
    trace = read(testing.write_trace(tmp_path_factory.mktemp("fuzz") / "t.json", events))
    for skip in (None, stacks.UNINTERESTING, "."):
        assert sum(stacks.folded(trace, skip=skip).values()) == host_time(trace)


def test_stacks_need_neither_torch_nor_polars():
    code = "import sys, perfhooks.trace, perfhooks.trace.stacks; print({'torch', 'polars'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"
