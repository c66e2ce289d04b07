"""Where the step time goes, in one line."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import polars as pl
import pytest

from perfhooks import testing
from perfhooks.core import labels
from perfhooks.report.page import window_data
from perfhooks.report.page.data import WindowData
from perfhooks.report.page.headline import described, headline, of_window, summary
from perfhooks.run.capture import Capture, Cost
from perfhooks.run.circumstances import Circumstances
from perfhooks.testing import annotation, kernel, launch, op, step_mark
from perfhooks.trace import read
from perfhooks.trace.names import step_kinds
from perfhooks.trace.tables import steps
from perfhooks.trace.window import Tables

MS = 1_000_000


def test_device_is_busy_with_any_work_in_the_wall_of_a_step(tmp_path):
    """Where the host launches ahead, a step's work goes on after it, and is that of the next one's wall."""
    events = [step_mark(0, 0, 100), launch(1, 10, 20), kernel(1, 150, 250), launch(2, 20, 30), kernel(2, 260, 340)]
    table = steps.table(read(testing.write_trace(tmp_path / "t.json", events)))
    assert headline(table).endswith("device busy 0%")
    events += [step_mark(1, 100, 300)]
    table = steps.table(read(testing.write_trace(tmp_path / "t.json", events)))
    assert headline(table).endswith("device busy 47%")
    assert summary(table)["busy_share"] == pytest.approx(140 / 300)


def test_device_is_busy_for_the_time_of_its_work():
    table = pl.DataFrame({"step": [3, 4], "wall_ms": [100.0, 100.0], "device_busy_ms": [25.0, None]})
    table = table.with_columns(pl.lit(0.0).alias(f"{part}_ms") for part in labels.PARTS)
    assert headline(table) == "step 3: 100 ms, device busy 25%"


def test_row_without_steps_is_not_called_a_step():
    table = pl.DataFrame({"step": [0], "wall_ms": [5000.0]})
    table = table.with_columns(pl.lit(0.0).alias(f"{part}_ms") for part in labels.PARTS)
    assert headline(table, unmarked="the whole recording") == "the whole recording: 5 s"
    assert Capture(first=4, last=None, reached=4).is_without_steps
    assert not Capture(first=4, last=None, reached=5).is_without_steps
    assert not Capture(first=4, last=4, reached=4).is_without_steps


@pytest.mark.parametrize("table", [{"step": [None], "wall_ms": [5000.0]}, {"step": [1, 2], "wall_ms": [0.0, 0.0]}])
def test_recording_without_times_has_no_headline(table):
    table = pl.DataFrame(table, schema_overrides={"step": pl.Int64})
    assert headline(table.with_columns(pl.lit(0.0).alias(f"{part}_ms") for part in labels.PARTS)) == ""


@pytest.mark.parametrize(
    ("spent", "kinds", "usual"),
    [
        ([2.0, 5.0, 30.0], ["", "", ""], [1, 1, 1]),
        ([None, None, 2.0], ["", "", "validation"], [1, 1, 0]),
        ([50.0, None, 40.0], ["validation", "", "validation"], [1, 0, 1]),
    ],
    ids=["every step has it", "one step has it", "most steps have it"],
)
def test_step_kind_is_a_part_that_other_steps_lack(spent, kinds, usual):
    table = pl.DataFrame(
        {"step": [5, 6, 7], "wall_ms": [100.0] * 3, "validation_ms": spent, "checkpoint_ms": [None] * 3}
    )
    assert step_kinds.kinds(table) == kinds
    assert step_kinds.usual(table).tolist() == usual


# --- one basis ---


def steps_of(tmp_path, *steps):
    """Steps of so many milliseconds, of which so many are a part."""
    begin = 0
    for number, (wall, part, spent) in enumerate(steps):
        yield step_mark(number, begin, begin + wall * MS)
        yield annotation(part, begin, begin + spent * MS)
        begin += wall * MS


def line_of(tmp_path, *steps):
    return headline(table(read(testing.write_trace(tmp_path / "t.json", steps_of(tmp_path, *steps)))))


def table(trace):
    return Tables(trace).steps


def test_every_number_of_the_line_is_a_mean_of_the_same_steps(tmp_path):
    """An outlier is none of them."""
    line = line_of(tmp_path, (100, "backward", 10), (200, "backward", 80), (900, "backward", 840))
    assert line == "steps 0-1: 150 ms, 30% backward"


def test_steps_of_another_kind_are_named_separately(tmp_path):
    line = line_of(tmp_path, (150, "backward", 75), (150, "backward", 75), (1500, "validation", 1300))
    assert line == "steps 0-1: 150 ms, 50% backward; 1.5 s if it validates (1 of 3 steps)"


def test_steps_that_all_validate_are_usual_steps(tmp_path):
    line = line_of(tmp_path, (100, "validation", 90), (100, "validation", 90))
    assert line == "steps 0-1: 100 ms, 90% validation"


def test_report_findings_and_line_use_the_same_steps(tmp_path):
    steps = steps_of(tmp_path, (150, "data", 75), (150, "data", 75), (1500, "checkpoint", 1300))
    trace = read(testing.write_trace(tmp_path / "t.json", steps))
    capture = Capture(first=0, last=2, reached=3)
    page = window_data.reduce(capture, trace)
    assert page["steps"]["usual"]["wall_ms"] == 150
    assert page["steps"]["kinds"] == ["", "", "checkpoint"]
    assert page["steps"]["others"] == [{"kind": "checkpoint", "count": 1, "wall_ms": 1500}]
    waiting = next(each for each in page["findings"]["rows"] if each["rule"] == "waiting-for-data")
    assert (waiting["gain_ms"], waiting["gain_percent"]) == (75, 50)


def test_parts_of_the_report_have_a_field_in_the_file():
    """What has none is an error when the page is written."""
    assert set(window_data._PARTS) <= {field.name for field in msgspec.structs.fields(WindowData)}


@pytest.mark.parametrize(
    ("forward_ms", "said"),
    [
        (95.0, "95% forward (60% of a kind outside of its operators, 30% aten::mm)"),
        (70.0, "70% forward"),
        (0.0, "60% of a kind outside of its operators, 30% aten::mm"),
    ],
)
def test_coarse_parts_name_their_largest_operators(forward_ms, said):
    table = pl.DataFrame({"step": [1, 2], "wall_ms": [100.0, 100.0]})
    table = table.with_columns(pl.lit(0.0).alias(f"{part}_ms") for part in labels.PARTS)
    table = table.with_columns(pl.lit(forward_ms).alias("forward_ms"))
    rows = [
        ("aten::mm", "op", 30.0),
        ("of a kind", "annotation", 60.0),
        (labels.AUTOMATIC["forward"], "annotation", 9.0),
    ]
    rows = [(*row, step) for row in rows for step in (1, 2)] + [("warming up", "op", 5000.0, 0)]
    operators = pl.DataFrame(rows, ["name", "kind", "self_cpu_ms", "step"], orient="row")
    assert headline(table, operators) == f"steps 1-2: 100 ms, {said}"


def test_first_step_of_a_program_is_no_usual_step(tmp_path):
    """The first call of an optimizer imports what it needs."""
    line = line_of(tmp_path, (3000, "optimizer", 2900), (600, "backward", 300))
    assert line == "step 1: 600 ms, 50% backward"


@pytest.mark.parametrize("last", [None, 2])
def test_partial_step_is_labelled_as_part(tmp_path, last):
    events = [step_mark(0, 0, 900 * MS), annotation("backward", 0, 450 * MS)]
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    capture = Capture(last=last, partial="20 MB was reached inside step 0", cost=Cost(idle_step_ms=4000))
    share = window_data.reduce(described(capture, trace), trace)["steps"]
    assert share["is_part"]
    assert share["headline"] == replace(capture, headline=share["headline"]).line
    assert share["headline"].startswith("a part of step 0: 900 ms, 50% backward")
    assert not replace(capture, reached=1).is_part


# --- the line of a window ---


@pytest.mark.parametrize(
    ("cost", "queued", "said"),
    [
        (Cost(), 0.8, "steps 0-1: 100 ms. Warning: this job waited for a CPU 80% of the time, so times are too high"),
        (Cost(), 0.04, "steps 0-1: 100 ms"),
        (Cost(idle_step_ms=80, recorded_step_ms=100), None, "step 80 ms (profiled steps 0-1: 100 ms)"),
        (Cost(idle_step_ms=60, recorded_step_ms=100), None, "step 60 ms (profiled steps 0-1: 100 ms)"),
        (
            Cost(idle_step_ms=160, idle_data_ms=40, recorded_step_ms=100),
            None,
            "step 160 ms, 25% waiting for data (profiled steps 0-1: 100 ms)",
        ),
    ],
    ids=["busy", "quiet", "near", "recording is dear", "the recorded steps were quick"],
)
def test_line_begins_with_the_typical_unprofiled_step(cost, queued, said):
    capture = Capture(headline="steps 0-1: 100 ms", last=1, cost=cost)
    assert replace(capture, circumstances=Circumstances(queued=queued)).line == said


def test_each_part_in_a_line_belongs_to_one_step_time():
    headline = "steps 0-1: 100 ms, 9% waiting for data, 40% backward"
    far = Capture(headline=headline, last=1, cost=Cost(idle_step_ms=160, idle_data_ms=40, recorded_step_ms=100))
    assert far.line == f"step 160 ms, 25% waiting for data (profiled {headline})"
    near = replace(far, cost=Cost(idle_step_ms=98, idle_data_ms=40, recorded_step_ms=100))
    assert near.line == "step 98 ms (profiled steps 0-1: 100 ms), 9% waiting for data, 40% backward"


def test_recording_without_steps_has_no_unprofiled_step():
    capture = Capture(headline="from start to stop", last=None, cost=Cost(idle_step_ms=1, recorded_step_ms=100))
    assert capture.line == "from start to stop"


# --- what a device does ---


def headline_of(tmp_path, *events):
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    return of_window(Capture(last=0), trace)


def test_device_behind_the_steps_is_stated(tmp_path):
    """The host has launched all when the device has hardly begun: these steps are none of the training's."""
    work = [launch(1, 0, 1 * MS), kernel(1, 1 * MS, 21 * MS), launch(2, 2 * MS, 3 * MS), kernel(2, 21 * MS, 41 * MS)]
    line = headline_of(tmp_path, step_mark(0, 0, 2 * MS), step_mark(1, 2 * MS, 4 * MS), *work)
    assert line.startswith("steps 0-1: 2 ms on the host and 20 ms on the device, device busy 75%")


