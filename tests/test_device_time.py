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
from perfhooks.testing import annotation, kernel, launch, op, python_frame, slice_event, step_mark
from perfhooks.trace import read
from perfhooks.trace.nesting import device, step_marks
from perfhooks.trace.tables import device_time, gaps, idle, steps
from perfhooks.trace.tables.device_time import CAUSES, PLACES

US = 1000
MAIN, BACKWARD = testing.PID, 7
GRAPH = "cudaGraphLaunch"


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


def told(folder, *between, end=100 * US, asked=(80 * US, 85 * US), ran=(90 * US, 95 * US), tid=MAIN):
    """What idle time is for if some events lie between a first work, which ends at 10 us, and a second one."""
    first = work(1, (0, 1), (2, 10 * US))
    return causes(device_time.idle(trace_of(folder, [step_mark(0, 0, end), *first, *between, *work(2, asked, ran)])))


def test_idle_time_is_split_at_the_launch_of_the_next_work(tmp_path):
    """Ten microseconds after the launch are latency; what is longer has no reason in the trace."""
    found = told(tmp_path, op("aten::mm", 10 * US, 50 * US), asked=(60 * US, 65 * US), ran=(80 * US, 90 * US))
    assert found == {
        "nothing recorded": 2 + 10 * US + 10 * US - 1 - 1,
        "operators on the host": 40 * US,
        "launching": 1 + 5 * US,
        "start latency": 1 + 10 * US,
        "launched, not started": 5 * US,
    }


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (launch(9, 20 * US, 50 * US, name="cudaStreamSynchronize"), "waiting for the device"),
        (launch(9, 20 * US, 50 * US, name="cudaMalloc"), "requesting memory"),
        (launch(9, 20 * US, 50 * US, name="cudaEventQuery"), "calls of the runtime"),
        (annotation(LOADER, 20 * US, 50 * US), "waiting for data"),
        (annotation("validation", 20 * US, 50 * US), "validating"),
        (annotation("checkpoint", 20 * US, 50 * US), "checkpointing"),
        (annotation("gloo:all_reduce", 20 * US, 50 * US), "waiting for other ranks"),
        (annotation("_compile.compile_inner (dynamo_timed)", 20 * US, 50 * US), "compiling"),
        (python_frame("Python GC", 20 * US, 50 * US), "collecting garbage"),
        (op("aten::roll", 20 * US, 50 * US), "operators on the host"),
        (python_frame("train.py(3): prepare", 20 * US, 50 * US), "code between operators"),
        (annotation("mine", 20 * US, 50 * US), "code between operators"),
    ],
)
def test_activity_of_the_launching_thread_is_the_cause(tmp_path, event, cause):
    assert told(tmp_path, event)[cause] == 30 * US


def test_innermost_activity_decides_the_cause(tmp_path):
    """Nothing is given to whatever lasts for half of the time; a wait in a fetch is a wait for the device."""
    found = told(
        tmp_path,
        annotation(LOADER, 10 * US, 60 * US),
        python_frame("data.py(3): load", 10 * US, 70 * US),
        op("aten::roll", 20 * US, 30 * US),
        launch(9, 30 * US, 36 * US, name="cudaStreamSynchronize"),
    )
    assert (found["waiting for data"], found["waiting for the device"]) == (44 * US, 6 * US)
    assert found["code between operators"] == 10 * US


def test_idle_launching_thread_yields_to_the_step_thread(tmp_path):
    """autograd launches the next work; before it began, the loop computed a loss."""
    events = [op("aten::roll", 10 * US, 60 * US), op("MulBackward0", 70 * US, 88 * US, tid=BACKWARD)]
    found = told(tmp_path, *events, asked=(80 * US, 85 * US), tid=BACKWARD)
    assert found["operators on the host"] == 50 * US
    first = [step_mark(0, 0, 100 * US), *work(1, (0, 1), (2, 10 * US))]
    second = work(2, (80 * US, 85 * US), (90 * US, 95 * US), tid=BACKWARD)
    found = causes(device_time.idle(trace_of(tmp_path, [*first, *events, *second])))
    assert found["operators on the host"] == 60 * US


def test_operators_count_while_the_loop_waits_for_backward(tmp_path):
    """The optimizer launches the next work; until its operator, it was autograd's that kept it waiting."""
    frame = python_frame("train.py(9): step", 0, 100 * US)
    events = [step_mark(0, 0, 100 * US), frame, *work(1, (5 * US, 6 * US), (7 * US, 10 * US), tid=BACKWARD)]
    events += [op("MulBackward0", 4 * US, 60 * US, tid=BACKWARD), *work(2, (80 * US, 85 * US), (90 * US, 100 * US))]
    found = causes(device_time.idle(trace_of(tmp_path, events)))
    assert (found["operators on the host"], found["code between operators"]) == (1 * US + 50 * US, 4 * US + 20 * US)


def test_device_is_inside_a_graph_between_nodes_of_a_replay(tmp_path):
    """What its host prepares before the replay is not; so a decode loop is bound by its host."""
    events = [step_mark(0, 0, 100 * US), python_frame("decode.py(1): prepare", 0, 40 * US)]
    events += [launch(5, 40 * US, 50 * US, name=GRAPH), kernel(5, 55 * US, 60 * US), kernel(5, 68 * US, 100 * US)]
    found = causes(device_time.idle(trace_of(tmp_path, events)))
    assert found == {
        "code between operators": 40 * US,
        "launching": 10 * US,
        "start latency": 5 * US,
        "inside a graph": 8 * US,
    }


