"""What a page may say: no green light over a dark room, and no gain beyond what a step takes when nobody records."""

import itertools
import re
from dataclasses import replace

import msgspec
import pytest
from test_findings_devices import described, sections

from perfhooks import testing
from perfhooks.analysis import findings
from perfhooks.analysis.findings.finding import scale_to_unprofiled, unprofiled_ratio
from perfhooks.core import words
from perfhooks.report.page import run_data, window_data
from perfhooks.report.page.data import WindowData
from perfhooks.run.capture import Capture, Cost
from perfhooks.run.circumstances import Circumstances, Loader
from perfhooks.run.loader.workers import LoaderWorker
from perfhooks.testing import annotation, kernel, launch, op, python_frame, step_mark
from perfhooks.trace import read

MS = 1_000_000
WHOLE = Capture(first=0, last=1, reached=2)


def trace_of(tmp_path, events):
    return read(testing.write_trace(tmp_path / "t.json", events))


def found(capture, trace):
    return {finding.rule: finding for finding in findings.find(capture, trace)}


def half_named(share, *extra):
    """Two steps of 100 ms, of which a share has a label."""
    for number in (0, 1):
        begin = 100 * number * MS
        yield step_mark(number, begin, begin + 100 * MS)
        yield annotation("forward", begin, begin + (share - 1) * MS)
        yield annotation("backward", begin + (share - 1) * MS, begin + share * MS)
        yield from (make(begin) for make in extra)


@pytest.mark.parametrize(("share", "expected"), [(80, []), (79, ["unnamed-time"])])
def test_absence_of_problems_needs_four_fifths_of_the_time(share, expected, tmp_path):
    trace = trace_of(tmp_path, half_named(share))
    assert list(found(WHOLE, trace)) == expected
    assert window_data.reduce(WHOLE, trace)["findings"]["accounted"] == share / 100


def test_code_of_perfhooks_is_not_code_of_the_training(tmp_path):
    """perfhooks ends the window inside ``main``, and wraps the dataset."""
    begin = 60 * MS
    frames = [
        python_frame("train.py(9): main", begin, begin + 40 * MS),
        python_frame("helper.py(2): busy", begin + MS, begin + 10 * MS),
        python_frame("perfhooks/record/loop/labelling.py(276): noted", begin + 10 * MS, begin + 39 * MS),
        python_frame("data.py(7): load", begin + 11 * MS, begin + 14 * MS),
    ]
    evidence = found(WHOLE, trace_of(tmp_path, [*half_named(60), *frames]))["unnamed-time"].lines
    assert [line.partition(": ")[2] for line in evidence[1:]] == ["busy: 4.5 ms", "load: 1.5 ms", "main: 1 ms"]


def with_part(name, milliseconds, *, steps=2, of=(0, 1)):
    """Steps of 100 ms of which some have such a part, and the rest of all is the forward pass."""
    for number in range(steps):
        begin = 100 * number * MS
        end = begin + round(milliseconds * MS) * (number in of)
        yield step_mark(number, begin, begin + 100 * MS)
        yield annotation(name, begin, end)
        yield annotation("forward", end, begin + 100 * MS)


def waiting(slices):
    """Two steps of 100 ms that wait for data for 50, in which so many of 100 slices are recorded."""
    for number in (0, 1):
        begin = 100 * number * MS
        yield step_mark(number, begin, begin + 100 * MS)
        yield annotation("data", begin, begin + 50 * MS)
        yield annotation("forward", begin + 50 * MS, begin + 100 * MS)
        yield from (op("a", begin + (place + 1) * 10, begin + (place + 1) * 10 + 5) for place in range(slices))
        late = begin + 51 * MS
        yield from (op("b", late + place * 10, late + place * 10 + 5) for place in range(97 - slices))


def test_gain_is_at_most_the_unprofiled_step(tmp_path):
    capture = replace(WHOLE, cost=Cost(idle_step_ms=13.8, recorded_step_ms=100.0))
    finding = found(capture, trace_of(tmp_path, waiting(0)))["waiting-for-data"]
    assert (finding.gain_ms, finding.gain_percent) == (13.8, 100)


