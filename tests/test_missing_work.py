"""Doubtful device records have consequences: empty columns, means and headlines of the other steps, no findings."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import numpy as np
import polars as pl
import pytest

from perfhooks import testing
from perfhooks.analysis import findings
from perfhooks.report.page import window_data
from perfhooks.report.page.headline import of_window, summary
from perfhooks.report.page.markdown import of_trace
from perfhooks.run.capture import Capture
from perfhooks.testing import kernel, launch, op, step_mark
from perfhooks.trace import read
from perfhooks.trace.window import Tables

MS, US = 1_000_000, 1_000
CAPTURE = Capture(stage="train", last=0)
STEPS = range(10, 15)


def training(steps=STEPS, *, each=10, span=800 * US, operator="aten::mm", offset=0):
    """Steps of 10 ms with so many kernels each; every kernel runs 50 us after its launch."""
    events, number = [], 0
    for place, step in enumerate(steps):
        events.append(step_mark(step, 10 * MS * place, 10 * MS * (place + 1)))
        for index in range(each):
            number += 1
            at = 10 * MS * place + 100 * US + index * (9_500 * US // each)
            events.append(op(operator, at, at + 30 * US, external=number))
            events.append(launch(number, at + 5 * US, at + 13 * US, external=number))
            start = at + 55 * US + offset
            events.append(kernel(number, start, start + span, name="ampere_sgemm_128x64_tn", external=number))
    return events


def kernels_of(events, step):
    begin = 10 * MS * STEPS.index(step) / 1000
    return [event for event in events if event.get("cat") == "kernel" and begin <= event["ts"] < begin + 10_000]


def seen(tmp_path, events, **metadata):
    trace = read(testing.write_trace(tmp_path / "t.json", events, **metadata))
    tables = Tables(trace)
    return trace, tables.steps, set(tables.checks["name"]) - {"no-steps"}


DEVICE = (
    *("device_span_ms", "busy_ms", "idle_ms", "compute_ms", "comm_ms", "exposed_comm_ms", "exposed_copy_ms"),
    *("other_work_ms", "device_busy_ms", "device_idle_ms", "kernels"),
)


def is_empty(table, *steps):
    row = table.filter(table["step"].is_in(steps)).select(DEVICE)
    return row.null_count().row(0) == (len(steps),) * len(DEVICE)


def is_full(table, *steps):
    return sum(table.filter(table["step"].is_in(steps)).select(DEVICE).null_count().row(0)) == 0


@pytest.mark.parametrize("lost", [(), (12,), (11, 13)])
def test_gaps_between_kernels_exclude_lost_work(tmp_path, lost):
    """Nine gaps of 0.15 ms in each step of 10 ms, and one of 0.65 ms between two steps."""
    gone = [event for step in lost for event in kernels_of(training(), step)]
    trace, *_ = seen(tmp_path, [event for event in training() if event not in gone])
    gaps = {(): (45 * 0.15 + 4 * 0.65) / 49, (12,): (36 * 0.15 + 2 * 0.65) / 38, (11, 13): 0.15}
    assert Tables(trace).kernels.select("gap_before_ms", "gap_after_ms").row(0) == pytest.approx([gaps[lost]] * 2)


def test_a_sound_recording_has_no_doubt(tmp_path):
    trace, table, doubts = seen(tmp_path, training())
    assert (doubts, is_full(table, *STEPS)) == (set(), True)
    assert "device busy 80%" in of_window(CAPTURE, trace)


@pytest.mark.parametrize("lost", [1, 3, 10])
@pytest.mark.parametrize("step", [10, 12, 14])
def test_a_step_that_lost_kernels_is_empty_and_in_no_mean(tmp_path, lost, step):
    events = training()
    gone = kernels_of(events, step)[:lost]
    trace, table, doubts = seen(tmp_path, [event for event in events if event not in gone])
    assert doubts & {"launches-without-kernel", "device-stopped", "step-with-few-kernels"}
    assert is_empty(table, step)
    assert is_full(table, *set(STEPS) - {step})
    assert "device busy 80%" in of_window(CAPTURE, trace)
    assert summary(table)["busy_share"] == pytest.approx(0.8)
    evidence = findings.Evidence(CAPTURE, trace)
    assert step not in evidence.steps["step"]
    assert set(Tables(trace).idle(["step"])["step"]) == set(STEPS) - {step}


LOST = {
    (12,): "steps 10-14 without 12",
    (10,): "steps 11-14",
    (13, 14): "steps 10-12",
    (11, 13): "steps 10-14 without 11 and 13",
    (11, 12): "steps 10-14 without 11 and 12",
    (10, 11, 13, 14): "step 12",
}


@pytest.mark.parametrize("lost", LOST)
def test_every_output_names_the_steps_of_its_means(tmp_path, lost):
    events = training()
    gone = [event for step in lost for event in kernels_of(events, step)]
    path = testing.write_trace(tmp_path / "t.json", [event for event in events if event not in gone])
    trace = read(path)
    assert of_window(CAPTURE, trace).startswith(f"{LOST[lost]}: 10 ms, ")
    steps = window_data.reduce(CAPTURE, trace)["steps"]
    assert steps["usual_steps"] == LOST[lost]
    assert steps["is_usual"] == [step not in lost for step in STEPS]
    assert steps["usual"]["busy_share"] == pytest.approx(0.8)
    text = of_trace(path)
    assert f"(profiled {LOST[lost]}), 80% device busy" in text
    assert f"Profiled {LOST[lost]}:" in text


def test_many_gaps_between_the_steps_of_a_mean_are_counted(tmp_path):
    events = training(range(10, 18))
    gone = [event for event in events if event.get("cat") == "kernel" and int(event["ts"] // 10_000) in (1, 3, 5)]
    trace, *_ = seen(tmp_path, [event for event in events if event not in gone])
    assert of_window(CAPTURE, trace).startswith("5 of the steps 10-17: 10 ms, ")


def test_lost_kernels_show_without_correlations(tmp_path):
    """A recorder that loses the launches' numbers as well leaves the counts of neighbours."""
    events = training()
    gone = kernels_of(events, 12)
    numbers = {event["args"]["correlation"] for event in gone}
    for event in events:
        if event.get("cat") == "cuda_runtime" and event["args"]["correlation"] in numbers:
            del event["args"]["correlation"]
    _, table, doubts = seen(tmp_path, [event for event in events if event not in gone])
    assert "step-with-few-kernels" in doubts
    assert is_empty(table, 12)


