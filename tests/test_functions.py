"""The table of Python functions: cProfile's columns, from the frames of a trace."""

from __future__ import annotations

import cProfile
import csv
import io
import pstats
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import perfhooks
from perfhooks import Profiler, testing
from perfhooks.report.page import window_data
from perfhooks.run.capture import Capture
from perfhooks.testing import op, python_frame, step_mark
from perfhooks.trace import functions, read
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import perfhooks_frames
from perfhooks.trace.tables import stacks

MS = 1_000_000


def by_name(path):
    return {row["function"]: row for row in functions.table(read(path)).iter_rows(named=True)}


def test_recursive_function_counts_time_once_and_all_calls(tmp_path):
    events = [
        *(step_mark(0, 0, 20 * MS), python_frame("train.py(3): main", 0, 18 * MS)),
        *(python_frame("data.py(7): load", 1 * MS, 13 * MS), python_frame("data.py(7): load", 2 * MS, 7 * MS)),
        *(op("aten::mm", 14 * MS, 17 * MS), python_frame("<built-in method mm>", 14 * MS, 16 * MS)),
    ]
    rows = by_name(testing.write_trace(tmp_path / "t.json", events))
    assert list(rows) == ["load", "main", "<built-in method mm>"]
    measured = ("calls", "self_ms", "total_ms", "mean_ms", "file", "line")
    assert {name: tuple(row[column] for column in measured) for name, row in rows.items()} == {
        "main": (1, 4.0, 18.0, 18.0, "train.py", 3),
        "load": (2, 12.0, 12.0, 6.0, "data.py", 7),
        "<built-in method mm>": (1, 2.0, 2.0, 2.0, None, None),
    }


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


def test_handler_and_report_contain_the_functions(tmp_path):
    events = [step_mark(0, 0, 90), python_frame("a.py(1): f", 0, 80), python_frame("b.py(2): g", 10, 20)]
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    for options, order in (({}, ["f", "g"]), ({"sort_by": "file", "row_limit": 1}, ["f"])):
        (artifact,) = perfhooks.FunctionTable(**options).artifacts(Capture(), trace)
        file = io.BytesIO()
        artifact.write(file)
        rows = list(csv.DictReader(io.StringIO(file.getvalue().decode())))
        assert (artifact.name, [row["function"] for row in rows]) == ("functions.csv", order)
    part = window_data.reduce(Capture(), trace)["functions"]
    assert (part["rows"]["function"], part["count"]) == (["f", "g"], 2)
    bare = read(testing.write_trace(tmp_path / "bare.json", events[:1]))
    assert not window_data.reduce(Capture(), bare).get("functions"), "without frames the page has no such table"


def test_functions_of_equal_objects_are_one_row(tmp_path):
    names = [f"<built-in method sort of numpy.ndarray object at 0x7f{number:010x}>" for number in range(3)]
    events = [testing.python_frame(name, 10 * place, 10 * place + 5) for place, name in enumerate(names)]
    events.append(testing.python_frame("<function step at 0x7f00aa>", 40, 50))
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    rows = {row["function"]: row["calls"] for row in functions.table(trace).to_dicts()}
    assert rows == {"<built-in method sort of numpy.ndarray object>": 3, "<function step>": 1}
    assert set(stacks.folded(trace)) == set(rows)


def test_frames_of_perfhooks_have_no_row(tmp_path):
    """But the program that a stand-in calls has: here a module, below a label, and the backward pass."""
    stand_in, other = (
        "perfhooks/record/loop/labelling.py(9): _labelled_call",
        "perfhooks/record/loop/controller.py(9): _turn",
    )
    trace = read(
        testing.write_trace(
            tmp_path / "t.json",
            [
                step_mark(3, 0, 100_000),
                python_frame("train.py(1): main", 0, 100_000),
                python_frame(stand_in, 10_000, 40_000),
                python_frame("<built-in function id>", 11_000, 12_000),
                python_frame("contextlib.py(5): __enter__", 12_000, 14_000),
                testing.annotation("forward (auto)", 15_000, 35_000),
                python_frame("nn.Module: Linear_0", 16_000, 34_000),
                python_frame("torch/nn/modules/linear.py(2): forward", 17_000, 33_000),
                op("aten::linear", 18_000, 30_000),
                python_frame("perfhooks_lightning/callback.py(7): on_batch_end", 50_000, 70_000),
                python_frame(other, 52_000, 68_000),
                python_frame("threading.py(3): wait", 53_000, 60_000),
                python_frame("mine/perfhooks.py(3): not_ours", 80_000, 90_000),
            ],
        )
    )
    made = functions.table(trace)
    spent = dict(made.select("function", "self_ms").iter_rows())
    assert spent == {
        "main": pytest.approx(0.040),  # 100 us, without 30 and 20 of ours, and 10 of another function
        "not_ours": pytest.approx(0.010),
        "nn.Module: Linear_0": pytest.approx(0.002),
        "forward": pytest.approx(0.016),
    }
    stacks_of = stacks.folded(trace)
    assert not any("perfhooks/" in stack or "built-in" in stack or "threading" in stack for stack in stacks_of)
    assert any(stack.endswith("forward (auto);nn.Module: Linear_0") for stack in stacks_of)
    assert any("perfhooks/" in stack for stack in stacks.folded(trace, skip=None))


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
