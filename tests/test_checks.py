"""Each doubt about a trace has a case that raises it, and a sound one that does not."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from table_cases import text_of

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


def without(events, *names):
    """The events that have none of these names and categories."""
    return [event for event in events if not {event["name"], event["cat"]} & set(names)]


def without_number(event, number):
    """The same event without a correlation id; some recorders write 0 instead."""
    args = {name: value for name, value in event["args"].items() if name != "correlation"}
    return event | {"args": args if number is None else args | {"correlation": number}}


def overhead(start, end, name="Activity Buffer Request"):
    return slice_event("overhead", name, start, end, pid=-1, tid=0)


def captured(tid=testing.PID, begin=2990, end=3900):
    """The calls around what is captured into a graph."""
    edges = ((80, begin, begin + 5, "cudaStreamBeginCapture"), (81, end, end + 10, "cudaStreamEndCapture"))
    return [launch(number, start, stop, name=name, tid=tid) for number, start, stop, name in edges]


def started(worked):
    """A step with a long first launch, and a kernel before it that keeps the device busy for so long."""
    events = [step_mark(0, 0, 500_000_000), launch(1, 10, 400_000_000), kernel(1, 400_000_100, 400_000_200)]
    return [*events, launch(2, 1, 5), kernel(2, 6, 6 + worked, name="other")]


ALL = range(100)
BEFORE = [e for e in sound() if e["cat"] != "cuda_runtime" or e["args"]["correlation"] > 10]
BEFORE = without(BEFORE, "ProfilerStep#0")
UNNUMBERED = (launch(0, 500, 510), kernel(0, 520, 530, stream=9))
MARKS = without(sound(), "ProfilerStep#2", "ProfilerStep#3")
LESS = [e for e in sound() if not 2000 <= e["ts"] * 1000 < 2400 or e["cat"] == "user_annotation"]
SERIOUS = [overhead(500, 510), kernel(900, 5000, 5010), launch(77, 600, 610), kernel(77, 500, 501)]
DRIVER = ("Command Buffer Full", "Lazy Function Loading", "Runtime Triggered Module Loading", "Driver Compiler")
COMPILED = [op("inductor_compile (dynamo_timed)", 0, 800), op("backend_compile (dynamo_timed)", 900, 2100)]
CASES = {
    "sound": (sound(), {"INFO": [COUNTS + NONE, "INFO: Tracing starting in 6s"], "WARNING": [], "ERROR": []}),
    "only the host": without(sound(), "kernel", "cuda_runtime"),
    "only memory": [testing.memory(5, 64)],
    "two launches without kernels": sound(without={13, 25}),
    "device not recorded to the end": sound(without=range(32, 41)),
    "recorder stopped early": (sound(), {"INFO": [COUNTS + NONE.replace("early? = 0", "early? = 1")]}),
    "full buffer": (sound(), {"WARNING": ["GPU collection stopped early: buffer limit reached"]}),
    "no device work": sound(without=ALL),
    "range profiler, which times no kernels": [
        *sound(without=ALL),
        slice_event("cuda_profiler_range", "gemm", 10, 20, pid=0, tid=0, smsp__inst=7),
    ],
    "one kernel without launch": [*sound(), kernel(900, 500, 510, stream=9)],
    "two kernels without launch": [
        *sound(),
        *(kernel(900 + each, 500 + each, 510 + each, stream=9) for each in (0, 1)),
    ],
    "no calls": without(sound(), "cuda_runtime"),
    "work launched before the window": BEFORE,
    **{
        f"{title} with the number {number}": [*events, *(without_number(each, number) for each in more)]
        for number in (None, 0, -1)
        for title, events, more in (
            ("call and kernel", sound(), UNNUMBERED),
            ("call", sound(), UNNUMBERED[:1]),
            ("call, after work from before the window,", BEFORE, [launch(0, 1500, 1505)]),
        )
    },
    "kernel before its launch": [*sound(), launch(77, 600, 610), kernel(77, 570, 590, name="early", stream=9)],
    "kernel during its launch": [*sound(), launch(77, 600, 650), kernel(77, 610, 620, stream=9)],
    **{
        f"step {each} lost kernels": sound(without=range(1 + KERNELS * each, 4 + KERNELS * each))
        for each in range(STEPS)
    },
    "step that did less": LESS,
    "four fifths of the kernels": sound(without={11, 12}),
    "overlapping steps": [*without(sound(), "ProfilerStep#2"), step_mark(2, 1900, 3000)],
    "marks of two threads": [*sound(), step_mark(0, 10, 1500, tid=9), step_mark(1, 1500, 2600, tid=9)],
    "missing marks": [*MARKS, step_mark(7, 2000, 3000)],
    "repeated mark": [*MARKS, step_mark(1, 2000, 3000)],
    "capture of a graph": [*sound(without=range(31, 41)), *captured()],
    "capture on another thread": [*sound(without=range(31, 41)), *captured(tid=9)],
    "window that records a graph": [*sound(), op("CUDAGraphNode.record (dynamo_timed)", 10, 3000)],
    "window that compiles": [*sound(), *COMPILED],
    "window that captures": [*sound(), *captured(begin=100, end=2900)],
    "window that compiles now and then": [*sound(), op("inductor_compile (dynamo_timed)", 0, 1900)],
    "long launch on an idle device": started(0),
    "long launch on a busy device": started(400_000_000),
    "no marks": without(sound(), "user_annotation"),
    **{
        f"{name}, in a {'list' if is_list else 'text'}": (sound(), {"INFO": [line] if is_list else line})
        for name in ("Out-of-range", "Invalid ext correlations", "CPU GPU out-of-order")
        for line in [COUNTS + NONE.replace(f"{name} = 0", f"{name} = 4181")]
        for is_list in (True, False)
    },
    "warnings of the recorder": (sound(), {"WARNING": ["one thing", "another"], "ERROR": [7, None]}),
    "warning that no file can hold": (sound(), {"WARNING": ["lone \ud800 surrogate"]}),
    **{f"odd log {log!r}": (sound(), {"INFO": log}) for log in (7, {"a": 1}, [[], {}], None)},
    "huge count": (sound(), {"INFO": [COUNTS + "Out-of-range = " + "9" * 40]}),
    **{f"recording cost of {span} ns": [*sound(), overhead(500, 500 + span)] for span in (10, 100, 300)},
    "recording cost after the steps": [*sound(), overhead(4100, 9000)],
    "other overhead": [*sound(), overhead(100, 200, "Buffer Flush"), overhead(300, 400, "Instrumentation")],
    **{f"{name} of the driver": [*sound(), overhead(500, 800, name)] for name in DRIVER},
    "doubts of all severities": [*sound(without={13}), *SERIOUS],
}
"""What is unusual in a trace: its events, and metadata if there is any."""


@pytest.mark.slow
def test_doubts_about_unusual_traces_are_exact(golden, tmp_path):
    texts = []
    for title, case in CASES.items():
        events, metadata = case if isinstance(case, tuple) else (case, {})
        table = checks.table(read(testing.write_trace(tmp_path / "t.json", events, **metadata)))
        texts.append(f"# {title}\n{text_of(table)}\n")
    golden("checks.txt", "\n".join(texts))


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


@pytest.mark.slow
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
