"""The longest gaps of the devices, and what the host did in them."""

import pytest

from perfhooks import testing
from perfhooks.report.page import window_data
from perfhooks.run.capture import Capture
from perfhooks.testing import PID, annotation, kernel, launch, op, python_frame, step_mark
from perfhooks.trace import read
from perfhooks.trace.window import Tables

MS = 1_000_000


def trace_of(tmp_path, events):
    return read(testing.write_trace(tmp_path / "t.json", events))


def work(number, start, end):
    return [launch(number, start - 20, start - 10), kernel(number, start, end)]


def table_of(trace):
    return Tables(trace).gaps


def test_gap_names_its_largest_cause(tmp_path):
    """What is called in a function is its own cause, however long the function lasts."""
    events = [
        step_mark(3, 0, 400 * MS),
        *work(1, 10 * MS, 20 * MS),
        *work(2, 290 * MS, 300 * MS),
        *work(3, 330 * MS, 340 * MS),
        python_frame("train.py(3): main", 0, 399 * MS),
        python_frame("clip.py(9): resize", 21 * MS, 280 * MS),
        annotation("prepare", 22 * MS, 279 * MS),
        op("aten::roll", 23 * MS, 40 * MS),
        python_frame("other.py(1): work", 0, 399 * MS, tid=PID + 1),
    ]
    table = table_of(trace_of(tmp_path, events))
    assert table.select("step", "cause", "name", "line").rows() == [
        (3, "code between operators", None, "clip.py(9): resize"),
        (3, "code between operators", None, "train.py(3): main"),
        (3, "code between operators", None, "train.py(3): main"),
        (3, "code between operators", None, "train.py(3): main"),
    ]
    assert table["gap_ms"].to_list() == pytest.approx([270, 60, 30, 10])
    assert table["cause_ms"].to_list() == pytest.approx([242, 59, 30, 10], abs=0.001)
    assert table["start_ms"].to_list() == pytest.approx([20, 340, 300, 0])


def test_table_has_at_most_ten_gaps_by_length(tmp_path):
    events, time = [], MS
    for number in range(1, 15):
        events += work(number, time, time + MS)
        time += (1 + number) * MS
    lengths = table_of(trace_of(tmp_path, events))["gap_ms"].to_list()
    assert lengths == pytest.approx(list(range(13, 3, -1)))


def test_report_without_a_device_has_no_gaps(tmp_path):
    trace = trace_of(tmp_path, [op("a", 0, 5)])
    assert table_of(trace).height == 0
    assert "problems" not in window_data.reduce(Capture(), trace)
