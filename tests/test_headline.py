"""The line about a window: what a log, the terminal and the page begin with."""

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

MS = 1_000_000


def steps_of(*steps):
    """Steps of so many milliseconds, of which so many are a part."""
    begin = 0
    for number, (wall, part, spent) in enumerate(steps):
        yield step_mark(number, begin, begin + wall * MS)
        yield annotation(part, begin, begin + spent * MS)
        begin += wall * MS


def step(length, *events):
    """One step of so many milliseconds."""
    return [step_mark(0, 0, length * MS), *events]


def working(count, *, first=20, busy=900_000, length=None):
    """Kernels at regular times, in milliseconds, with their operators."""
    yield op("aten::empty", 0, 1000)
    for number in range(count):
        at = (first + number) * MS
        yield op("aten::mm", at, at + 30_000)
        yield launch(number + 1, at + 5_000, at + 11_000)
        yield kernel(number + 1, at + 30_000, at + 30_000 + busy)
    if length:
        yield op("aten::empty", length * MS - 1000, length * MS)


AHEAD = [step_mark(0, 0, 100), launch(1, 10, 20), kernel(1, 150, 250), launch(2, 20, 30), kernel(2, 260, 340)]
LATE = [launch(1, 0, 1 * MS), kernel(1, 1 * MS, 21 * MS), launch(2, 2 * MS, 3 * MS), kernel(2, 21 * MS, 41 * MS)]
REDUCES = kernel(2, 3 * MS, 10 * MS, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=20)
HALF_BUSY = [launch(1, 0, 5_000), kernel(1, 20_000, 5 * MS), launch(2, 15 * MS, 15 * MS + 5_000)]
COPY = kernel(1, 1 * MS, 9 * MS, category="gpu_memcpy", name="Memcpy HtoD (Pinned -> Device)", bytes=1 << 26)
COPIES = [launch(1, 0, 10_000, name="cudaMemcpyAsync"), COPY]
GRAPHS = [annotation(f"## Call CompiledFxGraph f{n} ##", n * 4 * MS, (n * 4 + 3) * MS) for n in (0, 1)]
PARTS = [annotation("forward", 0, 20 * MS), annotation("backward", 20 * MS, 50 * MS)]
WINDOWS = {
    # every number is a mean of the same steps
    "an outlier": [*steps_of((100, "backward", 10), (200, "backward", 80), (900, "backward", 840))],
    "a step that validates": [*steps_of((150, "backward", 75), (150, "backward", 75), (1500, "validation", 1300))],
    "steps that all validate": [*steps_of((100, "validation", 90), (100, "validation", 90))],
    "a part of 4.7%": [*steps_of((1000, "backward", 47))],
    # the first call of an optimizer imports what it needs
    "a first step": [*steps_of((3000, "optimizer", 2900), (600, "backward", 300))],
    # where the host launches ahead, a step's work goes on after it, and is that of the next one's wall
    "work after the step": AHEAD,
    "work in the next step": [*AHEAD, step_mark(1, 100, 300)],
    # the host has launched all when the device has hardly begun: these steps are none of the training's
    "steps ahead of the device": [*step(2, step_mark(1, 2 * MS, 4 * MS)), *LATE],
    "a part ahead of the device": step(2, *LATE[:2], annotation("backward", 0, 2 * MS)),
    # busy it is all the while, most of it with waiting for other ranks
    "communication": step(10, launch(1, 0, 5_000), kernel(1, 10_000, 3 * MS), launch(2, 10_000, 20_000), REDUCES),
    "copies": step(10, *COPIES),
    "copies and a kernel": step(10, *COPIES, launch(2, 20_000, 30_000), kernel(2, 9 * MS, 10 * MS)),
    "lost work of the device": step(10, launch(1, 0, MS), op("aten::mm", 2 * MS, 10 * MS)),
    # two threads of gloo wait for other ranks, for longer than the step takes together
    "labels of other threads": step(
        10, op("aten::mm", 0, 3 * MS), *(annotation("gloo:all_reduce", 1 * MS, 9 * MS, tid=tid) for tid in (11, 12))
    ),
    "operators of two threads": step(10, *(op("aten::mm", 0, 9 * MS, tid=tid) for tid in (11, 12))),
    "compiled code": step(10, op("aten::mm", 9 * MS, 10 * MS), *GRAPHS),
    # time before the first and after the last work of the device is apart
    "no steps": [launch(1, 0, 1 * MS), kernel(1, 6 * MS, 9 * MS), annotation("execute", 0, 10 * MS)],
    "no steps, idle before and after": [*working(50, length=170)],
    "no steps, idle after": [*working(50, first=0, length=170)],
    "no steps, idle before": [*working(50)],
    # the device is idle for 10 ms of 20, in a recording of 40
    "no steps, half idle": [
        *(*HALF_BUSY, kernel(2, 15 * MS + 10_000, 20 * MS), op("aten::mm", 6 * MS, 15 * MS)),
        op("aten::empty", 39 * MS, 40 * MS),
    ],
    "a step, idle before and after": step(170, *working(50)),
    # above 50% operators on the host mostly wait, above 80% the host waits for most of its time, in whatever part it is
    "60% busy": step(50, *working(50, first=0, busy=600_000)),
    "70% busy": step(50, *PARTS, *working(50, first=0, busy=700_000)),
    "85% busy": step(50, *PARTS, *working(50, first=0, busy=850_000)),
}
"""Recordings, and in a golden file the line of each."""


