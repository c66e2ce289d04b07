"""Counters of a trace, as power and clocks, by step and by kernel."""

from __future__ import annotations

import json

import msgspec
import pytest

from perfhooks import testing
from perfhooks.analysis import findings
from perfhooks.cli.actions import show
from perfhooks.core import labels
from perfhooks.report import page as report
from perfhooks.report.page import limit_sentences, markdown, run_data, window_data
from perfhooks.report.page.data import WindowData
from perfhooks.run.capture import Capture
from perfhooks.trace import counters, read
from perfhooks.trace.window import Tables

WHOLE = Capture(first=1, last=2, reached=3)
MS = 1_000_000
"""Nanoseconds."""
BASE = 1_712_195_495_502_094_000
"""Since 1970: a double holds such a number to 256 ns."""


def sample(time, value, *, name="Power (W)", pid="GPU 0 Counters", series=""):
    """As torch's new recorder cuspy writes it: no category, and one number without a name."""
    return {"ph": "C", "name": name, "pid": pid, "ts": time / 1000, "args": {series: value}}


def written(folder, *events, begin=0):
    steps = [testing.step_mark(number, begin + 10 * number * MS, begin + 10 * (number + 1) * MS) for number in (1, 2)]
    return read(testing.write_trace(folder / "t.json", [*steps, *events]))


def rows(table):
    return list(table.select("counter", "device", "step", "samples", "mean", "min", "max", "integral").iter_rows())


@pytest.mark.parametrize("begin", [0, BASE])
def test_a_counter_is_its_mean_and_its_integral_by_step_exactly(tmp_path, begin):
    """100 W for 4 ms of the first step and 50 W for 6 ms are 0.7 J; a sample holds until the next."""
    samples = [(5, 100.0), (14, 50.0), (20, 80.0), (26, 20.0), (35, 20.0)]
    trace = written(tmp_path, *(sample(begin + time * MS, value) for time, value in samples), begin=begin)
    first, second = rows(counters.table(trace))
    assert first == ("Power (W)", 0, 1, 2, pytest.approx(70.0), 50.0, 100.0, pytest.approx(0.7))
    assert second == ("Power (W)", 0, 2, 2, pytest.approx(56.0), 20.0, 80.0, pytest.approx(0.56))
    assert counters.table(trace)["unit"].to_list() == ["W", "W"]
    assert counters.table(trace)["covered_ms"].to_list() == pytest.approx([10.0, 10.0])


def test_a_step_that_samples_do_not_cover_has_no_integral(tmp_path):
    trace = written(tmp_path, sample(12 * MS, 100.0), sample(13 * MS, 100.0), sample(14 * MS, 40.0))
    (only,) = counters.table(trace).iter_rows(named=True)
    assert (only["step"], only["mean"], only["integral"]) == (1, pytest.approx(80.0), None)
    assert only["covered_ms"] == pytest.approx(3.0), "the last sample holds as long as the others do"


def test_counter_over_time_has_equal_sections(tmp_path):
    trace = written(tmp_path, sample(10 * MS, 100.0), sample(15 * MS, 60.0), sample(30 * MS, 20.0))
    found = counters.over_time(trace, Tables(trace).counting, 4)
    assert (found.step, found.begin_ms, found.end_ms) == ([1, 1, 2, 2], [0, 5, 10, 15], [5, 10, 15, 20])
    assert [(lane.counter, lane.device, lane.mean) for lane in found.lanes] == [("Power (W)", 0, [100, 60, 60, 60])]
    assert counters.over_time(trace, Tables(trace).counting, 1).lanes[0].mean == [80.0]
    share = window_data.reduce(WHOLE, trace)
    assert msgspec.convert(share, WindowData).counters.count == 1
    assert "counters" not in window_data.reduce(WHOLE, written(tmp_path))


def test_counters_of_other_devices_and_series_are_read(tmp_path):
    many = [
        sample(9 * MS, 1.0, name="occupancy", pid=3, series="value"),
        sample(9 * MS, 7, name="SQ", pid="HIP 1", series="waves"),
        sample(9 * MS, 2, name="queue", pid="scheduler", series="queue"),
    ]
    later = [{**each, "ts": 21_000.0} for each in many]
    table = counters.table(written(tmp_path, *many, *later))
    assert table.filter(step=1).select("counter", "device", "mean").rows() == [
        ("occupancy", 3, 1.0), ("SQ waves", 1, 7.0), ("queue", None, 2.0)
    ]  # fmt: skip


