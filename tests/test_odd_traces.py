"""Traces with odd names, types and nesting: each defect costs what it damages, and nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks import labels, testing
from perfhooks.report.headline import of_window
from perfhooks.run.capture import Capture
from perfhooks.testing import annotation, kernel, launch, op, step_mark
from perfhooks.trace import read
from perfhooks.trace.tables import operators
from perfhooks.trace.tables.labels import table as labels_table
from perfhooks.trace.window import Tables

SHAPES = {"Input_Dims": [[64, 64], [64, 64]], "Concrete_Inputs": ["", ""]}


def bytes_per_second(tmp_path, spelled):
    events = [op("aten::mul", 0, 100, external=1, Input_type=[spelled, spelled], **SHAPES)]
    events += [launch(1, 10, 20, external=1), kernel(1, 30, 4030, external=1)]
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    row = operators.table(trace).filter(operators.table(trace)["name"] == "aten::mul")
    return row["gb_per_s"].item()


@pytest.mark.parametrize("spelled", ["Float", "FLOAT", "fp32", "float"])
def test_a_type_is_known_in_any_case(tmp_path, spelled):
    assert bytes_per_second(tmp_path, spelled) == pytest.approx(3 * 64 * 64 * 4 / 4000)


@pytest.mark.parametrize("spelled", ["Posit16", "", "c10::complex<Half>"])
def test_an_unknown_type_costs_the_bytes_of_its_operator(tmp_path, spelled):
    assert bytes_per_second(tmp_path, spelled) is None


def test_own_times_of_crossing_labels_are_not_negative(tmp_path):
    events = [step_mark(number, 3000 * number, 3000 * number + 3000) for number in range(4)]
    events.append(annotation("epoch", 500, 11500))
    for number in range(3):
        at = 3000 * number + 1000
        events += [annotation("batch", at, at + 2600), annotation("update", at + 100, at + 2500)]
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    assert (labels_table(trace)["self_ms"] >= 0).all()
    assert (Tables(trace).operators()["self_cpu_ms"] >= 0).all()


def test_operators_of_other_threads_are_no_share_of_a_step(tmp_path):
    events = []
    for number in range(3):
        at = 10_000_000 * number
        events += [step_mark(number, at, at + 10_000_000), op("aten::mm", at, at + 2_000_000)]
        events += [op(name, at, at + 5_000_000, tid=7) for name in ("aten::sort", "aten::mm")]
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    said = of_window(Capture(stage="train", last=0), trace)
    assert "80% outside of operators, 20% aten::mm" in said


FRAMES = {
    r"C:\users\me\train.py(3): <module>": r"C:\users\me\train.py(3): <module>",
    r"torch\nn\modules\linear.py(12): forward": r"torch\nn\modules\linear.py(12): forward",
    r"D:\temp\run\base.py(1): u": r"D:\temp\run\base.py(1): u",
}


@pytest.mark.parametrize("frame", FRAMES)
def test_windows_paths_keep_their_names(tmp_path, frame):
    """Kineto writes them without escapes."""
    event = json.dumps(testing.python_frame("PATH", 0, 5)).replace("PATH", frame)
    (tmp_path / "t.json").write_text(f'{{"traceEvents":[{json.dumps(op("a", 1, 2))},{event}]}}')
    trace = read(tmp_path / "t.json")
    assert trace.doubts == []
    assert FRAMES[frame] in trace.names


def test_a_reserved_size_that_is_not_counted_is_empty(tmp_path):
    events = [testing.memory(10 * number, 64, allocated=64 * number, device=0) for number in range(1, 4)]
    for event in events:
        event["args"]["Total Reserved"] = -1
    tables = Tables(read(testing.write_trace(tmp_path / "t.json", events)))
    assert tables.memory["reserved_bytes"].to_list() == [None] * 3
    assert tables.memory_peak["reserved_bytes"].to_list() == [None]


@given(st.text())
def test_an_escaped_name_is_ascii_and_comes_back(name):
    assert labels.escaped(name).isascii()
    if not any(0xD800 <= ord(letter) < 0xE000 for letter in name) and "&#x" not in name:
        assert labels.unescaped(labels.escaped(name)) == name


@pytest.mark.parametrize("name", ["&#x41;", "&#xd800;", "&#x110000;", "&#x;", "&#xzz;", "a &#x8bad b"])
def test_other_texts_are_no_escapes(name):
    assert labels.unescaped(name) == name


TRAINING = r"""
import sys, torch, perfhooks
with perfhooks.Profiler(schedule="wait=0 warmup=1 active=2", out=sys.argv[1], run="r", background=False) as prof:
    for _ in range(4):
        with prof.region("\u8bad\u7ec3"):
            torch.randn(8, 8) @ torch.randn(8, 8)
        with torch.profiler.record_function("\u00e9valuation"):
            torch.randn(8, 8)
        prof.step()
assert torch.profiler.record_function("\u8bad").name == "\u8bad"
"""


def test_labels_that_are_not_ascii_keep_their_names(tmp_path, run_script):
    done = run_script(TRAINING, tmp_path / "perf")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "perf").rglob("rank0.pt.trace.json*")
    table = labels_table(read(path))
    assert dict(table.filter(table["name"] != "ProfilerStep*").select("name", "calls").rows()) == {
        "\u8bad\u7ec3": 2,
        "\u00e9valuation": 2,
    }