def test_wait_for_an_event_of_the_same_stream_is_a_cause(tmp_path):
    """Only that of the same stream counts, and only what came after the work launched there before."""

    def event(number, at, stream):
        args = {"correlation": number, "stream": stream, "device": 0}
        waits = slice_event("cuda_sync", "Stream Wait Event", at, at + 2, pid=0, tid=stream, **args)
        return [launch(number, at, at + 2, name="cudaStreamWaitEvent"), waits]

    late = {"asked": (11 * US, 12 * US), "ran": (80 * US, 90 * US)}
    assert told(tmp_path, *event(9, 10 * US, 7), **late)["waiting for other work"] == 58 * US
    assert told(tmp_path, *event(9, 10 * US, 8), **late)["launched, not started"] == 58 * US
    assert told(tmp_path, *event(9, 0, 7), **late)["launched, not started"] == 58 * US


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


def test_launch_in_a_full_queue_record_waits_for_the_queue(tmp_path):
    """Without a thousand launches in the trace: some may be older."""
    full = slice_event("overhead", "Command Buffer Full", 25 * US, 75 * US, pid=-1, tid=0)
    late = {"asked": (20 * US, 80 * US), "ran": (82 * US, 90 * US)}
    assert told(tmp_path, full, **late)["full queue"] == 60 * US
    assert told(tmp_path, **late)["launching"] == 60 * US + 1


def test_work_without_a_launch_does_not_describe_the_host(tmp_path):
    events = [step_mark(0, 0, 100), op("aten::mm", 0, 90), *work(8, (0, 1), (2, 10)), kernel(5, 50, 100)]
    assert causes(device_time.idle(trace_of(tmp_path, events)))["launch not recorded"] == 40


def test_idle_time_before_and_after_the_work_is_included(tmp_path):
    """They are idle like all else: most of a step may lie there."""
    events = [step_mark(0, 0, 100), step_mark(1, 100, 200), op("aten::mm", 100, 190)]
    events += [*work(1, (10, 12), (30, 50)), *work(2, (110, 120), (150, 160))]
    found = device_time.idle(trace_of(tmp_path, events))
    places = [0, 0, 0]
    for place, length, step in zip(found.place, found.length, found.step, strict=True):
        places[place] += int(length) if step == 0 else 0
    assert dict(zip(PLACES, places, strict=True)) == {
        "before the first work": 30,
        "between": 0,
        "after the last work": 50,
    }


def test_work_of_a_step_is_split_by_class_and_from_other_steps(tmp_path):
    events = [
        step_mark(0, 0, 100),
        step_mark(1, 100, 200),
        *work(1, (10, 12), (30, 60)),
        *work(2, (12, 14), (50, 70), name="ncclDevKernel_AllReduce", stream=9),
        *work(3, (14, 16), (90, 130), category="gpu_memcpy"),
        *work(4, (110, 112), (120, 140), stream=9),
    ]
    found = device_time.work(trace_of(tmp_path, events)).tolist()
    assert found == [[30, 10, 10, 0, 0], [20, 0, 0, 0, 20]]


def test_devices_have_their_own_idle_times(tmp_path):
    events = [step_mark(0, 0, 100), *work(1, (0, 1), (10, 50), device=0), *work(2, (1, 2), (40, 90), device=1)]
    trace = trace_of(tmp_path, events)
    assert [sum(causes(device_time.idle(trace, each)).values()) for each in (None, 0, 1)] == [20, 60, 50]
    table = idle.table(trace, np.array([True]))
    sums = {device: round(rows["idle_ms"].sum() * 1e6) for (device,), rows in table.group_by("device")}
    assert sums == {None: 20, 0: 60, 1: 50}


def test_the_table_names_operator_and_line(tmp_path):
    events = [
        step_mark(3, 0, 100 * US),
        python_frame("train.py(3): main", 0, 100 * US),
        python_frame("clip.py(9): resize", 20 * US, 50 * US),
        python_frame("<built-in method resize>", 20 * US, 40 * US),
        op("aten::roll", 50 * US, 60 * US),
        *work(1, (90 * US, 91 * US), (91 * US, 100 * US)),
    ]
    table = idle.table(trace_of(tmp_path, events), np.array([True]), by_step=True)
    rows = table.select("step", "cause", "place", "name", "line", "idle_ms").rows()
    first = "before the first work"
    assert [(*row[:-1], round(row[-1] * 1000)) for row in rows] == [
        (3, "code between operators", first, None, "train.py(3): main", 50),
        (3, "code between operators", first, None, "clip.py(9): resize", 30),
        (3, "operators on the host", first, "aten::roll", "train.py(3): main", 10),
        (3, "launching", first, "cudaLaunchKernel", None, 1),
    ]


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


def test_trace_without_a_device_has_no_row(tmp_path):
    trace = trace_of(tmp_path, [step_mark(0, 0, 100), op("a", 0, 5)])
    assert idle.table(trace, np.array([True])).height == 0
    assert len(device_time.idle(trace).start) == 0


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
