"""Where the device's time went: each cause planted, every nanosecond looked at by itself, and sums on recordings."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_steps import LOADER, nested
from twins import TRACES

from perfhooks import testing
from perfhooks.report.page import markdown, window_data
from perfhooks.report.page.headline import of_window
from perfhooks.run.capture import Capture
from perfhooks.testing import kernel, launch, op, python_frame, slice_event, step_mark
from perfhooks.trace import read
from perfhooks.trace.nesting import device, step_marks
from perfhooks.trace.tables import device_time, gaps, steps
from perfhooks.trace.tables.device_time import CAUSES

US = 1000
MAIN, BACKWARD = testing.PID, 7


def trace_of(folder, events):
    return read(testing.write_trace(folder / "t.json", events))


def work(number, asked, ran, *, tid=MAIN, **args):
    """Work and the call that asked for it; both from first nanosecond to last."""
    return [launch(number, *asked, tid=tid), kernel(number, *ran, **args)]


def causes(found, step=None):
    """The nanoseconds of each cause."""
    total = {}
    for cause, length, mine in zip(found.cause.tolist(), found.length.tolist(), found.step.tolist(), strict=True):
        if step in (None, mine):
            total[CAUSES[cause]] = total.get(CAUSES[cause], 0) + length
    return total


def test_a_full_queue_is_no_launch(tmp_path):
    """A thousand launches are in flight, on another stream that waits; the next one takes long."""
    events = [step_mark(0, 0, 3000 * US), kernel(9000, 2900 * US, 3000 * US, stream=8)]
    for number in range(1, 1002):
        events += work(number, (number, number + 1), (2990 * US, 3000 * US), stream=9)
    events += work(2000, (100 * US, 2800 * US), (2850 * US, 2860 * US))
    found = device_time.idle(trace_of(tmp_path, events))
    assert causes(found)["full queue"] == 2700 * US
    (queue,) = device_time.queue(trace_of(tmp_path, events)).tolist()
    assert queue[3] == pytest.approx(2990 * US, rel=0.01)


def test_log_line_report_and_markdown_name_the_largest_cause(tmp_path):
    """In the function that holds nine tenths of what the host did, though others are called in it."""
    events = [
        step_mark(3, 0, 100 * US),
        python_frame("train.py(3): main", 0, 100 * US),
        python_frame("clip.py(1): prepare", 0, 61 * US),
        python_frame("clip.py(9): resize", 20 * US, 50 * US),
        *work(1, (62 * US, 63 * US), (63 * US, 100 * US)),
    ]
    trace = trace_of(tmp_path, events)
    assert of_window(Capture(), trace).endswith("device busy 37%, idle 61% in clip.py(1): prepare")
    device_part = window_data.reduce(Capture(), trace)["device"]
    assert sum(device_part["parts"]["ms"]) == pytest.approx(0.1)
    assert dict(zip(device_part["parts"]["part"], device_part["parts"]["ms"], strict=True)) == {
        "compute": pytest.approx(0.037),
        "code between operators": pytest.approx(0.062),
        "launching": pytest.approx(0.001),
    }
    assert device_part["queue"]["empty"] == pytest.approx(0.99)
    assert "| device idle: code between operators | 0.062 | 62% |" in markdown.of_trace(tmp_path / "t.json")


def test_report_without_a_device_has_no_problems(tmp_path):
    trace = trace_of(tmp_path, [op("a", 0, 5)])
    assert "problems" not in window_data.reduce(Capture(), trace)


# --- against a slow obvious implementation: every nanosecond looked at by itself

spans = st.tuples(st.integers(0, 60), st.integers(0, 25))
OURS = {
    "aten::a": ("cpu_op", "operators on the host"),
    "f.py(1): f": ("python_function", "code between operators"),
    "mine": ("user_annotation", "code between operators"),
    "cudaFree": ("cuda_runtime", "requesting memory"),
    "cudaDeviceSynchronize": ("cuda_runtime", "waiting for the device"),
    LOADER: ("user_annotation", "waiting for data"),
}
BUSY = ("operators on the host", "requesting memory", "waiting for the device", "launching")
host = st.lists(st.tuples(st.sampled_from([*OURS, "launch"]), spans), max_size=9)


@pytest.mark.slow
@settings(max_examples=40)
@given(host, host, st.lists(spans, min_size=1, max_size=8), st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_idle_time_is_that_of_every_nanosecond(tmp_path_factory, main, backward, ran, lengths):
    """Two threads, of which one has the steps; each launch is that of the next work in a list, as long as there is."""
    edges = np.cumsum([0, *lengths]).tolist()
    threads = {MAIN: cut(nested(main), edges), BACKWARD: nested(backward)}
    events = [step_mark(number, *edges[number : number + 2]) for number in range(len(lengths))]
    waiting, pieces = list(ran), []
    for tid, slices in threads.items():
        for name, start, end in slices:
            if name != "launch":
                events.append(slice_event(OURS[name][0], name, start, end, tid=tid))
                continue
            asked = waiting.pop() if waiting else None
            number = 100 + len(pieces) if asked else 50 + len(events)
            events.append(launch(number, start, end, tid=tid))
            if asked:
                began = max(start, asked[0])
                pieces.append((began, began + asked[1], tid, start, end))
                events.append(kernel(number, began, began + asked[1], stream=len(pieces)))
    trace = trace_of(tmp_path_factory.mktemp("fuzz"), events)
    launched = [tid for *_, tid, _, _ in pieces]
    other = BACKWARD if BACKWARD in launched else None
    for number in range(len(lengths)):
        step = range(*edges[number : number + 2])
        expected, busy = {}, 0
        for moment in step:
            if any(begin <= moment < end for begin, end, *_ in pieces):
                busy += 1
                continue
            cause = slow_cause(moment, pieces, threads, other)
            expected[cause] = expected.get(cause, 0) + 1
        if not trace.is_device_traced:
            expected, busy = {}, 0
            assert len(device_time.idle(trace).start) == 0
        else:
            assert causes(device_time.idle(trace), number) == expected
        assert device_time.work(trace)[number].sum() == busy
    assert device_time.queue(trace).tolist() == [slow_queue(range(*pair), pieces) for pair in pairwise(edges)]


def cut(slices, edges):
    """The same, so that none crosses the mark of a step."""
    inner = [[edge for edge in edges if start < edge < end] for _, start, end in slices]
    return [(name, start, min([*cuts, end])) for (name, start, end), cuts in zip(slices, inner, strict=True)]


def slow_cause(moment, pieces, threads, other):
    coming = [piece for piece in pieces if piece[0] > moment and piece[1] > piece[0]]
    if coming:
        _, _, tid, asked, returned = min(coming, key=lambda piece: (piece[0], piece[3]))
        since = max((end for begin, end, *_ in pieces if end <= moment and end > begin), default=-(10**9))
        if asked <= moment:
            late = max(returned, since) + 10_000
            return "launching" if moment < returned else "start latency" if moment < late else "launched, not started"
    else:
        tid = MAIN
    cause = slow_innermost(moment, threads[tid])
    if tid == MAIN and other and cause in ("nothing recorded", "code between operators"):
        second = slow_innermost(moment, threads[other])
        if cause == "nothing recorded" or second in BUSY:
            return second
    if tid == BACKWARD and cause == "nothing recorded":
        return slow_innermost(moment, threads[MAIN])
    return cause


def slow_innermost(moment, slices):
    opened = [name for name, start, end in slices if start <= moment < end]
    cause = ("launching" if opened[-1] == "launch" else OURS[opened[-1]][1]) if opened else "nothing recorded"
    has_more = cause in ("requesting memory", "waiting for the device")
    return "waiting for data" if LOADER in opened and not has_more else cause


def slow_queue(step, pieces):
    found = [0, 0, 0, 0]
    for moment in step:
        depth = sum(asked <= moment < began for began, _, _, asked, _ in pieces)
        found[(depth > 0) + (depth > 10)] += 1
    return found


# --- on twins of recordings, and on recordings


@pytest.mark.parametrize("name", TRACES)
def test_all_parts_sum_to_the_wall(traces, name):
    trace = read(traces / f"{name}.json.gz")
    marks = step_marks.find(trace)
    for number in (None, *device.numbers(trace)) if trace.is_device_traced else ():
        found = device_time.idle(trace, number)
        spent = np.zeros(len(marks.start), np.int64)
        np.add.at(spent, found.step, found.length)
        assert (spent + device_time.work(trace, number).sum(axis=1) == marks.end - marks.start).all()
        assert (found.start[1:] >= found.end[:-1]).all()
        assert (found.length > 0).all()
        if number == -1:
            assert device_time.work(trace).shape[1] == len(device.CLASSES) + 1
            assert (device_time.queue(trace).sum(axis=1) == marks.end - marks.start).all()


@pytest.mark.parametrize("name", TRACES)
def test_busy_and_idle_of_the_step_table_match_the_partition(traces, name):
    """Busy is any work within the wall, whoever launched it; idle is what all causes take of it, and all gaps."""
    trace = read(traces / f"{name}.json.gz")
    marks, table = step_marks.find(trace), steps.table(trace)
    if not trace.is_device_traced:
        assert table["device_busy_ms"].null_count() == table["busy_ms"].null_count() == table.height
        return
    found = device_time.idle(trace)
    spent = np.zeros(len(marks.start), np.int64)
    np.add.at(spent, found.step, found.length)
    wall = marks.end - marks.start
    assert table["device_busy_ms"].to_list() == ((wall - spent) * 1e-6).tolist()
    assert table["device_idle_ms"].to_list() == (spent * 1e-6).tolist()
    listed = gaps.table(trace, np.ones(len(wall), np.bool_))
    assert listed.height == 10 or listed["gap_ms"].sum() == pytest.approx(spent.sum() * 1e-6)