def test_host_time_is_at_most_its_part_of_an_unprofiled_step(tmp_path):
    events = [event for number in (0, 1) for event in unfolding(100 * number * MS)]
    capture = replace(WHOLE, cost=Cost(idle_step_ms=50.0, recorded_step_ms=100.0))
    finding = found(capture, trace_of(tmp_path, events))["slow-convolution"]
    assert finding.most_ms == pytest.approx(30)
    assert "30 ms of a step" in finding.title


def unfolding(begin):
    yield step_mark(begin // (100 * MS), begin, begin + 100 * MS)
    yield op("aten::_slow_conv2d_forward", begin, begin + 60 * MS)


@pytest.mark.parametrize(("is_bound", "ratio"), [(True, 8 / 20), (False, 0.2)])
def test_bound_allows_for_equal_overhead_of_all_parts(is_bound, ratio):
    """The overhead of 12 ms lies in ten ms of the step to two thirds, by its events: 2 ms remain, or 4 ms of 8 ms."""
    assert unprofiled_ratio(10, 8 / 12, 20, 8, is_bound=is_bound) == pytest.approx(ratio)


def loading(milliseconds, name="_SingleProcessDataLoaderIter", wall=100):
    """Two steps that wait so long for a loader."""
    for number in (0, 1):
        begin = wall * number * MS
        yield step_mark(number, begin, begin + wall * MS)
        yield annotation(f"enumerate(DataLoader)#{name}.__next__", begin, begin + milliseconds * MS)
        yield annotation("forward", begin + milliseconds * MS, begin + wall * MS)


@pytest.mark.parametrize(
    ("wait", "circumstances", "workers", "gain"),
    [
        (40, Circumstances(cores=16, ranks=1, threads=1), 1, 40),
        (75, Circumstances(cores=16, ranks=1, threads=1), 3, 75),
        (75, Circumstances(cores=16, ranks=8, threads=1), 2, 50),
        (90, Circumstances(cores=16, ranks=4, threads=1), 4, 100 - 100 / 4),
    ],
    ids=["one is enough", "three are needed", "eight ranks share the processors", "no more than are to spare"],
)
def test_number_of_workers_is_sufficient_and_fits(wait, circumstances, workers, gain, tmp_path):
    """What is gained is what they can do: two processors that compute for 100 ms a step let none take less than 50."""
    capture = replace(WHOLE, circumstances=circumstances)
    finding = found(capture, trace_of(tmp_path, loading(wait)))["waiting-for-data"]
    assert finding.code == f"DataLoader(..., num_workers={workers}, persistent_workers=True)"
    assert finding.gain_ms == pytest.approx(gain, rel=0.02)


WORKERS = "_MultiProcessingDataLoaderIter"


def making(workers, batch_ms, *, processor=1.0, waited=0.0, longest=None, handed_over=0.0):
    """What workers did in 100 batches each that take so long, for a share of which they compute."""
    batch = batch_ms / 1e3
    rare = 0.0 if longest is None else (longest / 1e3) ** 2
    return tuple(
        LoaderWorker(
            worker=number,
            pid=100 + number,
            batches=100,
            wall_s=100 * (batch + handed_over) / (1 - waited),
            busy_s=100 * batch,
            cpu_s=100 * batch * processor,
            squares=100 * batch**2 + rare,
            longest_s=batch if longest is None else longest / 1e3,
            idle_s=100 * batch / (1 - waited) * waited,
            transfer_s=100 * handed_over,
            memory_bytes=100 << 20,
            queued_s=0.0,
        )
        for number in range(workers)
    )


def frames(*rows):
    """Makes for each step frames of these names, from and to so many milliseconds."""
    return [lambda begin, row=row: python_frame(row[0], begin + row[1] * MS, begin + row[2] * MS) for row in rows]


def distances(begin):
    return op("aten::cdist", begin + 52 * MS, begin + 72 * MS)


def computing(first, last):
    """Makes for each step a kernel in these milliseconds, launched at once."""

    def number(begin):
        return begin // MS + 1

    return [
        lambda begin: launch(number(begin), begin + first * MS - 2000, begin + first * MS - 1000),
        lambda begin: kernel(number(begin), begin + first * MS, begin + last * MS),
    ]


def also(events, *extra):
    return [*events, *(make(begin) for begin in (0, 100 * MS) for make in extra)]


def validating():
    """In each step the fetches of a validation take 40 ms, and the batch to train on 1 ms."""
    for number in (0, 1):
        begin = 100 * number * MS
        yield step_mark(number, begin, begin + 100 * MS)
        yield annotation("data", begin, begin + MS)
        yield annotation(LOADER, begin + 10 * MS, begin + 50 * MS)
        yield annotation("validation (auto)", begin + 50 * MS, begin + 99 * MS)


def recorder_in_loader():
    """Recording, all of it in the loader's calls, makes a wait of 51 ms in a step of 104 ms 950 of 1000 ms."""
    for number in (0, 1):
        begin = 1000 * number * MS
        yield step_mark(number, begin, begin + 1000 * MS)
        yield annotation("data", begin, begin + 950 * MS)
        yield annotation("forward", begin + 950 * MS, begin + 1000 * MS)
        yield from (op("a", begin + place * 10 + 1, begin + place * 10 + 6) for place in range(99))


def cost(unprofiled, data=None, thread=None, profiled=100.0, **known):
    ms = {"idle_step_ms": unprofiled, "idle_data_ms": data, "idle_thread_ms": thread, "recorded_step_ms": profiled}
    return replace(WHOLE, cost=Cost(**ms), **known)


def alone(others):
    return replace(WHOLE, cost=Cost(others=others))


def on(capture=WHOLE, *, cores=16, threads=1, **known):
    return replace(capture, circumstances=Circumstances(cores=cores, threads=threads, **known))


def sampled(disk, waits, samples):
    stacks = {"torch/utils/data/_utils/fetch.py(50): fetch;a.py(3): load": {"disk": disk, "waits": waits}}
    workers = making(2, 200, processor=0.05)
    return on(workers=tuple(msgspec.structs.replace(each, samples=samples, stacks=stacks) for each in workers))


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
THIRD = replace(WHOLE, last=2, reached=3)
LAST_VALIDATES = [step_mark(2, 200 * MS, 300 * MS), annotation("validation", 200 * MS, 300 * MS)]
LAST_WAITS = [step_mark(2, 200 * MS, 400 * MS), annotation("backward", 200 * MS, 240 * MS)]
FRAMES = frames(("train.py(7): loss", 50, 99))
FETCHES = frames(("data.py(3): __getitem__", 1, 39), ("train.py(7): loss", 50, 99))
AROUND = [python_frame("train.py(1): train", 0, 199 * MS), python_frame("data.py(9): decode", 10 * MS, 29 * MS)]
STARTING = "torch/profiler/profiler.py(9): start_trace"
SLEEPING = python_frame("<built-in function sleep>", 60 * MS, 90 * MS)
RUNNING = [python_frame("train.py(5): main", 0, 199 * MS), python_frame(STARTING, 1, 2), SLEEPING, *AROUND[1:]]
CLIPPING = [
    python_frame(f"torch/nn/utils/clip_grad.py({line}): {name}", begin * MS, end * MS)
    for line, name, begin, end in ((36, "_no_grad_wrapper", 55, 95), (192, "clip_grad_norm_", 56, 94))
]
SLOW, FAST = making(2, 200), making(2, 60, waited=0.4)
AHEAD = Loader(num_workers=2, prefetch_factor=2)
CASES = {
    "unnamed-time": {
        "half of the step": (half_named(50), WHOLE),
        # operators have names
        "with a line": (half_named(50, *FRAMES, distances), WHOLE),
        "with stacks": (half_named(50, *frames(("train.py(7): loss", 0, 1))), WHOLE),
        # of such a function, torch knows only the line of that moment
        "in a function that ran before the recording": ([*half_named(50), *RUNNING], WHOLE),
        # a decorator of torch has no name that a user knows
        "in a decorated function": ([*half_named(50), *RUNNING[:2], *CLIPPING], WHOLE),
        "of an unprofiled step": (half_named(60), cost(80.0)),
        # that may be the recorder between two operators
        "doubled by recording": (half_named(50), cost(60.0)),
        "beside work of the device": (half_named(10, *computing(10, 95)), WHOLE),
        "of an inference": ([step_mark(0, 0, 100 * MS), op("aten::mm", 0, MS)], WHOLE),
        "in a step of few waits for a CPU": ([*half_named(90), *LAST_WAITS], on(THIRD, queued=0.02)),
        "in a step of many waits for a CPU": ([*half_named(90), *LAST_WAITS], on(THIRD, queued=0.4)),
        "in each step, with waits for a CPU": (half_named(50), on(queued=0.4)),
    },
    "recorder": {
        "60% of a step": (half_named(95), cost(40.0)),
        "with stacks": (half_named(95), cost(40.0, options={"with_stack": True})),
        "on a busy machine": (half_named(95), on(cost(40.0), queued=0.3)),
    },
    "waits": {
        "a loader": (loading(40), WHOLE),
        # each frame has its own time in the wait
        "with functions": ([*also(loading(40), *FETCHES), *AROUND], WHOLE),
        "5.5%": (with_part("data", 5.5), WHOLE),
        "4.5%": (with_part("data", 4.5), WHOLE),
        # these are judged over the whole run
        "a validation": (with_part("validation", 90), WHOLE),
        "a checkpoint": (with_part("checkpoint", 90), WHOLE),
        "fetches of a validation": (validating(), WHOLE),
        "in two of three steps": ([*with_part("data", 30), *LAST_VALIDATES], THIRD),
        "while the program starts": (loading(40), replace(WHOLE, starting_steps=2)),
        "after the program started": (loading(40), replace(WHOLE, starting_steps=1)),
        # of the 60 ms of overhead, the wait has as much as it has of the recorded slices
        "of no recorded slice": (waiting(0), cost(40.0)),
        "of half the recorded slices": (waiting(48), cost(40.0)),
        "of all recorded slices": (waiting(97), cost(40.0)),
        # by the number of slices nearly nothing of the wait would remain
        "recorded, of 950 ms": (recorder_in_loader(), cost(104.0, profiled=1000.0)),
        "unprofiled, of 51 ms": (recorder_in_loader(), cost(104.0, data=51.0, profiled=1000.0)),
        "unprofiled, of 5 ms": (recorder_in_loader(), cost(104.0, data=5.0, profiled=1000.0)),
        "hidden by recording": (loading(4), cost(60.0, data=30.0)),
        "hidden, but short": (loading(4), cost(60.0, data=1.0)),
        "short": (loading(4), WHOLE),
        # the device works in 30 of the 50 ms of the recorded wait, so two fifths of the wait could go
        "beside work of the device": (also(waiting(10), *computing(10, 40)), cost(80.0, data=50.0)),
    },
    "busy-machine": {
        "20% of the time": (loading(40), on(queued=0.2)),
        "40%, in the thread itself": (loading(40), on(queued=0.4)),
        "40%, with workers": (loading(40, WORKERS), on(queued=0.4)),
        "40%, without other programs": (loading(40), on(alone(0.02), queued=0.4)),
        "40%, with other programs": (loading(40), on(alone(0.6), queued=0.4)),
        "unknown": (loading(40), on(queued=None)),
        "never": (loading(40), on(queued=0.0)),
        "4.9%": (loading(40), on(queued=0.049)),
        # workers are planned to leave some of the wait; under contention nothing of that plan is sure
        "a quiet job of four ranks": (loading(90), on(ranks=4)),
        "a job of four ranks": (loading(90), on(ranks=4, queued=0.2)),
    },
    "loader-workers": {
        "too few": (loading(50, WORKERS), on(workers=SLOW)),
        "no free CPU": (loading(50), on(cores=2, ranks=2)),
        "not sampled": (loading(50, WORKERS), on(cores=8, ranks=1, threads=2)),
        # it unpacks each batch: of 50 ms of waiting it computes for 20, whatever the number of workers
        "computing in the wait": (loading(50, WORKERS), on(cost(100, 50, 70, None), workers=making(1, 100))),
        # a step computes 50 ms and its batch 200: three CPUs take 83 ms for that, whatever the number of workers
        "three CPUs": (loading(50, WORKERS), on(cores=3, workers=SLOW)),
        "two CPUs": (loading(50, WORKERS), on(cores=2, workers=SLOW)),
        "waiting for a disk": (loading(50, WORKERS), on(cores=2, workers=making(2, 200, processor=0.05))),
        "20 samples at a disk": (loading(50, WORKERS), sampled(900, 100, 10)),
        "20 samples of other waits": (loading(50, WORKERS), sampled(100, 900, 10)),
        "18 samples of other waits": (loading(50, WORKERS), sampled(100, 900, 9)),
        "rare slow batches": (
            loading(50, WORKERS), on(workers=making(2, 60, waited=0.4, longest=1200), loader=AHEAD)
        ),
        "late transfers": (loading(50, WORKERS), on(workers=FAST)),
        "little memory": (loading(50, WORKERS), on(workers=SLOW, memory_bytes=150 << 20)),
        "batches cheaper than their transfer": (loading(4, wall=10), on()),
    },
}  # fmt: skip
CASES = {
    group: {name: (list(events), capture) for name, (events, capture) in cases.items()}
    for group, cases in CASES.items()
}
"""Traces and what is known of their windows; a golden file has the findings of each group."""


@pytest.mark.parametrize("group", CASES)
def test_findings_of_host_time_equal_the_golden_file(group, tmp_path, golden):
    described_cases = [
        (name, list(described(findings.find(capture, trace_of(tmp_path, events)))))
        for name, (events, capture) in CASES[group].items()
    ]
    golden(f"findings/host/{group}.txt", sections(described_cases))


@pytest.mark.recorder
def test_attention_written_out_by_torch_is_not_the_users(tmp_path):
    """With dropout on a CPU it has no kernel of its own, so nobody should replace what was written out."""
    import torch

    def attended(q, *, own, dropout):
        if own:
            return torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=dropout)
        return torch.dropout(torch.softmax(q @ q.transpose(-2, -1) / 4, -1), dropout, True) @ q

    found = {}
    for own, dropout in ((True, 0.1), (False, 0.1), (False, 0.0)):
        q = torch.randn(2, 4, 128, 32, requires_grad=True)
        steps = torch.profiler.schedule(wait=0, warmup=1, active=9, repeat=1)
        with torch.profiler.profile(schedule=steps) as prof:
            for _ in range(10):
                attended(q, own=own, dropout=dropout).sum().backward()
                prof.step()  # of the time in outliers, in which the process was paused, nothing counts
        path = tmp_path / f"{own}-{dropout}.json"
        prof.export_chrome_trace(str(path))
        names = read(path).names
        assert ("aten::_scaled_dot_product_attention_math" in names) == own
        assert "aten::_softmax_backward_data" in names
        rules = [finding.rule for finding in findings.find(Capture(), read(path))]
        found[own, dropout] = "written-out-attention" in rules
    assert found == {(True, 0.1): False, (False, 0.1): False, (False, 0.0): True}


