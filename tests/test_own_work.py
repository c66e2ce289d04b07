"""Time in which perfhooks itself keeps the training waiting is no part of a step."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from perfhooks import testing
from perfhooks.analysis import findings
from perfhooks.core import clocks
from perfhooks.report.page import headline
from perfhooks.run import timeline
from perfhooks.run.capture import Capture, Cost
from perfhooks.testing import annotation, kernel, launch, step_mark
from perfhooks.trace import read
from perfhooks.trace.model import epoch

MS = 1_000_000


def test_own_work_is_neither_step_nor_part(tmp_path):
    """The start of a profiler lies within an update: 80 of the 90 ms that the optimizer seems to take."""
    events = [step_mark(0, 0, 100 * MS), annotation("optimizer", 10 * MS, 100 * MS), step_mark(1, 100 * MS, 120 * MS)]
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    base = epoch(trace.metadata) * 1e-9
    capture = Capture(last=1, reached=2, own_work=((base + 0.015, base + 0.095), (base + 0.02, base + 0.03)))
    row = capture.tables(trace).steps.row(0, named=True)
    assert row["wall_ms"] == pytest.approx(20, abs=0.01)
    assert row["optimizer_ms"] == pytest.approx(10, abs=0.01)
    assert row["other_ms"] == pytest.approx(10, abs=0.01)
    assert capture.tables(trace).steps["wall_ms"][1] == pytest.approx(20, abs=0.01)


def test_device_work_during_own_work_is_not_counted(tmp_path):
    """Kernels of 60 ms run in a step of 100 ms; during 40 ms of them, perfhooks starts the profiler."""
    events = [step_mark(0, 0, 100 * MS), launch(1, 5 * MS, 6 * MS), kernel(1, 10 * MS, 70 * MS)]
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    base = epoch(trace.metadata) * 1e-9
    row = Capture(last=0, reached=1, own_work=((base + 0.03, base + 0.09),)).tables(trace).steps.row(0, named=True)
    times = [row["wall_ms"], row["device_busy_ms"], row["device_idle_ms"]]
    assert times == pytest.approx([40, 20, 20], abs=0.01)


def test_recorded_device_is_never_busier_than_its_step():
    """A recording of an H200 with a full queue: perfhooks worked twice between the first and the second step."""
    trace = read(Path(__file__).parent / "data/h200-attention.json.gz")
    own_work = ((1795816795.3548193, 1795816795.355965), (1795816795.3652115, 1795816795.3703003))
    capture = Capture(first=14, last=17, reached=18, own_work=own_work, cost=Cost(idle_step_ms=42.8))
    table = capture.tables(trace).steps
    assert (table["device_busy_ms"] + table["device_idle_ms"]).to_list() == pytest.approx(table["wall_ms"].to_list())
    told = "steps 14-17: 10.7 ms on the host and 42.8 ms on the device, device busy 99%"
    assert headline.headline(table) == told
    rules = [finding.rule for finding in findings.find(capture, trace)]
    assert rules == ["written-out-attention", "float32-products"]


@pytest.mark.parametrize(("own_work", "rules"), [((0.010, 0.095), []), ((0.0, 0.001), ["unnamed-time"])])
def test_own_work_is_no_finding(tmp_path, own_work, rules):
    """A step of 100 ms: 10 ms of labels, then 85 ms without a name."""
    events = [step_mark(0, 0, 100 * MS), annotation("forward", 0, 5 * MS), annotation("backward", 5 * MS, 10 * MS)]
    trace = read(testing.write_trace(tmp_path / "t.json", [*events, annotation("forward", 95 * MS, 100 * MS)]))
    base = epoch(trace.metadata) * 1e-9
    capture = Capture(last=0, reached=1, own_work=(tuple(base + moment for moment in own_work),))
    assert [finding.rule for finding in findings.find(capture, trace)] == rules


def test_own_work_of_a_window_is_that_of_its_thread_and_time(monkeypatch):
    here, clock = threading.get_ident(), timeline.clock()
    ago = [(here, clock - 9 * 10**9, clock - 8 * 10**9), (here, clock - 3 * 10**9, clock - 1 * 10**9)]
    monkeypatch.setattr(timeline, "OWN_WORK", [*ago, (here + 1, clock - 2 * 10**9, clock)])
    now = timeline.time.time()
    ((begin, end),) = timeline.own_work_s(now - 2, now)
    late_s = (timeline.clock() - clock) * 1e-9 + 0.01
    assert (begin, end) == (pytest.approx(now - 2, abs=late_s), pytest.approx(now - 1, abs=late_s))


def test_pause_between_two_clocks_moves_no_own_work(monkeypatch):
    """A busy machine may pause the thread for 10 ms between its readings of the two clocks: a whole step."""
    read, pauses_s = clocks.time.time, iter([0.0, 0.02])

    def paused_after():
        now = read()
        clocks.time.sleep(next(pauses_s, 0.0))
        return now

    before = clocks.system_ahead_s()
    monkeypatch.setattr(clocks.time, "time", paused_after)
    assert clocks.system_ahead_s() == pytest.approx(before, abs=0.005)