def test_invalid_numbers_are_no_samples(tmp_path):
    odd = [sample(9 * MS, value) for value in ("12", None, True, [1])]
    damaged = {"ph": "C", "name": "x", "pid": 1, "ts": 1.0, "args": [1]}
    assert counters.table(written(tmp_path, *odd, damaged)).height == 0
    (tmp_path / "without.json").write_text(
        json.dumps({"traceEvents": [{"ph": "C", "name": "x", "ts": 3}, testing.op("a", 0, 5)]})
    )
    assert counters.table(read(tmp_path / "without.json")).height == 0


def test_counter_by_kernel_covers_the_time_of_the_kernel(tmp_path):
    kernels = [
        testing.kernel(number, at * MS, (at + 2) * MS, name=name) for number, name, at in ((1, "a", 11), (2, "b", 15))
    ]
    kernels += [testing.kernel(3, 21 * MS, 23 * MS, name="a"), testing.kernel(4, 11 * MS, 12 * MS, name="c", device=1)]
    samples = [sample(time * MS, value) for time, value in ((10, 300.0), (12, 100.0), (20, 200.0), (30, 0.0))]
    table = show.compute(written(tmp_path, *kernels, *samples), "counters", ["kernel"])
    found = table.select("kernel", "mean", "integral").rows()
    assert found == [("a", pytest.approx(200.0), pytest.approx(0.8)), ("b", pytest.approx(100.0), pytest.approx(0.2))]


def test_sampled_trace_reports_locked_clocks(tmp_path):
    """As torch's PerformanceMetricsConfig does; power is read without it."""
    assert "clocks-locked" not in Tables(written(tmp_path, sample(9 * MS, 100.0))).checks["name"].to_list()
    for name in ("SM Active (%)", "sm__cycles_active.avg"):
        checks = Tables(written(tmp_path, sample(9 * MS, 50.0, name=name))).checks
        assert checks.filter(name="clocks-locked")["severity"].to_list() == ["warning"]


def test_locked_clocks_are_stated_before_all_numbers(tmp_path):
    """In markdown before the first table, on the page and in a terminal before all advice."""
    first = written(tmp_path, sample(9 * MS, 100.0))
    assert findings.find(WHOLE, first) == []
    (found,) = findings.find(WHOLE, written(tmp_path, sample(9 * MS, 50.0, name="SM Active (%)")))
    assert (found.rule, found.doubts_others, found.gain_ms) == ("held-clocks", True, None)
    assert "SM Active (%)" in found.lines[0]
    text = markdown.of_trace(tmp_path / "t.json")
    assert 0 < text.index(f"- {found.title}") < text.index("ms |")
    (tmp_path / "report.json").write_bytes(msgspec.json.encode(run_data.from_trace(tmp_path / "t.json")))
    assert f"Warning: {found.title}" in report.headlines(tmp_path / "report.html")
    line = Capture(headline="steps 1-2: 10 ms each", last=2, notes=(labels.CLOCKS_LOCKED,)).line
    assert line == "steps 1-2: 10 ms each. Warning: sampling hardware counters locked the clocks of the device"


def active(*values, name, gpu=0, every=5):
    """A sample every so many milliseconds of both steps."""
    return [
        sample((10 + every * at) * MS, value, name=name, pid=f"GPU {gpu} Counters") for at, value in enumerate(values)
    ]


def test_sampled_activity_is_shown_beside_computed_limits(tmp_path):
    """Over all steps, of both devices; what misses a part of a step, or is no share of the device, is not said."""
    events = [
        *active(80, 60, 20, 40, name="SM Active (%)"),
        *active(40, 40, 40, 40, name="SM Active (%)", gpu=1),
        *active(30, 30, 10, 10, name="DRAM BW (%)"),
        *active(300, 300, 300, 300, name="Power (W)"),
        testing.launch(1, 10 * MS, 11 * MS),
        testing.kernel(1, 11 * MS, 12 * MS),
    ]
    said = ["Activity counters of the device over the same steps: SM active 45%, DRAM 20%."]
    assert limit_sentences.sentences(WHOLE, written(tmp_path, *events)) == said
    assert limit_sentences.sentences(Capture(last=2, request="explanation"), written(tmp_path, *events)) == []
    short = active(80, 60, name="SM Active (%)")
    assert limit_sentences.sentences(WHOLE, written(tmp_path, *short)) == []
