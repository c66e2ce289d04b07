"""Counters of a trace, as power and clocks, by step and by kernel."""

from __future__ import annotations

import msgspec

from perfhooks import testing
from perfhooks.analysis import findings
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


def sample(time, value, *, name="Power (W)", pid="GPU 0 Counters", series=""):
    """As torch's new recorder cuspy writes it: no category, and one number without a name."""
    return {"ph": "C", "name": name, "pid": pid, "ts": time / 1000, "args": {series: value}}


def written(folder, *events, begin=0):
    steps = [testing.step_mark(number, begin + 10 * number * MS, begin + 10 * (number + 1) * MS) for number in (1, 2)]
    return read(testing.write_trace(folder / "t.json", [*steps, *events]))


def test_counter_over_time_has_equal_sections(tmp_path):
    trace = written(tmp_path, sample(10 * MS, 100.0), sample(15 * MS, 60.0), sample(30 * MS, 20.0))
    found = counters.over_time(trace, Tables(trace).counting, 4)
    assert (found.step, found.begin_ms, found.end_ms) == ([1, 1, 2, 2], [0, 5, 10, 15], [5, 10, 15, 20])
    assert [(lane.counter, lane.device, lane.mean) for lane in found.lanes] == [("Power (W)", 0, [100, 60, 60, 60])]
    assert counters.over_time(trace, Tables(trace).counting, 1).lanes[0].mean == [80.0]
    share = window_data.reduce(WHOLE, trace)
    assert msgspec.convert(share, WindowData).counters.count == 1
    assert "counters" not in window_data.reduce(WHOLE, written(tmp_path))


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