def test_findings_use_unprofiled_steps_that_follow_later(tmp_path):
    """A profiled step of 100 ms waits 40 ms; an unprofiled one of 60 ms waits 50 ms."""
    (row,) = msgspec.to_builtins(findings.find(WHOLE, trace_of(tmp_path, loading(40))))
    (found,) = scale_to_unprofiled([row], 100.0, 60.0, 50.0)
    assert found["title"] == "The step waits 50 ms for data, 83% of its time."
    assert found["values"]["wait_ms"] == {"value": 50.0, "unit": "ms"}
    first = found["evidence"][0]
    assert first["text"] == "unprofiled steps wait 50 ms of 60 ms for data, by the run's own clock"
    assert found["gain_ms"] <= 50
    assert scale_to_unprofiled([row], 100.0, 60.0, 0.1) == []
    again = scale_to_unprofiled([found], 100.0, 30.0, 20.0)[0]
    assert sum("own clock" in line["text"] for line in again["evidence"]) == 1
    (found,) = scale_to_unprofiled([row], 100.0, 50.0, None)
    assert found["title"] == "The step waits 20 ms for data, 40% of its time.", "without waits of unprofiled steps"


@pytest.mark.parametrize("cpus", [2, 3, 16])
@pytest.mark.parametrize(("step_ms", "data_ms"), [(60.0, 50.0), (60.0, 20.0), (200.0, 150.0)])
def test_report_advises_workers_as_if_the_present_step_time_was_known_at_the_window(tmp_path, cpus, step_ms, data_ms):
    trace = trace_of(tmp_path, loading(40))
    early = replace(WHOLE, circumstances=Circumstances(cores=cpus, ranks=1, threads=1))
    present = replace(early, cost=Cost(idle_step_ms=step_ms, idle_data_ms=data_ms))
    stored = msgspec.to_builtins(msgspec.convert(window_data.reduce(early, trace), WindowData))
    report = run_data._rate_unprofiled(stored, present)
    (row,) = (row for row in report["findings"]["rows"] if row["rule"] == "waiting-for-data")
    expected = found(present, trace)["waiting-for-data"]
    assert (row["title"], row["advice"], row["code"]) == (expected.title, expected.advice, expected.code)
    assert (row["is_bound"], row["estimate"]) == (expected.is_bound, expected.estimate)
    assert row["gain_ms"] == pytest.approx(expected.gain_ms)
    if "plan" in report:
        rows = report["plan"]["rows"]
        assert rows["step_ms"][0] == pytest.approx(step_ms, rel=1e-3)
        assert rows["workers"][rows["note"].index("advised")] == int(re.search(r"num_workers=(\d+)", row["code"])[1])