def test_device_that_only_communicates_is_stated(tmp_path):
    """Busy it is all the while, most of it with waiting for other ranks."""
    reduces = kernel(2, 3 * MS, 10 * MS, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=20)
    work = [launch(1, 0, 5_000), kernel(1, 10_000, 3 * MS), launch(2, 10_000, 20_000), reduces]
    line = headline_of(tmp_path, step_mark(0, 0, 10 * MS), *work)
    assert line.endswith("device busy 100%, only communicating 70%")


def test_a_recording_without_steps_has_a_line_of_its_own(tmp_path):
    """Time before the first and after the last work of the device is apart."""
    work = [launch(1, 0, 1 * MS), kernel(1, 6 * MS, 9 * MS), annotation("execute", 0, 10 * MS)]
    line = headline_of(tmp_path, *work)
    assert line.startswith("the whole recording: 10 ms, ")
    assert line.endswith("device busy 100% between its first and last work, idle 6 ms before and 1 ms after")


def test_work_of_a_device_that_was_not_recorded_is_missed(tmp_path):
    line = headline_of(tmp_path, step_mark(0, 0, 10 * MS), launch(1, 0, MS), op("aten::mm", 2 * MS, 10 * MS))
    assert line.endswith("the work of the device was not recorded")


def test_labels_of_other_threads_are_no_part_of_the_step(tmp_path):
    """Two threads of gloo wait for other ranks, for longer than the step takes together."""
    waits = [annotation("gloo:all_reduce", 1 * MS, 9 * MS, tid=tid) for tid in (11, 12)]
    line = headline_of(tmp_path, step_mark(0, 0, 10 * MS), op("aten::mm", 0, 3 * MS), *waits)
    assert line == "step 0: 10 ms, 70% outside of operators, 30% aten::mm"