def test_two_steps_in_a_row_that_lost_kernels_are_found_without_launches(tmp_path):
    events = [event for event in training() if event.get("cat") != "cuda_runtime"]
    gone = [*kernels_of(events, 12)[6:], *kernels_of(events, 13)[:4]]
    _, table, doubts = seen(tmp_path, [event for event in events if event not in gone])
    assert "step-with-few-kernels" in doubts
    assert is_empty(table, 12, 13)
    assert is_full(table, 10, 11, 14)


def behind():
    """A device that needs 12 ms for the work of a step of 10 ms."""
    events = training(span=1200 * US)
    end = 0.0
    for event in sorted((event for event in events if event.get("cat") == "kernel"), key=lambda event: event["ts"]):
        event["ts"] = max(event["ts"], end)
        end = event["ts"] + event["dur"]
    return events


def launched_in(events, step):
    begin = 10_000 * STEPS.index(step)
    calls = [event for event in events if event.get("cat") == "cuda_runtime" and begin <= event["ts"] < begin + 10_000]
    numbers = {event["args"]["correlation"] for event in calls}
    return [event for event in events if event.get("cat") == "kernel" and event["args"]["correlation"] in numbers]


def test_lost_work_of_a_late_device_may_run_in_the_next_step(tmp_path):
    events = behind()
    gone = launched_in(events, 12)
    trace, table, _ = seen(tmp_path, [event for event in events if event not in gone])
    assert is_empty(table, 12)
    assert table["busy_ms"].null_count() == 1
    assert table.filter(table["device_busy_ms"].is_null())["step"].to_list() == [12, 13]
    assert "device busy 99%" in of_window(CAPTURE, trace)
    assert not {finding.rule for finding in findings.find(CAPTURE, trace)} & {"shared-device", "host-bound"}


@pytest.mark.parametrize("lost", [False, True])
def test_work_without_launches_counts_for_its_operator(tmp_path, lost):
    """A device that is behind runs few kernels during the first step, but none is lost."""
    events = [event for event in behind() if event.get("cat") != "cuda_runtime"]
    gone = [event for event in events if event.get("cat") == "kernel" and event["args"]["External id"] > 20][:10]
    _, table, doubts = seen(tmp_path, [event for event in events if not lost or event not in gone])
    assert ("step-with-few-kernels" in doubts) == lost
    assert table.filter(table["device_busy_ms"].is_null())["step"].to_list() == ([12, 13] if lost else [])


