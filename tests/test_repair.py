"""Kept traces: no slices cross, names are real texts, and perfhooks reads the recorded times from them."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins import DIALECTS, Machine

from perfhooks import testing
from perfhooks.report.handlers import ChromeTrace
from perfhooks.run.capture import Capture
from perfhooks.testing import annotation, kernel, launch, op, python_frame, step_mark
from perfhooks.trace import Kind, read
from perfhooks.trace.tables.labels import table as labels_table
from perfhooks.trace.window import Tables


def events_of(path):
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text)["traceEvents"]


def crossings(events):
    """Pairs of slices of one lane of which the later one begins in the earlier one and ends behind it."""
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            lanes[event["pid"], event["tid"]].append((start, -start - round(event["dur"] * 1000), event["name"]))
    found = []
    for slices in lanes.values():
        opened = []
        for start, minus_end, name in sorted(slices):
            while opened and opened[-1][0] <= start:
                opened.pop()
            if opened and opened[-1][0] < -minus_end:
                found.append((opened[-1][1], name))
            opened.append((-minus_end, name))
    return found


def kept(tmp_path, trace, **options):
    (artifact,) = ChromeTrace(**options).artifacts(Capture(stage="train", last=0), trace)
    path = tmp_path / ("kept.json.gz" if options.get("compress", True) else "kept.json")
    with path.open("w+b") as file:
        artifact.write(file)
    return path


def is_same(trace, other):
    return all(
        np.array_equal(getattr(trace, column), getattr(other, column)) for column in ("start", "end", "kind", "order")
    ) and [(trace.name_of(row), trace.threads[trace.thread[row]]) for row in range(len(trace))] == [
        (other.name_of(row), other.threads[other.thread[row]]) for row in range(len(other))
    ]


def slices_of(trace):
    rows = zip(trace.start.tolist(), trace.end.tolist(), trace.kind.tolist(), trace.thread.tolist(), strict=True)
    return sorted((*row[:3], trace.name_of(number), str(trace.threads[row[3]])) for number, row in enumerate(rows))


ENTER, EXIT = "<built-in function _record_function_enter_new>", "<built-in function _record_function_exit>"


def with_stacks(label, begin, end):
    """A label, and the functions inside of which it begins and ends."""
    return [
        annotation(label, begin, end),
        python_frame("torch/autograd/profiler.py(1): __enter__", begin - 300, begin + 200),
        python_frame(ENTER, begin - 100, begin + 100),
        python_frame("torch/autograd/profiler.py(2): __exit__", end - 200, end + 300),
        python_frame(EXIT, end - 100, end + 100),
    ]


def repaired(tmp_path, events, **options):
    trace = read(testing.write_trace(tmp_path / "t.json", events, **options))
    path = kept(tmp_path, trace)
    assert is_same(trace, read(path))
    assert Tables(read(path)).steps.equals(Tables(trace).steps)
    return events_of(path)


@pytest.mark.parametrize("label", ["ProfilerStep#3", "forward (auto)", "mine"])
def test_label_begins_after_the_function_that_opens_the_label(tmp_path, label):
    events = [python_frame("train.py(1): main", 0, 100_000), *with_stacks(label, 10_000, 60_000)]
    events.append(op("aten::mm", 20_000, 30_000))
    assert crossings(events)
    written = repaired(tmp_path, events)
    assert crossings(written) == []
    (moved,) = [event for event in written if event["name"] == label]
    assert (moved["ts"], moved["dur"], moved["tid"]) == (10.2, 49.6, events[1]["tid"])


def test_nested_labels_stay_nested(tmp_path):
    events = [*with_stacks("ProfilerStep#3", 10_000, 90_000), *with_stacks("outer", 20_000, 80_000)]
    events += [*with_stacks("inner", 30_000, 70_000), op("aten::mm", 40_000, 50_000)]
    written = repaired(tmp_path, events)
    assert crossings(written) == []
    by_name = {event["name"]: event for event in written}
    for outer, inner in pairwise(["ProfilerStep#3", "outer", "inner", "aten::mm"]):
        a, b = by_name[outer], by_name[inner]
        assert a["tid"] == b["tid"]
        assert a["ts"] <= b["ts"]
        assert a["ts"] + a["dur"] >= b["ts"] + b["dur"]


@pytest.mark.parametrize("end", [55_000, 95_000])
def test_a_label_that_would_lose_half_keeps_its_times_on_a_lane(tmp_path, end):
    """It was opened in one function and closed in another one."""
    events = [python_frame("a.py(1): begin", 0, 50_000), python_frame("a.py(2): finish", 60_000, 100_000)]
    written = repaired(tmp_path, [*events, annotation("long", 10_000, end)])
    assert crossings(written) == []
    (label,) = [event for event in written if event["name"] == "long"]
    assert (label["ts"], label["dur"]) == (10, (end - 10_000) / 1000)
    assert label["tid"] != events[0]["tid"]
    (name,) = [event for event in written if (event["name"], event["tid"]) == ("thread_name", label["tid"])]
    assert name["args"]["name"].endswith(", lane 2")


def test_labels_that_cross_labels_get_lanes(tmp_path):
    events = [step_mark(number, 3000 * number, 3000 * number + 3000) for number in range(4)]
    events += [annotation("epoch", 500, 11_500), annotation("batch", 1000, 3600), annotation("update", 1100, 6100)]
    written = repaired(tmp_path, events)
    assert crossings(written) == []
    assert len({event["tid"] for event in written if event["ph"] == "X"}) > 1
    assert {event["tid"] for event in written if event["name"].startswith("Prof")} == {events[0]["tid"]}


def test_overlapping_work_of_a_stream_gets_lanes_and_links(tmp_path):
    events = [step_mark(1, 0, 100_000)]
    for number in range(1, 7):
        at = 10_000 * number
        events += [launch(number, at, at + 500), kernel(number, at + 1000, at + 13_000)]
        for phase, place in (("s", events[-2]), ("f", events[-1])):
            events.append(
                {"ph": phase, "cat": "ac2g", "id": number, **{key: place[key] for key in ("pid", "tid", "ts")}}
            )
    written = repaired(tmp_path, events)
    assert crossings(written) == []
    work = {event["ts"]: event["tid"] for event in written if event.get("cat") == "kernel"}
    assert len(set(work.values())) == 2
    assert {event["ts"]: event["tid"] for event in written if event["ph"] == "f"} == work


def test_unclosed_frame_ends_in_the_repaired_trace(tmp_path):
    events = [python_frame("train.py(1): main", 0, 100_000, Python_id=1, Python_parent_id=None)]
    for number in range(2, 6):
        frame = python_frame("ops.py(1): f", 10_000 * number, 99_000, Python_id=number, Python_parent_id=1)
        events += [frame, *with_stacks(f"label {number}", 10_000 * number + 1000, 10_000 * number + 9000)]
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    path = kept(tmp_path, trace)
    assert crossings(events_of(path)) == []
    assert is_same(trace, read(path))


def test_a_kernel_that_lasts_too_long_keeps_its_length(tmp_path):
    events = [step_mark(1, 0, 900_000)]
    for number in range(1, 7):
        at = 100_000 * number
        events += [op("aten::mm", at, at + 900, external=number), launch(number, at, at + 500, external=number)]
        events.append(kernel(number, at + 1000, at + (800_000 if number == 3 else 13_000), external=number))
    written = repaired(tmp_path, events)
    assert crossings(written) == []
    assert max(event["dur"] for event in written if event.get("cat") == "kernel") == 799.0
    assert read(tmp_path / "kept.json.gz").doubts == read(tmp_path / "t.json").doubts


def test_a_sound_trace_is_copied_to_the_byte(tmp_path):
    events = [step_mark(1, 0, 10_000), op("aten::mm", 100, 200), launch(1, 120, 130), kernel(1, 200, 900)]
    path = testing.write_trace(tmp_path / "t.json", events)
    assert kept(tmp_path, read(path), compress=False).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["训练", "évaluation", "模型.py(3): 前向"])
def test_names_are_written_in_their_letters(tmp_path, name):
    escaped = "".join(letter if letter.isascii() else f"&#x{ord(letter):x};" for letter in name)
    path = testing.write_trace(tmp_path / "t.json", [op("aten::mm", 0, 900), annotation(escaped, 100, 800)])
    trace = read(path)
    written = kept(tmp_path, trace, compress=False)
    assert f'"{name}"' in written.read_text(encoding="utf-8")
    assert is_same(trace, read(written))


def test_a_file_with_an_event_that_is_no_json_is_copied(tmp_path):
    event = json.dumps(python_frame("PATH", 0, 5000)).replace("PATH", r"C:\users\me\a.py(3): f")
    label = json.dumps(annotation("&#x8bad;", 1000, 9000))
    (tmp_path / "t.json").write_text(f'{{"traceEvents":[{label},{event}]}}')
    trace = read(tmp_path / "t.json")
    written = kept(tmp_path, trace, compress=False)
    assert written.read_bytes() == (tmp_path / "t.json").read_bytes()


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("frame", "label", "op", "kernel", "shadow")), st.integers(0, 60), st.integers(0, 60)
        ),
        max_size=25,
    )
)
def test_repaired_trace_has_no_crossing_slices(tmp_path_factory, slices):
    tmp_path = tmp_path_factory.mktemp("traces")
    make = {
        "frame": lambda number, start, end: python_frame(f"a.py({number}): f", start, end),
        "label": lambda number, start, end: annotation(f"label {number}", start, end),
        "op": lambda number, start, end: op(f"aten::op{number}", start, end),
        "kernel": lambda number, start, end: kernel(number + 1, start, end, name=f"kernel {number}"),
        "shadow": lambda number, start, end: (
            annotation(f"label {number}", start, end) | {"cat": "gpu_user_annotation", "pid": 0, "tid": 7}
        ),
    }
    events = [
        make[kind](number, 100 * start + 1000, 100 * (start + span) + 1000)
        for number, (kind, start, span) in enumerate(slices)
    ]
    trace = read(testing.write_trace(tmp_path / "t.json", [step_mark(0, 500, 20_000), *events]))
    path = kept(tmp_path, trace)
    assert crossings(events_of(path)) == []
    assert len(events_of(path)) >= len(events)
    assert slices_of(trace) == slices_of(read(path))


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_every_dialect_stays_the_same_trace(tmp_path, dialect):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(Machine(DIALECTS[dialect]).whole(), default=float))
    trace = read(path)
    again = read(kept(tmp_path, trace))
    assert is_same(trace, again)


STACKS = r"""
import sys, torch, perfhooks