@pytest.mark.parametrize("idle_ms", [60.0, 100.0, 150.0])
def test_title_and_gain_are_for_the_same_step(idle_ms, tmp_path):
    (row,) = msgspec.to_builtins(findings.find(WHOLE, trace_of(tmp_path, half_named(60))))
    (again,) = scale_to_unprofiled([row], 100.0, idle_ms, None)
    (back,) = scale_to_unprofiled([again], 100.0, 100.0, None)
    assert again["values"]["unnamed_ms"]["value"] == pytest.approx(again["gain_ms"])
    assert again["title"] == f"Code outside of torch takes {words.ms(again['gain_ms'])} of a step."
    assert again["gain_percent"] >= row["gain_percent"] - 1e-6
    assert back["title"] == row["title"]


def test_finding_outside_of_waits_is_at_most_its_part_of_an_unprofiled_step(tmp_path):
    """CPU contention made the profiled step long. A step of 11 ms that waits 8 ms has 3 ms for everything else."""
    (row,) = msgspec.to_builtins(findings.find(WHOLE, trace_of(tmp_path, half_named(60))))
    assert row["rest_ms"] == 100
    (found,) = scale_to_unprofiled([row | {"overhead_share": 0.0}], 100.0, 11.0, 8.0)
    assert found["gain_ms"] == pytest.approx(0.4 * 3)
    assert found["values"]["unnamed_ms"]["value"] == pytest.approx(0.4 * 3)
    (found,) = scale_to_unprofiled([row | {"overhead_share": 0.0, "rest_ms": None}], 100.0, 11.0, 8.0)
    assert found["gain_ms"] == 11, "it may be a part of the wait"