def test_another_clock_shows_on_a_device_that_is_behind(tmp_path):
    """Only work at the start of the recording runs before its launch."""
    events = behind()
    for event in events:
        event["ts"] -= 1_000 if event.get("cat") == "kernel" else 0
    _, table, doubts = seen(tmp_path, events)
    assert doubts == {"kernels-before-launch"}
    assert table["device_busy_ms"].null_count() == table.height
    assert table["busy_ms"].null_count() == 0


def test_a_step_that_launches_less_keeps_its_times(tmp_path):
    events = [event for event in training() if not (event["ts"] >= 20_000 and event["ts"] < 27_600)]
    _, table, _ = seen(tmp_path, [step_mark(12, 20 * MS, 30 * MS), *events])
    assert is_full(table, *STEPS)
    assert table["kernels"].to_list() == [10, 10, 2, 10, 10]


@pytest.mark.parametrize("offset", [-(10**18), -3600 * 10**9, -4 * MS, 10**18])
def test_different_clocks_empty_the_columns_of_the_wall(tmp_path, offset):
    trace, table, doubts = seen(tmp_path, training(offset=offset))
    assert doubts & {"kernels-before-launch", "clocks-apart"}
    assert table["device_busy_ms"].null_count() == table["device_idle_ms"].null_count() == table.height
    assert table["busy_ms"].to_list() == pytest.approx([8.0] * 5)
    assert "device" not in of_window(CAPTURE, trace)
    assert Tables(trace).idle().height == Tables(trace).gaps.height == 0
    assert not findings.Evidence(CAPTURE, trace).is_device_traced
    assert "busy_share" not in summary(table)


def test_another_clock_without_launches_empties_all(tmp_path):
    events = [event for event in training(offset=10**18) if event.get("cat") != "cuda_runtime"]
    _, table, _ = seen(tmp_path, events)
    assert is_empty(table, *STEPS)


def test_host_clock_counts_without_marks(tmp_path):
    events = [event for event in training(offset=-(10**18)) if "ProfilerStep" not in event["name"]]
    _, table, _ = seen(tmp_path, events)
    assert table["wall_ms"].item() < 50


def test_a_few_microseconds_of_drift_are_no_other_clock(tmp_path):
    _, table, doubts = seen(tmp_path, training(offset=-60 * US))
    assert doubts == {"kernels-before-launch"}
    assert is_full(table, *STEPS)


def test_kernel_with_a_wrong_time_affects_one_step(tmp_path):
    events = training()
    kernels_of(events, 13)[4]["ts"] = 5.0
    trace, table, _ = seen(tmp_path, events)
    assert is_empty(table, 13)
    assert is_full(table, 11, 12, 14)
    assert "device busy" in of_window(CAPTURE, trace)


@pytest.mark.parametrize("span", [9 * MS, 1_600 * MS])
@pytest.mark.parametrize("at", [0, 4, 7])
def test_a_kernel_that_overlaps_its_successors_ends_at_the_next(tmp_path, span, at):
    events = training()
    kernels_of(events, 12)[at]["dur"] = span / 1000
    trace, table, doubts = seen(tmp_path, events)
    assert doubts == {"overflowed-kernels"}
    assert table.filter(table["step"] == 12)["busy_ms"].item() == pytest.approx(8.15)
    assert [row["max_ms"] for row in Tables(trace).kernels.rows(named=True)] == [pytest.approx(0.95)]


def waiting(events):
    """The host waits for the device at the end of each step."""
    ends = [10 * MS * (place + 1) - 200 * US for place in range(len(STEPS))]
    return [*events, *(launch(900 + end, end, end + 190 * US, name="cudaDeviceSynchronize") for end in ends)]


@pytest.mark.parametrize(("offset", "agree"), [(30 * US, True), (1500 * US, False), (200 * MS, False)])
def test_work_that_ends_after_a_wait_for_it_has_another_clock(tmp_path, offset, agree):
    trace, table, doubts = seen(tmp_path, waiting(training(offset=offset)))
    assert doubts == (set() if agree else {"clocks-apart"})
    assert table["device_busy_ms"].null_count() == (0 if agree else table.height)
    assert table["busy_ms"].to_list() == pytest.approx([8.0] * 5)
    assert ("device busy" in of_window(CAPTURE, trace)) == agree


