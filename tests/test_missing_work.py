"""Doubtful device records have consequences: empty columns, means and headlines of the other steps, no findings."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import polars as pl
import pytest
from table_cases import text_of

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


def without(events, *gone):
    """The events that are not among others, and that are of none of these categories."""
    numbers = {id(event) for event in gone if isinstance(event, dict)}
    return [event for event in events if id(event) not in numbers and event.get("cat") not in gone]


def of_step(events, step, category="kernel"):
    """The events of a category that begin in a step."""
    begin = 10_000 * STEPS.index(step)
    return [event for event in events if event.get("cat") == category and begin <= event["ts"] < begin + 10_000]


def lost(events, *steps, count=None, begin=0):
    """The same events without kernels of some steps: so many of each, or all."""
    return without(events, *(each for step in steps for each in of_step(events, step)[begin:][:count]))


def changed(events, step, at, **values):
    """The same events, of which a kernel has other values."""
    of_step(events, step)[at].update(values)
    return events


def behind():
    """A device that needs 12 ms for the work of a step of 10 ms."""
    events = training(span=1200 * US)
    end = 0.0
    for event in sorted((event for event in events if event.get("cat") == "kernel"), key=lambda event: event["ts"]):
        event["ts"] = max(event["ts"], end)
        end = event["ts"] + event["dur"]
    return events


def late_lost():
    """Of a device that is behind, the work that one step launched is lost."""
    events = behind()
    numbers = {event["args"]["correlation"] for event in of_step(events, 12, "cuda_runtime")}
    return [event for event in events if event.get("cat") != "kernel" or event["args"]["correlation"] not in numbers]


def without_numbers():
    """A recorder that loses the launches' numbers as well leaves the counts of neighbours."""
    events = training()
    for call in of_step(events, 12, "cuda_runtime"):
        del call["args"]["correlation"]
    return lost(events, 12)


def without_operator(*, is_lost):
    """A device that is behind runs few kernels during the first step, but none is lost."""
    events = without(behind(), "cuda_runtime")
    gone = [event for event in events if event.get("cat") == "kernel" and event["args"]["External id"] > 20][:10]
    return without(events, *gone) if is_lost else events


def shifted(events, by_us, category="kernel"):
    return [event | {"ts": event["ts"] + by_us * (event.get("cat") == category)} for event in events]


def waiting(events):
    """The host waits for the device at the end of each step."""
    ends = [10 * MS * (place + 1) - 200 * US for place in range(len(STEPS))]
    return [*events, *(launch(900 + end, end, end + 190 * US, name="cudaDeviceSynchronize") for end in ends)]


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


def others(name, category="kernel", *, at=8 * US, begin=20 * US, end=50 * US, call="cudaLaunchKernel"):
    """The training, of whose kernels none was recorded, but other work of each step."""
    starts = [(800 + number, 10 * MS * number + at) for number in range(5)]
    calls = [launch(number, start, start + 5 * US, name=call) for number, start in starts]
    return [
        *calls,
        *(kernel(number, start + begin, start + end, name=name, category=category) for number, start in starts),
    ]


def communicating(name):
    events = []
    for number in range(1, 13):
        at = number * 300 * US
        events += [op(name, at, at + 20 * US, external=number), launch(number, at + 5 * US, at + 9 * US)]
        events += [kernel(number, at + 20 * US, at + 270 * US, name="ncclDevKernel_AllGather_RING_LL", stream=9)]
    return events


def only_communication():
    events = training(operator="vllm::all_reduce")
    return [
        event | {"name": event["name"].replace("ampere_sgemm_128x64_tn", "ncclDevKernel_Generic_2")} for event in events
    ]