class \u7f51\u7edc(torch.nn.Sequential):
    pass

def \u8bad\u7ec3(batch):
    with prof.region("\u524d\u5411"):
        return model(batch).sum()

def \u00e9tape(batch):
    return \u8bad\u7ec3(batch)

model = \u7f51\u7edc(torch.nn.Linear(16, 16), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with perfhooks.Profiler(
    schedule="wait=0 warmup=1 active=2", with_stack=True, out=sys.argv[1], run="r", background=False
) as prof:
    for _ in range(4):
        \u00e9tape(torch.randn(4, 16)).backward()
        optimizer.step()
        optimizer.zero_grad()
        prof.step()
"""


def test_window_with_stacks_keeps_all_events(tmp_path, run_script):
    script = STACKS.encode().decode("unicode_escape")
    done = run_script(script, tmp_path / "perf")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "perf").rglob("rank0.pt.trace.json*")
    events = events_of(path)
    assert crossings(events) == []
    steps = {event["tid"] for event in events if event.get("name", "").startswith("ProfilerStep")}
    assert steps == {event["tid"] for event in events if event.get("name", "").endswith(": étape")}
    names = {event["name"] for event in events if event.get("cat") == "python_function"}
    assert "unknown" not in names
    assert {"训练", "étape"} <= {name.rpartition(": ")[2] for name in names}
    assert any(name.startswith("nn.Module: 网络") for name in names)
    trace = read(path)
    assert labels_table(trace).filter(labels_table(trace)["name"] == "前向")["calls"].item() == 2
    functions = dict(Tables(trace).functions.select("function", "calls").rows())
    assert (functions["训练"], functions["étape"]) == (2, 2)
    assert len({trace.threads[number] for number in trace.thread[trace.rows(Kind.ANNOTATION)]}) == 1