def test_recording_overhead_is_subtracted_from_gains():
    row = {"gain_ms": 40.0, "gain_percent": 40.0, "profiled_ms": 40.0, "overhead_share": 0.5, "evidence": ()}
    assert scale_to_unprofiled([row], 100.0, 60.0, None)[0]["gain_ms"] == pytest.approx(40 - 0.5 * 40)
    assert scale_to_unprofiled([row | {"overhead_share": 0.0}], 100.0, 30.0, None)[0]["gain_ms"] == 30.0
    assert scale_to_unprofiled([row | {"overhead_share": 1.0}], 100.0, 60.0, None) == []


# --- loops over operators ---


def looping(calls=500, *, part="forward", length_us=10, launches=False, names=1, between=(), every=250):
    """A step of 60 ms with such a loop, whose calls are 10 us apart; after ``every`` calls, other operators run."""
    yield step_mark(0, 0, 60 * MS)
    yield annotation(part, 0, 50 * MS)
    for call in range(calls):
        begin = call * (length_us + 10) * 1000
        end = begin + length_us * 1000
        yield op(f"aten::select{call % names}", begin, end)
        if call % every == every - 1:
            yield from (
                op(name.format(call % 5), end + first * 1000, end + last * 1000) for name, first, last in between
            )
        if launches:
            yield launch(call + 1, begin, begin + 500)
            yield kernel(call + 1, begin + 500, begin + 700)


