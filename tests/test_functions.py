"""The table of Python functions: cProfile's columns, from the frames of a trace."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import perfhooks
from perfhooks import Profiler, testing
from perfhooks.testing import python_frame, step_mark
from perfhooks.trace import functions, read
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import perfhooks_frames

MS = 1_000_000


def by_name(path):
    return {row["function"]: row for row in functions.table(read(path)).iter_rows(named=True)}


frames = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 40), st.sampled_from("abc"), st.sampled_from([1, 2])), max_size=25
)


def slowly(frames):
    """The obvious way: of each nanosecond of each thread, which functions are open; of one that crosses, the first."""
    opened = {}
    rows = {}
    for thread in (1, 2):
        nested = []
        mine = sorted((start, -(start + span), name) for start, span, name, where in frames if where == thread)
        for start, end, name in [(start, -end, name) for start, end, name in mine]:
            if all(end <= last or start >= last for _, last, _ in nested):
                nested.append((start, end, name))
        opened[thread] = nested
        for time in range(120):
            here = [name for start, end, name in nested if start <= time < end]
            for name in set(here):
                rows.setdefault(name, [0, 0])[1] += 1
            if here:
                rows[here[-1]][0] += 1
    return opened, rows


@pytest.mark.slow
@given(frames)
def test_self_and_total_equal_a_count_of_each_nanosecond(tmp_path_factory, frames):
    nested, wanted = slowly(frames)
    events = [
        python_frame(f"t.py(1): {name}", start, end, tid=thread)
        for thread, mine in nested.items()
        for start, end, name in mine
    ]
    events.append(step_mark(0, 0, 200, tid=1))
    path = testing.write_trace(tmp_path_factory.mktemp("t") / "t.json", events)
    found = {name: [row["self_ms"], row["total_ms"]] for name, row in by_name(path).items()}
    assert {name: [round(each * MS) for each in times] for name, times in found.items()} == wanted


@pytest.mark.parametrize("name", ["h100-bert-small", "mi300-bert-small", "b200-eager-stacks-shapes"])
def test_self_times_sum_to_the_frames_of_step_threads(recordings, name):
    trace = read(recordings / f"{name}.json.gz")
    rows = trace.rows(Kind.PYTHON)
    covered = 0
    for thread in np.unique(trace.thread[rows]):
        mine = rows[trace.thread[rows] == thread]
        waits = any("threading.py" in trace.names[place] for place in set(trace.name[mine].tolist()))
        reached = 0
        for start, end in sorted(zip(trace.start[mine].tolist(), trace.end[mine].tolist(), strict=True)):
            covered += 0 if waits else max(0, end - max(start, reached))
            reached = max(reached, end)
    total = functions.table(trace)["self_ms"].sum() * MS
    assert covered <= round(total) + 1
    assert total <= covered + 10_000  # a thread that waits has some microseconds around its wait


def work(depth):
    if depth:
        work(depth - 1)
    return sum(range(10))


def train():
    for _ in range(3):
        work(4)
        torch.ones(2) + 1


@pytest.mark.recorder
def test_calls_equal_those_of_cprofile(tmp_path):
    profile = cProfile.Profile()
    profile.runcall(train)
    counted = {
        (Path(file).name, line, name): calls
        for (file, line, name), (_, calls, *_) in pstats.Stats(profile).stats.items()
        if file == __file__
    }
    with Profiler(activities=["cpu"], with_stack=True) as prof:
        train()
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    found = {
        (Path(row["file"]).name, row["line"], row["function"]): row["calls"]
        for row in functions.table(read(tmp_path / "t.json")).iter_rows(named=True)
        if row["function"] in ("work", "train")
    }
    assert found == counted
    assert set(found.values()) == {15, 1}


@pytest.mark.parametrize(
    "path",
    [
        "record/launch/calls.py",
        "record/launch/loaders.py",
        "record/launch/frameworks.py",
        "record/loop/loader.py",
        "adapters/wrapped_methods.py",
    ],
)
def test_wrappers_of_torch_are_recognized_by_their_path(path):
    assert (Path(perfhooks.__file__).parent / path).exists()
    assert perfhooks_frames.STAND_IN.search(f"perfhooks/{path}(7): call")