def test_operators_of_several_threads_are_not_summed(tmp_path):
    work = [op("aten::mm", 0, 9 * MS, tid=tid) for tid in (11, 12)]
    line = headline_of(tmp_path, step_mark(0, 0, 10 * MS), *work)
    assert line == "step 0: 10 ms, 100% outside of operators"


def test_compiled_code_has_no_generated_names(tmp_path):
    graphs = [annotation(f"## Call CompiledFxGraph f{n} ##", n * 4 * MS, (n * 4 + 3) * MS) for n in (0, 1)]
    line = headline_of(tmp_path, step_mark(0, 0, 10 * MS), op("aten::mm", 9 * MS, 10 * MS), *graphs)
    assert line == "step 0: 10 ms, 60% compiled code outside of its operators, 30% outside of operators"


def working(count, *, first=20, period=1, busy=900_000, length=None):
    """Kernels at regular times, in milliseconds, with their operators."""
    for number in range(count):
        at = (first + number * period) * MS
        yield op("aten::mm", at, at + 30_000)
        yield launch(number + 1, at + 5_000, at + 11_000)
        yield kernel(number + 1, at + 30_000, at + 30_000 + busy)
    if length:
        yield op("aten::empty", length * MS - 1000, length * MS)


@pytest.mark.parametrize(
    ("first", "length", "said"),
    [
        (20, 170, "device busy 90% between its first and last work, idle 20 ms before and 100 ms after"),
        (0, 170, "device busy 90% between its first and last work, idle 30 us before and 120 ms after"),
        (20, None, "device busy 90% between its first and last work, idle 20 ms before"),
    ],
)
def test_idle_time_around_the_work_is_stated_separately(tmp_path, first, length, said):
    begin = op("aten::empty", 0, 1000)
    line = headline_of(tmp_path, begin, *working(50, first=first, length=length))
    assert said in line
    assert "outside of operators" not in line