NO_CALLS = without(training(), "cuda_runtime")
LESS = [event for event in training() if not 20_000 <= event["ts"] < 27_600]
MOVED = {"call": "cudaMemcpyAsync", "name": "Memcpy HtoD"}
COLLECTIVE = {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "at": 6 * MS, "begin": MS, "end": 3 * MS}
LOST = ((12,), (10,), (14,), (13, 14), (11, 13), (11, 12), (10, 11, 13, 14))
CASES = {
    "sound": training(),
    **{f"all kernels of {steps} are lost": lost(training(), *steps) for steps in LOST},
    **{
        f"{count} kernels of step {step} are lost": lost(training(), step, count=count)
        for count in (1, 3)
        for step in (10, 12, 14)
    },
    "three of eight steps have lost kernels": [
        event
        for event in training(range(10, 18))
        if event.get("cat") != "kernel" or int(event["ts"] // 10_000) not in (1, 3, 5)
    ],
    "lost kernels and numbers of launches": without_numbers(),
    "two steps in a row lost kernels, without launches": without(
        NO_CALLS, *of_step(NO_CALLS, 12)[6:], *of_step(NO_CALLS, 13)[:4]
    ),
    "a late device lost the work of a step": late_lost(),
    "a late device without launches": without_operator(is_lost=False),
    "a late device without launches lost work": without_operator(is_lost=True),
    "another clock on a late device": shifted(behind(), -1000),
    "a step that launches less": [step_mark(12, 20 * MS, 30 * MS), *LESS],
    **{
        f"a clock apart by {offset} ns": training(offset=offset)
        for offset in (-(10**18), -3600 * 10**9, -4 * MS, 10**18)
    },
    "a clock apart, without launches": without(training(offset=10**18), "cuda_runtime"),
    "a clock apart, without marks": without(training(offset=-(10**18)), "user_annotation"),
    "a few microseconds of drift": training(offset=-60 * US),
    "a kernel with a wrong time": changed(training(), 13, 4, ts=5.0),
    **{
        f"kernel {at} lasts {span / MS:g} ms": changed(training(), 12, at, dur=span / 1000)
        for at in (0, 4, 7)
        for span in (9 * MS, 1_600 * MS)
    },
    **{
        f"work ends {offset / US:g} us late, waited for": waiting(training(offset=offset))
        for offset in (30 * US, 1500 * US, 200 * MS)
    },
    "another device works after a wait": waiting(
        [*training(offset=1500 * US), launch(800, 200 * US, 210 * US), kernel(800, 300 * US, 400 * US, device=1)]
    ),
    "the last kernel before a wait is long": waiting(changed(training(), 14, -1, dur=1_600_000.0)),
    "one kernel long after a wait for it": waiting(changed(training(), 12, -1, ts=28_705.0 + 25_000)),
    "a kernel of another stream overlaps": [
        *training(),
        launch(900, 20 * US, 30 * US),
        kernel(900, 40 * US, 9 * MS, stream=9),
    ],
    "dependent launches": training(span=1000 * US),
    **{
        f"replay of {name}": replays(ONE, short, ONE, short)
        for name, short in (
            ("the first 112 kernels", ONE[:112]),
            ("the last 112 kernels", ONE[16:]),
            ("112 kernels without some in between", ONE[:60] + ONE[72:124]),
            ("another graph", OTHER),
        )
    },
    "two graphs of the same kernels": replays(ONE, ONE[:112], ONE, ONE[:112], node=1000),
    **{
        f"only {category}": [*without(training(), "kernel"), *others(category=category, **MOVED)]
        for category in ("gpu_memcpy", "gpu_memset")
    },
    **{f"operator {name} communicates": communicating(name) for name in ("vllm::all_reduce", "mylib::combine")},
    "only the stream of communication": [*without(training(), "kernel", "cuda_runtime"), *others(**COLLECTIVE)],
    "a training that only communicates": only_communication(),
}
"""What is unusual about a training of five steps of 10 ms, whose device is busy for 8 ms of each."""
DEVICE = (
    *("device_span_ms", "busy_ms", "idle_ms", "compute_ms", "comm_ms", "exposed_comm_ms", "exposed_copy_ms"),
    *("other_work_ms", "device_busy_ms", "device_idle_ms", "kernels"),
)


@pytest.mark.slow
def test_consequences_of_unusual_records_are_exact(golden, tmp_path):
    texts = []
    for title, events in CASES.items():
        trace = read(testing.write_trace(tmp_path / "t.json", events))
        tables, evidence = Tables(trace), findings.Evidence(CAPTURE, trace)
        texts += [f"# {title}", of_window(CAPTURE, trace)]
        texts += [f"doubts: {', '.join(tables.checks['name'])}"]
        texts += [f"findings: {', '.join(finding.rule for finding in findings.find(CAPTURE, trace))}"]
        texts += [
            f"steps of the findings: {evidence.steps['step'].to_list()}, device known: {evidence.is_device_traced}"
        ]
        texts += [f"steps with idle causes: {tables.idle(['step'])['step'].unique(maintain_order=True).to_list()}"]
        texts += [f"gaps: {tables.gaps.height}", text_of(tables.steps.select("step", "wall_ms", *DEVICE))]
        texts += [
            text_of(tables.kernels.select("name", "count", "total_ms", "max_ms", "gap_before_ms", "gap_after_ms")),
            "",
        ]
    golden("missing_work.txt", "\n".join(texts))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ((12,), "steps 10-14 without 12"),
        ((10,), "steps 11-14"),
        ((11, 13), "steps 10-14 without 11 and 13"),
        ((10, 11, 13, 14), "step 12"),
    ],
)
def test_every_output_names_the_steps_of_its_means(tmp_path, steps, named):
    path = testing.write_trace(tmp_path / "t.json", lost(training(), *steps))
    trace = read(path)
    assert of_window(CAPTURE, trace).startswith(f"{named}: 10 ms, ")
    found = window_data.reduce(CAPTURE, trace)["steps"]
    assert found["usual_steps"] == named
    assert found["is_usual"] == [step not in steps for step in STEPS]
    assert found["usual"]["busy_share"] == summary(Tables(trace).steps)["busy_share"] == pytest.approx(0.8)
    text = of_trace(path)
    assert f"(profiled {named}), 80% device busy" in text
    assert f"Profiled {named}:" in text


