"""Records without a time or without a length are counted, reported and dropped."""

from __future__ import annotations

import pytest

from perfhooks import testing
from perfhooks.trace import read
from perfhooks.trace.tables import checks, kernels, steps

SINCE_1970, SINCE_BOOT, MINUTES_NS = 1_736_405_443_863_674_000, 5 * 3600 * 10**9, 90 * 10**9


def training(begin):
    """Two steps of three kernels each, in nanoseconds."""
    events = [testing.step_mark(number, begin + at, begin + at + 10_000) for number, at in ((3, 0), (4, 10_000))]
    for number in range(6):
        at = begin + 1000 + 3000 * number + 1000 * (number // 3)
        events += [testing.launch(number + 1, at, at + 100), testing.kernel(number + 1, at + 200, at + 1200)]
    return events


def found(path, events, **metadata):
    trace = read(testing.write_trace(path, events, **metadata))
    return trace, {row["name"]: row for row in checks.table(trace).rows(named=True)}


@pytest.mark.parametrize("begin", [SINCE_1970, SINCE_BOOT])
@pytest.mark.parametrize("span", [0.0, 3.0])
@pytest.mark.parametrize("time", [0, 0.0, -1.0, -77.25, -1711964646000000.0, -1711964645999999.75])
def test_a_record_at_time_zero_has_no_time(tmp_path, begin, span, time):
    events = training(begin)
    for event in (events[3], events[9]):
        event |= {"ts": time, "dur": span}
    trace, doubts = found(tmp_path / "t.json", events, baseTimeNanoseconds=1711964646000000000)
    assert doubts["records-without-time"]["count"] == 2
    assert doubts["records-without-time"]["text"].startswith("2 records have no time, 2 of them work of a device")
    assert not {"kernels-before-launch", "no-steps"} & doubts.keys()
    assert int(trace.start.min()) == begin
    assert kernels.table(trace)["count"].sum() == 4


def test_missing_times_may_be_rounded_to_microseconds(tmp_path):
    events = training(SINCE_1970)
    events[3]["ts"], events[9]["ts"] = -1711964646000000.0, -1711964645999999.25
    _, doubts = found(tmp_path / "t.json", events, baseTimeNanoseconds=1711964646000000000)
    assert doubts["records-without-time"]["count"] == 2


@pytest.mark.parametrize("begin", [0, 1, 700])
def test_a_recording_may_begin_at_time_zero(tmp_path, begin):
    trace, doubts = found(tmp_path / "t.json", training(begin))
    assert doubts == {}
    assert steps.table(trace)["kernels"].to_list() == [3, 3]


def test_a_long_pause_after_time_zero_is_no_doubt(tmp_path):
    events = [testing.op("aten::mm", 0, 100), testing.op("aten::mm", MINUTES_NS // 2, MINUTES_NS // 2 + 50)]
    trace, doubts = found(tmp_path / "t.json", events)
    assert (len(trace), doubts.keys()) == (2, {"no-steps"})


@pytest.mark.parametrize("span", [-5.0, -1e-3, None])
def test_a_negative_or_missing_length_is_unknown(tmp_path, span):
    events = training(SINCE_1970)
    events[3]["dur"] = span
    if span is None:
        del events[3]["dur"]
    trace, doubts = found(tmp_path / "t.json", events)
    assert doubts["records-without-length"]["text"].startswith("1 record has no length, 1 of them work of a device")
    assert kernels.table(trace)["count"].sum() == 5


def test_a_length_of_zero_is_a_length(tmp_path):
    events = training(SINCE_1970)
    events[3]["dur"] = 0
    _, doubts = found(tmp_path / "t.json", events)
    assert doubts == {}


def test_arguments_stay_with_their_records(tmp_path):
    events = training(SINCE_1970)
    events[5] |= {"ts": 0, "dur": 0}
    trace, _ = found(tmp_path / "t.json", events)
    work = trace.device_rows
    assert sorted(trace.correlation[work].tolist()) == [1, 3, 4, 5, 6]
    assert (trace.correlation[trace.launches] == trace.correlation[work]).all()