def table_of(steps, **columns):
    found = pl.DataFrame({"step": steps, "wall_ms": [100.0] * len(steps)}, schema_overrides={"step": pl.Int64})
    found = found.with_columns(pl.lit(0.0).alias(f"{part}_ms") for part in labels.PARTS)
    return found.with_columns(pl.Series(name, values, dtype=pl.Float64) for name, values in columns.items())


SPENT = [("aten::mm", "op", 30.0), ("of a kind", "annotation", 60.0), (labels.AUTOMATIC["forward"], "annotation", 9.0)]
SPENT = [(*row, step) for row in SPENT for step in (1, 2)] + [("warming up", "op", 5000.0, 0)]
OPERATORS = pl.DataFrame(SPENT, ["name", "kind", "self_cpu_ms", "step"], orient="row")
TABLES = {
    "one step of two has times of the device": (table_of([3, 4], device_busy_ms=[25.0, None]), None),
    "a row that is no step": (table_of([0], wall_ms=[5000.0]), None, "", {"unmarked": "the whole recording"}),
    "no number": (table_of([None]), None),
    "no time": (table_of([1, 2], wall_ms=[0.0, 0.0]), None),
    # a part that is nearly the whole step names its largest operators
    **{f"{ms} ms forward": (table_of([1, 2], forward_ms=[ms] * 2), OPERATORS) for ms in (95.0, 70.0, 0.0)},
}
FAR = Cost(idle_step_ms=160, idle_data_ms=40, recorded_step_ms=100)
PLAIN = Capture(headline="steps 0-1: 100 ms, 9% waiting for data, 40% backward", last=1)
CAPTURES = {
    **{f"waited {queued:.0%}": replace(PLAIN, circumstances=Circumstances(queued=queued)) for queued in (0.8, 0.04)},
    **{f"{ms} ms unprofiled": replace(PLAIN, cost=replace(FAR, idle_step_ms=ms)) for ms in (60, 80, 98, 160)},
    "unknown waits": replace(PLAIN, cost=replace(FAR, idle_data_ms=None)),
    "without steps": Capture(headline="from start to stop", last=None, cost=FAR),
}


@pytest.mark.slow
def test_lines_of_windows_equal_the_golden_file(tmp_path, golden):
    """Of traces, of tables, and with what is known of unprofiled steps."""
    lines = []
    for name, events in WINDOWS.items():
        trace = read(testing.write_trace(tmp_path / "t.json", events))
        lines.append(f"{name}: {of_window(Capture(last=0), trace)}")
    lines += ["", *(f"{name}: {headline(*given[:3], **dict(*given[3:]))}" for name, given in TABLES.items())]
    lines += ["", *(f"{name}: {capture.line}" for name, capture in CAPTURES.items())]
    golden("headlines.txt", "\n".join([*map(str.rstrip, lines), ""]))


def test_device_is_busy_with_any_work_in_the_wall_of_a_step(tmp_path):
    table = steps.table(read(testing.write_trace(tmp_path / "t.json", WINDOWS["work in the next step"])))
    assert summary(table)["busy_share"] == pytest.approx(140 / 300)


def test_window_without_a_whole_step_is_without_steps():
    assert Capture(first=4, last=None, reached=4).is_without_steps
    assert not Capture(first=4, last=None, reached=5).is_without_steps
    assert not Capture(first=4, last=4, reached=4).is_without_steps


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
    table = table_of([5, 6, 7], validation_ms=spent, checkpoint_ms=[None] * 3)
    assert step_kinds.kinds(table) == kinds
    assert step_kinds.usual(table).tolist() == usual


def test_report_findings_and_line_use_the_same_steps(tmp_path):
    steps = steps_of((150, "data", 75), (150, "data", 75), (1500, "checkpoint", 1300))
    trace = read(testing.write_trace(tmp_path / "t.json", steps))
    page = window_data.reduce(Capture(first=0, last=2, reached=3), trace)
    assert page["steps"]["usual"]["wall_ms"] == 150
    assert page["steps"]["kinds"] == ["", "", "checkpoint"]
    assert page["steps"]["others"] == [{"kind": "checkpoint", "count": 1, "wall_ms": 1500}]
    waiting = next(each for each in page["findings"]["rows"] if each["rule"] == "waiting-for-data")
    assert (waiting["gain_ms"], waiting["gain_percent"]) == (75, 50)


def test_parts_of_the_report_have_a_field_in_the_file():
    """What has none is an error when the page is written."""
    assert set(window_data._PARTS) <= {field.name for field in msgspec.structs.fields(WindowData)}


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