@pytest.mark.parametrize("begin", [-5 * MS, -(10**18), 1_736_405_443_863_674_000])
@pytest.mark.parametrize("has_waits", [True, False])
def test_waits_are_compared_at_any_time_of_the_clock(tmp_path, begin, has_waits):
    events = waiting(training()) if has_waits else training()
    shifted = [event | {"ts": Decimal(begin) / 1000 + Decimal(str(event["ts"]))} for event in events]
    encode = msgspec.json.Encoder(decimal_format="number").encode
    text = encode({"schemaVersion": 1, "traceEvents": shifted})
    (tmp_path / "t.json").write_bytes(text)
    tables = Tables(read(tmp_path / "t.json"))
    assert (tables.checks.height, tables.steps["device_busy_ms"].to_list()) == (0, pytest.approx([8.0] * 5))


def test_device_times_of_operators_that_lost_work_are_empty(tmp_path):
    path = testing.write_trace(tmp_path / "t.json", lost(training(), 12))
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
    events = without(training(), "kernel")
    events += [op("aten::copy_", 9_700 * US, 9_720 * US, external=99)]
    events += [launch(900, 9_705 * US, 9_710 * US, name="cudaMemcpyAsync", external=99)]
    events = events if has_launches else without(events, "cuda_runtime")
    copied = kernel(900, 9_800 * US, 9_900 * US, category="gpu_memcpy", name="Memcpy HtoD", external=99)
    rows = Tables(read(testing.write_trace(tmp_path / "t.json", [*events, copied]))).operators()
    times = dict(rows.filter(kind="op").select("name", "self_device_ms").iter_rows())
    assert times == {"aten::mm": None, "aten::copy_": pytest.approx(0.1)}
