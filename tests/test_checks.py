"""Each doubt about a trace has a case that raises it, and a sound one that does not."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from twins import TRACES

from perfhooks import testing
from perfhooks.testing import kernel, launch, op, slice_event, step_mark
from perfhooks.trace import read
from perfhooks.trace.tables import checks

STEPS, KERNELS = 4, 10
COUNTS = "INFO:2024 CuptiActivityProfiler.cpp:341] Record counts: "
NONE = "Out-of-range = 0, Blocklisted runtime = 9, Invalid ext correlations = 0, CPU GPU out-of-order = 0, "
NONE += "CUPTI stopped early? = 0"


def sound(without=(), *, kernels=KERNELS):
    """Four steps of 1000 ns, each launching kernels that run a little later; kernels left out by correlation."""
    events = []
    for step in range(STEPS):
        events.append(step_mark(step, 1000 * step, 1000 * (step + 1)))
        events.append(op("aten::mm", 1000 * step, 1000 * step + 900))
        for place in range(kernels):
            number, time = 1 + KERNELS * step + place, 1000 * step + 50 * place
            events.append(launch(number, time, time + 10))
            if number not in without:
                events.append(kernel(number, time + 20, time + 40))
    return events


def found(tmp_path, events, **metadata):
    return checks.table(read(testing.write_trace(tmp_path / "t.json", events, **metadata))).rows(named=True)


def only(tmp_path, events, **metadata):
    (row,) = found(tmp_path, events, **metadata)
    return row


def test_a_sound_trace_raises_no_doubt(tmp_path):
    assert found(tmp_path, sound(), INFO=[COUNTS + NONE, "INFO: Tracing starting in 6s"], WARNING=[], ERROR=[]) == []


def test_trace_of_the_host_has_no_doubts(tmp_path):
    assert found(tmp_path, [event for event in sound() if event["cat"] in ("user_annotation", "cpu_op")]) == []


def test_a_trace_without_events_that_count_raises_none(tmp_path):
    assert found(tmp_path, [testing.memory(5, 64)]) == []


def test_damage_is_reported(tmp_path):
    path = testing.write_trace(tmp_path / "t.json", sound())
    text = path.read_bytes()
    path.write_bytes(text[: len(text) * 9 // 10].replace(b'"ts": 0.05', b'"ts": null', 1))
    names = {row["name"]: row["severity"] for row in checks.table(read(path)).rows(named=True)}
    assert names["cut-off"] == "error"
    assert names["records-without-time"] == "warning"


def test_torn_archive_is_reported(tmp_path):
    path = tmp_path / "t.json.gz"
    data = gzip.compress(testing.write_trace(tmp_path / "t.json", sound()).read_bytes())
    path.write_bytes(data[:-20])
    assert "cut-off" in checks.table(read(path))["name"].to_list()


def test_launches_without_kernel(tmp_path):
    row = only(tmp_path, sound(without={13, 25}))
    assert (row["severity"], row["name"], row["count"]) == ("warning", "launches-without-kernel", 2)
    assert "2 of 40" in row["text"]
    assert row["first"] == "0.0011 ms: cudaLaunchKernel"


def test_the_device_was_not_recorded_to_the_end(tmp_path):
    rows = found(tmp_path, sound(without=range(32, 41)))
    assert [(row["severity"], row["name"], row["count"]) for row in rows] == [
        ("error", "device-stopped", 9),
        ("warning", "step-with-few-kernels", 1),
    ]


def test_early_end_of_the_recorder_is_reported(tmp_path):
    row = only(tmp_path, sound(), INFO=[COUNTS + NONE.replace("early? = 0", "early? = 1")])
    assert (row["severity"], row["name"]) == ("error", "device-stopped")
    rows = found(tmp_path, sound(), WARNING=["GPU collection stopped early: buffer limit reached"])
    assert [row["name"] for row in rows] == ["device-stopped", "log-warnings"]


def test_missing_device_work_is_reported(tmp_path):
    row = only(tmp_path, sound(without=range(100)))
    assert (row["severity"], row["name"], row["count"]) == ("error", "no-device-work", 40)


def test_trace_of_counters_reports_no_lost_kernels(tmp_path):
    """Its kernels are not lost: the range profiler of CUPTI times none."""
    ranges = [slice_event("cuda_profiler_range", "gemm", 10, 20, pid=0, tid=0, smsp__inst=7)]
    row = only(tmp_path, sound(without=range(100)) + ranges)
    assert (row["severity"], row["name"], row["count"]) == ("info", "counters-only", 1)


@pytest.mark.parametrize(("kernels", "severity"), [(1, "info"), (2, "warning")])
def test_kernels_without_launch(tmp_path, kernels, severity):
    extra = [kernel(900 + number, 500 + number, 510 + number, stream=9) for number in range(kernels)]
    row = only(tmp_path, sound() + extra)
    assert (row["severity"], row["name"], row["count"]) == (severity, "kernels-without-launch", kernels)


def test_kernels_without_launches_are_reported_without_calls(tmp_path):
    row = only(tmp_path, [event for event in sound() if event["cat"] != "cuda_runtime"])
    assert (row["severity"], row["count"]) == ("info", 40)
    assert "the step in which it ran" in row["text"]


def test_work_launched_before_the_window(tmp_path):
    """Its correlation id is below the smallest of any call; it is told apart from work whose launch was lost."""
    events = [event for event in sound() if event["cat"] != "cuda_runtime" or event["args"]["correlation"] > 10]
    row = only(tmp_path, [event for event in events if event["name"] != "ProfilerStep#0"])
    assert (row["severity"], row["name"], row["count"]) == ("info", "launched-before-window", 10)
    assert "in no step" in row["text"]
    assert "(0.2 us)" in row["text"]


def without_number(event, number):
    """The same event without a correlation id; some recorders write 0 instead."""
    args = {name: value for name, value in event["args"].items() if name != "correlation"}
    return event | {"args": args if number is None else args | {"correlation": number}}


@pytest.mark.parametrize("number", [None, 0, -1])
def test_calls_and_kernels_without_numbers_are_not_linked(tmp_path, number):
    """Nothing tells that one launched the other, that the call lost its kernel, or that the kernel came before all."""
    extra = [without_number(each, number) for each in (launch(0, 500, 510), kernel(0, 520, 530, stream=9))]
    row = only(tmp_path, sound() + extra)
    assert (row["name"], row["count"]) == ("kernels-without-launch", 1)
    trace = read(tmp_path / "t.json")
    assert trace.launches.tolist().count(-1) == 1
    assert found(tmp_path, [*sound(), extra[0]]) == []


@pytest.mark.parametrize("number", [None, 0])
def test_call_without_a_number_keeps_work_from_before_the_window(tmp_path, number):
    events = [event for event in sound() if event["cat"] != "cuda_runtime" or event["args"]["correlation"] > 10]
    events = [event for event in events if event["name"] != "ProfilerStep#0"]
    row = only(tmp_path, [*events, without_number(launch(0, 1500, 1505), number)])
    assert (row["name"], row["count"]) == ("launched-before-window", 10)


def test_kernels_before_their_launch(tmp_path):
    row = only(tmp_path, [*sound(), launch(77, 600, 610), kernel(77, 570, 590, name="early", stream=9)])
    assert (row["severity"], row["name"], row["count"]) == ("error", "kernels-before-launch", 1)
    assert "by up to 0.03 us" in row["text"]
    assert row["first"] == "0.00057 ms: early"


def test_a_kernel_during_its_launch_is_in_order(tmp_path):
    assert found(tmp_path, [*sound(), launch(77, 600, 650), kernel(77, 610, 620, stream=9)]) == []


@pytest.mark.parametrize("step", range(STEPS))
def test_step_with_lost_kernels_is_reported(tmp_path, step):
    lost = range(1 + KERNELS * step, 1 + KERNELS * step + 3)
    rows = {row["name"]: row for row in found(tmp_path, sound(without=lost))}
    row = rows["step-with-few-kernels"]
    assert (row["severity"], row["count"]) == ("warning", 1)
    assert row["text"].startswith(f"step {step}: 7 kernels, its neighbours 10")
    assert row["first"] == f"{step / 1000:g} ms: step {step}"


def test_a_step_that_did_less(tmp_path):
    events = [event for event in sound() if not 2000 <= event["ts"] * 1000 < 2400 or event["cat"] == "user_annotation"]
    row = only(tmp_path, events)
    assert (row["severity"], row["name"]) == ("info", "step-with-few-kernels")


def test_four_fifths_of_the_kernels_are_enough(tmp_path):
    names = [row["name"] for row in found(tmp_path, sound(without={11, 12}))]
    assert names == ["launches-without-kernel"]


def test_overlapping_step_marks(tmp_path):
    events = [event for event in sound() if event["name"] != "ProfilerStep#2"]
    row = only(tmp_path, [*events, step_mark(2, 1900, 3000)])
    assert (row["severity"], row["name"], row["count"]) == ("warning", "overlapping-steps", 1)
    assert row["first"].endswith("step 2")


def test_marks_of_two_threads_may_overlap(tmp_path):
    assert found(tmp_path, [*sound(), step_mark(0, 10, 1500, tid=9), step_mark(1, 1500, 2600, tid=9)]) == []


@pytest.mark.parametrize(("number", "text"), [(7, "step 7 follows step 1"), (1, "step 1 follows step 1")])
def test_missing_step_marks(tmp_path, number, text):
    events = [event for event in sound() if event["name"] not in ("ProfilerStep#2", "ProfilerStep#3")]
    rows = found(tmp_path, [*events, step_mark(number, 2000, 3000)])
    assert [row["name"] for row in rows] == ["missing-steps"]
    assert text in rows[0]["text"]


def test_launches_captured_into_a_graph_are_no_lost_kernels(tmp_path):
    lost = range(31, 41)
    edges = [launch(80, 2990, 2995, name="cudaStreamBeginCapture"), launch(81, 3900, 3910, name="cudaStreamEndCapture")]
    assert {row["severity"] for row in found(tmp_path, [*sound(without=lost), *edges])} == {"info"}
    elsewhere = [event | {"tid": 9} for event in edges]
    assert found(tmp_path, [*sound(without=lost), *elsewhere])[0]["name"] == "device-stopped"


@pytest.mark.parametrize(
    "busy",
    [
        [op("CUDAGraphNode.record (dynamo_timed)", 10, 3000)],
        [op("inductor_compile (dynamo_timed)", 0, 800), op("backend_compile (dynamo_timed)", 900, 2100)],
        [launch(80, 100, 110, name="cudaStreamBeginCapture"), launch(81, 2900, 2910, name="cudaStreamEndCapture")],
    ],
)
def test_window_that_mostly_compiles_or_captures_is_a_start(tmp_path, busy):
    rows = {row["name"]: row for row in found(tmp_path, sound() + busy)}
    assert rows["recorded-a-start"]["severity"] == "warning"
    assert "record later" in rows["recorded-a-start"]["text"]


@pytest.mark.parametrize(("worked", "names"), [(0, ["recorded-a-start"]), (400_000_000, [])])
def test_long_launches_on_an_idle_device_are_start_up(tmp_path, worked, names):
    """While it works, they wait for room in its queue."""
    events = [step_mark(0, 0, 500_000_000), launch(1, 10, 400_000_000), kernel(1, 400_000_100, 400_000_200)]
    events += [launch(2, 1, 5), kernel(2, 6, 6 + worked, name="other")]
    assert [row["name"] for row in found(tmp_path, events)] == names


def test_a_window_that_compiles_now_and_then_did_not(tmp_path):
    assert found(tmp_path, [*sound(), op("inductor_compile (dynamo_timed)", 0, 1900)]) == []


def test_no_step_marks(tmp_path):
    row = only(tmp_path, [event for event in sound() if event["cat"] != "user_annotation"])
    assert (row["severity"], row["name"]) == ("info", "no-steps")


@pytest.mark.parametrize(
    ("name", "severity"),
    [("Out-of-range", "info"), ("Invalid ext correlations", "warning"), ("CPU GPU out-of-order", "warning")],
)
@pytest.mark.parametrize("listed", [True, False], ids=["list", "text"])
def test_counts_in_the_log_of_kineto_are_reported(tmp_path, name, severity, listed):
    line = COUNTS + NONE.replace(f"{name} = 0", f"{name} = 4181")
    row = only(tmp_path, sound(), INFO=[line] if listed else line)
    assert (row["severity"], row["name"], row["count"]) == (severity, "records-dropped", 4181)


def test_warnings_of_the_recorder_are_reported(tmp_path):
    row = only(tmp_path, sound(), WARNING=["one thing", "another"], ERROR=[7, None])
    assert (row["severity"], row["name"], row["count"], row["first"]) == ("info", "log-warnings", 2, "one thing")


@pytest.mark.parametrize("log", [7, {"a": 1}, [[], {}], None, [COUNTS + "Out-of-range = " + "9" * 40]])
def test_odd_log_causes_no_false_doubt(tmp_path, log):
    assert {row["name"] for row in found(tmp_path, sound(), INFO=log)} <= {"records-dropped"}


def test_log_that_no_file_can_hold_is_reported(tmp_path):
    row = only(tmp_path, sound(), WARNING=["lone \ud800 surrogate"])
    assert row["first"] == "lone ? surrogate"


def overhead(start, end, name="Activity Buffer Request"):
    return slice_event("overhead", name, start, end, pid=-1, tid=0)


@pytest.mark.parametrize(("span", "severities"), [(10, ["info"]), (100, ["warning", "info"]), (300, ["warning"] * 2)])
def test_recording_cost_inside_the_steps_is_reported(tmp_path, span, severities):
    rows = found(tmp_path, [*sound(), overhead(500, 500 + span)])
    assert [row["severity"] for row in rows] == severities
    assert [row["name"] for row in rows] == ["buffer-requests", "profiler-overhead"][: len(severities)]


def test_recording_cost_outside_of_the_steps_is_no_doubt(tmp_path):
    assert found(tmp_path, [*sound(), overhead(4100, 9000)]) == []


def test_other_overhead_is_reported_with_its_names(tmp_path):
    row = only(tmp_path, [*sound(), overhead(100, 200, "Buffer Flush"), overhead(300, 400, "Instrumentation")])
    assert (row["severity"], row["name"], row["count"]) == ("warning", "profiler-overhead", 2)
    assert "Buffer Flush, Instrumentation" in row["text"]


@pytest.mark.parametrize(
    "name", ["Command Buffer Full", "Lazy Function Loading", "Runtime Triggered Module Loading", "Driver Compiler"]
)
def test_time_of_the_driver_is_no_profiler_overhead(tmp_path, name):
    rows = found(tmp_path, [*sound(), overhead(500, 800, name)])
    assert "profiler-overhead" not in {row["name"] for row in rows}


def test_most_serious_doubts_come_first(tmp_path):
    events = [
        *sound(without={13}),
        overhead(500, 510),
        kernel(900, 5000, 5010),
        launch(77, 600, 610),
        kernel(77, 500, 501),
    ]
    severities = [row["severity"] for row in found(tmp_path, events)]
    assert severities == sorted(severities, key=checks.SEVERITIES.index)
    assert len(set(severities)) == 3


PLANTED = {
    "a100-ddp2-train": ["records-dropped"],
    "b200-eager-stacks-shapes": ["buffer-requests", "no-steps", "profiler-overhead"],
    "mi250-minitoy-train": ["recorded-a-start"],
    "mi210-gpu-only": ["no-steps"],
    "triton-compile": ["no-steps"],
    "alexnet-cuda-sync": ["recorded-a-start", "no-steps"],
}


@pytest.mark.parametrize("name", TRACES)
def test_sound_traces_of_any_dialect_raise_no_false_alarm(traces, name):
    assert checks.table(read(traces / f"{name}.json.gz"))["name"].to_list() == PLANTED.get(name, [])


# Looked at one by one: what is said of these traces is true of them.
REAL = {
    "a100-ddp2-train-3steps": [("info", "records-dropped", 4181)],
    "v100-resnet-train-5steps": [("info", "records-dropped", 3829)],
    "b200-eager-stacks-shapes": [
        ("warning", "buffer-requests", 1),
        ("info", "no-steps", 1),
        ("info", "profiler-overhead", 1),
    ],
    # torch's last mark ends with the recording, and nothing ran in it
    "mi250-minitoy-train": [("warning", "recorded-a-start", 1), ("info", "step-with-few-kernels", 1)],
    "mi210-gpu-only": [("info", "no-steps", 1)],
    "triton-compile": [("info", "no-steps", 1)],
    "alexnet-cuda-sync": [("warning", "recorded-a-start", 1), ("info", "no-steps", 1)],
}


def test_real_traces_raise_no_false_alarm(recordings):
    for path in recordings.glob("*.json.gz"):
        table = checks.table(read(path))
        assert table.select("severity", "name", "count").rows() == REAL.get(path.name.removesuffix(".json.gz"), [])


def test_every_check_is_explained():
    source = Path(checks.__file__).read_text(encoding="utf-8")
    names = re.findall(r'Check\((?:"\w+"|severity), "([\w-]+)"', source)
    assert len(names) > 10
    page = (Path(__file__).parents[1] / "docs/traces.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in page] == []