def test_headline_covers_the_device_in_all_steps(tmp_path):
    assert headline_of(tmp_path, step_mark(0, 0, 170 * MS), *working(50)).split(", ")[-2] == "device busy 26%"


@pytest.mark.parametrize(("busy", "is_split"), [(850_000, False), (700_000, True)])
def test_device_bound_steps_are_not_split_by_host_time(tmp_path, busy, is_split):
    """The host waits for most of its time, in whatever part it is."""
    parts = [annotation("forward", 0, 20 * MS), annotation("backward", 20 * MS, 50 * MS)]
    line = headline_of(tmp_path, step_mark(0, 0, 50 * MS), *parts, *working(50, first=0, busy=busy))
    assert ("backward" in line) == ("forward" in line) == is_split
    assert f"device busy {85 if busy > 800_000 else 70}%" in line


def test_steps_behind_their_host_are_not_split_by_host_time(tmp_path):
    work = [launch(1, 0, 1 * MS), kernel(1, 1 * MS, 21 * MS), annotation("backward", 0, 2 * MS)]
    line = headline_of(tmp_path, step_mark(0, 0, 2 * MS), *work)
    assert line == "step 0: 2 ms on the host and 20 ms on the device, device busy 50%, idle 50% in calls that launch"


@pytest.mark.parametrize("has_kernel", [False, True])
def test_recording_of_copies_only_is_stated(tmp_path, has_kernel):
    copy = kernel(1, 1 * MS, 9 * MS, category="gpu_memcpy", name="Memcpy HtoD (Pinned -> Device)", bytes=1 << 26)
    events = [step_mark(0, 0, 10 * MS), launch(1, 0, 10_000, name="cudaMemcpyAsync"), copy]
    events += [launch(2, 20_000, 30_000), kernel(2, 9 * MS, 10 * MS)] if has_kernel else []
    assert ("only copies" in headline_of(tmp_path, *events)) != has_kernel


def test_idle_share_refers_to_the_time_between_device_work(tmp_path):
    """10 ms of 20, in a recording of 40."""
    work = [launch(1, 0, 5_000), kernel(1, 20_000, 5 * MS), launch(2, 15 * MS, 15 * MS + 5_000)]
    events = [
        *work,
        kernel(2, 15 * MS + 10_000, 20 * MS),
        op("aten::mm", 6 * MS, 15 * MS),
        op("aten::empty", 39 * MS, 40 * MS),
    ]
    line = headline_of(tmp_path, *events)
    assert line.endswith("idle 20 us before and 20 ms after, idle 45% while operators run on the host")