@pytest.mark.parametrize("begin", [-5 * MS, -(10**18), 1_736_405_443_863_674_000])
@pytest.mark.parametrize("has_waits", [True, False])
def test_waits_are_compared_at_any_time_of_the_clock(tmp_path, begin, has_waits):
    events = waiting(training()) if has_waits else training()
    shifted = [event | {"ts": Decimal(begin) / 1000 + Decimal(str(event["ts"]))} for event in events]
    encode = msgspec.json.Encoder(decimal_format="number").encode
    text = encode({"schemaVersion": 1, "traceEvents": shifted})
    (tmp_path / "t.json").write_bytes(text)
    tables = Tables(read(tmp_path / "t.json"))
    assert (tables.checks.height, is_full(tables.steps, *STEPS)) == (0, True)


def test_another_device_may_work_after_a_wait(tmp_path):
    events = training(offset=1500 * US)
    events += [launch(800, 200 * US, 210 * US), kernel(800, 300 * US, 400 * US, device=1)]
    _, table, doubts = seen(tmp_path, waiting(events))
    assert (doubts, is_full(table, *STEPS)) == (set(), True)


def test_the_last_kernel_before_a_wait_ends_with_it(tmp_path):
    """Nine kernels of 0.8 ms, and one from 8.705 to 9.99 ms."""
    events = training()
    kernels_of(events, 14)[-1]["dur"] = 1_600_000.0
    _, table, doubts = seen(tmp_path, waiting(events))
    assert doubts == {"overflowed-kernels"}
    assert table["busy_ms"].to_list() == pytest.approx([8.0] * 4 + [8.485])


def test_one_kernel_long_after_a_wait_for_it_costs_its_step(tmp_path):
    events = training()
    kernels_of(events, 12)[-1]["ts"] += 25_000
    _, table, doubts = seen(tmp_path, waiting(events))
    assert doubts == {"clocks-apart"}
    assert is_empty(table, 12)
    assert is_full(table, 10, 11, 14)


def test_kernels_of_other_streams_may_overlap(tmp_path):
    events = training()
    events.append(launch(900, 20 * US, 30 * US))
    events.append(kernel(900, 40 * US, 9 * MS, stream=9))
    _, table, doubts = seen(tmp_path, events)
    assert doubts == set()
    assert table["busy_ms"][0] == pytest.approx(8.96 + 0.0, abs=0.6)


def test_dependent_launches_keep_their_lengths(tmp_path):
    """Programmatic dependent launch: each kernel begins before the one before it ends."""
    _, table, doubts = seen(tmp_path, training(span=1000 * US))
    assert doubts == set()
    assert is_full(table, *STEPS)


def replays(*graphs, node=0):
    """A step for each graph, given as the names of its kernels."""
    events = []
    for place, names in enumerate(graphs):
        begin = 10 * MS * place
        events += [step_mark(10 + place, begin, begin + 10 * MS)]
        events += [launch(500 + place, begin + 100 * US, begin + 160 * US, name="cudaGraphLaunch")]
        for index, name in enumerate(names):
            start = begin + 300 * US + 30 * US * index
            more = {"graph_node_id": node * (1 + len(names)) + index} if node else {}
            events.append(kernel(500 + place, start, start + 25 * US, name=name, **more))
    return events


ONE, OTHER = [f"g1_k{index % 3}" for index in range(128)], [f"g2_k{index % 5}" for index in range(40)]


@pytest.mark.parametrize("short", [ONE[:112], ONE[16:], ONE[:60] + ONE[72:124]])
def test_different_replays_of_one_graph_are_a_doubt(tmp_path, short):
    trace, table, doubts = seen(tmp_path, replays(ONE, short, ONE, short))
    assert doubts == {"unequal-replays"}
    assert "replays of one graph differ by 16 kernels" in Tables(trace).checks["text"][0]
    assert is_empty(table, 11, 13)
    assert is_full(table, 10, 12)


def test_two_graphs_that_alternate_are_none(tmp_path):
    _, table, doubts = seen(tmp_path, replays(ONE, OTHER, ONE, OTHER))
    assert (doubts, is_full(table, 10, 11, 12, 13)) == (set(), True)


def test_two_graphs_of_the_same_kernels_have_other_nodes(tmp_path):
    _, table, doubts = seen(tmp_path, replays(ONE, ONE[:112], ONE, ONE[:112], node=1000))
    assert (doubts, is_full(table, 10, 11, 12, 13)) == (set(), True)