@pytest.mark.parametrize(
    ("loop", "times"),
    [
        ({}, ["9.99 ms"]),
        ({"names": 2, "calls": 1000}, ["20 ms"]),
        ({"calls": 499}, []),
        ({"names": 2}, []),
        ({"length_us": 31}, []),
        ({"length_us": 1}, []),
        ({"launches": True}, []),
        ({"part": "data"}, []),
        ({"part": "backward"}, []),
        ({"part": "Optimizer.step#SGD.step"}, []),
        # layers of several micro-batches
        ({"between": [("aten::mm", 1, 200)]}, []),
        # the loop has a rarer operator after each call
        ({"length_us": 15, "between": [("aten::add{}", 0, 9)], "every": 1}, ["12.5 ms"]),
        # one call is large
        ({"between": [("aten::select0", 30_000, 60_000)], "every": 500}, ["9.99 ms"]),
    ],
)
def test_only_many_small_calls_of_the_program_are_a_loop(tmp_path, loop, times):
    capture = Capture(first=0, last=0, reached=1)
    titles = [finding.title for finding in findings.find(capture, trace_of(tmp_path, looping(**loop)))]
    assert re.findall(r"Small operators in a loop take ([\d.]+ ms) of a step", " ".join(titles)) == times


def test_operators_between_two_loops_are_in_neither(tmp_path):
    names = ["aten::select"] * 250 + ["aten::add"] * 30 + ["aten::select"] * 250
    calls = [op(name, 20_000 * index, 20_000 * index + 10_000) for index, name in enumerate(names)]
    events = [step_mark(0, 0, 60 * MS), annotation("forward", 0, 50 * MS), *calls]
    finding = found(Capture(first=0, last=0, reached=1), trace_of(tmp_path, events))["operator-loop"]
    assert finding.lines == ("500 calls of small operators in a step", "aten::select: 5 ms")


