"""The longest gaps of the devices, and what the host did in them."""

import pytest

from perfhooks import testing
from perfhooks.report import window_data
from perfhooks.run.capture import Capture
from perfhooks.testing import PID, annotation, kernel, launch, op, python_frame, step_mark
from perfhooks.trace import read
from perfhooks.trace.tables import gaps

MS = 1_000_000


def trace_of(tmp_path, events):
    return read(testing.write_trace(tmp_path / "t.json", events))


def work(number, start, end):
    return [launch(number, start - 20, start - 10), kernel(number, start, end)]


def test_a_gap_names_what_lasted_for_half_of_it_and_the_innermost_of_that(tmp_path):
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
    table = gaps.table(trace_of(tmp_path, events))
    assert table.select("step", "line", "label", "operator", "call").rows() == [
        (3, "clip.py(9): resize", "prepare", None, None),
        (3, "train.py(3): main", None, None, None),
    ]
    assert table["gap_ms"].to_list() == pytest.approx([270, 30])
    assert table["start_ms"].to_list() == pytest.approx([20, 300])


def test_there_are_ten_at_most_the_longest_first(tmp_path):
    events, time = [], MS
    for number in range(1, 15):
        events += work(number, time, time + MS)
        time += (1 + number) * MS
    lengths = gaps.table(trace_of(tmp_path, events))["gap_ms"].to_list()
    assert lengths == pytest.approx(list(range(13, 3, -1)))


def test_without_a_device_there_are_none_and_the_page_is_whole(tmp_path):
    trace = trace_of(tmp_path, [op("a", 0, 5)])
    assert gaps.table(trace).height == 0
    assert "problems" not in window_data.reduce(Capture(), trace)