@pytest.mark.parametrize("kind", ["gpu_memcpy", "gpu_memset"])
def test_copies_without_kernels_leave_the_device_unknown(tmp_path, kind):
    events = [event for event in training() if event.get("cat") != "kernel"]
    for number in range(5):
        at = 10 * MS * number + 8 * US
        events.append(launch(800 + number, at, at + 5 * US, name="cudaMemcpyAsync"))
        events.append(kernel(800 + number, at + 20 * US, at + 50 * US, name="Memcpy HtoD", category=kind))
    trace, table, doubts = seen(tmp_path, events)
    assert doubts == {"no-compute-kernels", "launches-without-kernel", "device-stopped"}
    assert is_empty(table, *STEPS)
    assert "device" not in of_window(CAPTURE, trace)


@pytest.mark.parametrize("name", ["vllm::all_reduce", "mylib::combine"])
def test_an_operator_that_communicates_may_have_any_name(tmp_path, name):
    events = []
    for number in range(1, 13):
        at = number * 300 * US
        events += [op(name, at, at + 20 * US, external=number), launch(number, at + 5 * US, at + 9 * US)]
        events += [kernel(number, at + 20 * US, at + 270 * US, name="ncclDevKernel_AllGather_RING_LL", stream=9)]
    _, table, doubts = seen(tmp_path, events)
    assert doubts == set()
    assert table["comm_ms"].item() == pytest.approx(3)


def test_lost_stream_keeps_communication_times(tmp_path):
    events = [event for event in training() if event.get("cat") not in ("kernel", "cuda_runtime")]
    for number in range(5):
        at = 10 * MS * number + 6 * MS
        events.append(launch(800 + number, at, at + 5 * US))
        events.append(kernel(800 + number, at + MS, at + 3 * MS, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL"))
    _, table, doubts = seen(tmp_path, events)
    assert "no-compute-kernels" in doubts
    assert table["comm_ms"].to_list() == pytest.approx([2.0] * 5)
    assert table["compute_ms"].null_count() == table["busy_ms"].null_count() == 5


def test_device_times_of_operators_that_lost_work_are_empty(tmp_path):
    events = training()
    gone = kernels_of(events, 12)
    path = testing.write_trace(tmp_path / "t.json", [event for event in events if event not in gone])
    tables = Tables(read(path))
    total = tables.operators().filter(pl.col("name") == "aten::mm")
    assert total.select("count", "self_device_ms", "device_ms").row(0) == (50, None, None)
    by_step = tables.operators("step").filter(pl.col("name") == "aten::mm").sort("step")
    assert by_step["self_device_ms"].to_list() == [8.0, 8.0, None, 8.0, 8.0]
    text = of_trace(path)
    assert "| ampere_sgemm_128x64_tn | gemms | 40 | 32 |" in text
    assert "Operators launched" not in text


@pytest.mark.parametrize("has_launches", [True, False])
def test_device_times_of_operators_are_empty_without_kernels(tmp_path, has_launches):
    """The work of one operator was recorded, and the kernels of the other operator were lost."""
    events = [event for event in training() if event.get("cat") != "kernel"]
    events += [op("aten::copy_", 9_700 * US, 9_720 * US, external=99)]
    events += [launch(900, 9_705 * US, 9_710 * US, name="cudaMemcpyAsync", external=99)]
    events = [event for event in events if has_launches or event.get("cat") != "cuda_runtime"]
    copied = kernel(900, 9_800 * US, 9_900 * US, category="gpu_memcpy", name="Memcpy HtoD", external=99)
    rows = Tables(read(testing.write_trace(tmp_path / "t.json", [*events, copied]))).operators()
    times = dict(rows.filter(kind="op").select("name", "self_device_ms").iter_rows())
    assert times == {"aten::mm": None, "aten::copy_": pytest.approx(0.1)}


def test_device_that_only_communicates_has_known_times(tmp_path):
    events = training(operator="vllm::all_reduce")
    for event in events:
        event["name"] = event["name"].replace("ampere_sgemm_128x64_tn", "ncclDevKernel_Generic_2")
    _, table, doubts = seen(tmp_path, events)
    assert doubts == set()
    assert np.allclose(table["comm_ms"], 8.0)
    assert is_full(table, *STEPS)