def test_one_call_on_the_device_hides_no_loop(tmp_path):
    events = [*looping(501), launch(1, 10_002_000, 10_003_000), kernel(1, 10_004_000, 10_005_000)]
    finding = found(Capture(first=0, last=0, reached=1), trace_of(tmp_path, events))["operator-loop"]
    assert finding.lines == ("500 calls of small operators in a step", "aten::select0: 5 ms")


def test_loop_names_the_line_of_the_program(tmp_path):
    events = [*looping(), python_frame("train.py(7): causal_mask", 0, 11 * MS, **{"Python id": 1})]
    finding = found(Capture(first=0, last=0, reached=1), trace_of(tmp_path, events))["operator-loop"]
    assert finding.lines == ("500 calls of small operators in a step", "train.py(7): causal_mask: 5 ms")


@pytest.mark.parametrize(
    ("name", "part", "milliseconds", "expected"),
    [
        ("mask", "forward", 26, {"forward": "mask, train.py:7"}),
        ("mask", "forward", 24, {}),
        ("mask", "forward", (13, 26, 39), {"forward": "mask, train.py:7"}),
        ("forward", "forward", 26, {}),
        ("mask", "backward", 26, {}),
        ("mask", "", 36, {"other": "mask, train.py:7"}),
    ],
)
def test_largest_function_takes_half_of_a_part(tmp_path, name, part, milliseconds, expected):
    """A part of 50 ms in a step whose loop calls backward."""
    rest = [annotation(label, begin, begin + 50 * MS) for label, begin in ((part, 0), ("backward", 60 * MS)) if label]
    calls = [(0, milliseconds)] if isinstance(milliseconds, int) else itertools.pairwise(milliseconds)
    frames = [("main", 1, 0, 115), *((name, 2, begin, end) for begin, end in calls)]
    events = [
        *(step_mark(0, 0, 120 * MS), *rest),
        *(
            python_frame(f"train.py({5 + number}): {function}", begin * MS, end * MS, **{"Python id": number})
            for function, number, begin, end in frames
        ),
    ]
    capture = Capture(first=0, last=0, reached=1)
    assert window_data.reduce(capture, trace_of(tmp_path, events)).get("largest_functions", {}) == expected
