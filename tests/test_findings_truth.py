"""What a page may say: no green light over a dark room, and no gain beyond what a step takes when nobody records."""

from dataclasses import replace

import msgspec
import pytest

from perfhooks import testing
from perfhooks.analysis import findings
from perfhooks.analysis.findings.finding import scale_to_unprofiled
from perfhooks.core import words
from perfhooks.report.page import window_data
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


# --- no green light over a dark room ---


def test_a_large_part_without_a_name_is_a_finding(tmp_path):
    """How much, and the lines in it; operators have names."""
    trace = trace_of(
        tmp_path,
        half_named(
            50,
            lambda begin: python_frame("train.py(7): loss", begin + 50 * MS, begin + 99 * MS),
            lambda begin: op("aten::cdist", begin + 52 * MS, begin + 72 * MS),
        ),
    )
    finding = found(WHOLE, trace)["unnamed-time"]
    assert finding.title == "Code outside of torch takes 30 ms of a step."
    assert (finding.gain_ms, finding.is_bound) == (pytest.approx(30), True)
    assert list(finding.lines) == [
        "30 ms outside of torch operators and of all named parts of the step",
        "train.py(7): loss: 29 ms",
    ]


def test_an_inference_has_no_parts_that_could_have_names(tmp_path):
    trace = trace_of(tmp_path, [step_mark(0, 0, 100 * MS), op("aten::mm", 0, MS)])
    assert "unnamed-time" not in found(WHOLE, trace)


@pytest.mark.parametrize(("share", "expected"), [(80, []), (79, ["unnamed-time"])])
def test_absence_of_problems_needs_four_fifths_of_the_time(share, expected, tmp_path):
    trace = trace_of(tmp_path, half_named(share))
    assert list(found(WHOLE, trace)) == expected
    assert window_data.reduce(WHOLE, trace)["findings"]["accounted"] == share / 100


def test_time_that_recording_doubles_is_not_unnamed_time(tmp_path):
    """Without a name may be what the recorder does between two operators."""
    trace = trace_of(tmp_path, half_named(50))
    cost = Cost(idle_step_ms=60.0, recorded_step_ms=100.0)
    assert set(found(replace(WHOLE, cost=cost), trace)) == {"profiler-overhead"}


def test_time_with_device_work_is_not_unnamed_time(tmp_path):
    """The host is ahead of it, and says nothing of where the time goes."""
    trace = trace_of(
        tmp_path,
        half_named(
            10,
            lambda begin: launch(begin // MS + 1, begin + 10, begin + 20),
            lambda begin: kernel(begin // MS + 1, begin + 10 * MS, begin + 95 * MS),
        ),
    )
    assert "unnamed-time" not in found(WHOLE, trace)


@pytest.mark.parametrize(("queued", "is_found"), [(0.02, True), (0.4, False)])
def test_cpu_wait_in_one_step_is_not_code_outside_of_torch(queued, is_found, tmp_path):
    told = replace(WHOLE, circumstances=Circumstances(queued=queued))
    wait = [step_mark(2, 200 * MS, 400 * MS), annotation("backward", 200 * MS, 240 * MS)]
    trace = trace_of(tmp_path, [*half_named(90), *wait])
    assert ("unnamed-time" in found(replace(told, last=2, reached=3), trace)) == is_found
    assert "unnamed-time" in found(told, trace_of(tmp_path, half_named(50))), "in each step"


@pytest.mark.parametrize(("extra", "is_advised"), [([], True), ([python_frame], False)], ids=["no stacks", "stacks"])
def test_stacks_are_advised_only_without_recorded_stacks(extra, is_advised, tmp_path):
    frames = [lambda begin, make=make: make("train.py(7): loss", begin, begin + MS) for make in extra]
    finding = found(WHOLE, trace_of(tmp_path, half_named(50, *frames)))["unnamed-time"]
    assert ("with_stack=True" in finding.advice) == ("with_stack=True" in finding.code) == is_advised


def test_named_functions_ran_in_the_wait(tmp_path):
    def loading_and_training(begin):
        return (
            ("data.py(3): __getitem__", begin + MS, begin + 39 * MS),
            ("train.py(7): loss", begin + 50 * MS, begin + 99 * MS),
        )

    events = [
        *loading(40),
        *(python_frame(*each) for begin in (0, 100 * MS) for each in loading_and_training(begin)),
        python_frame("train.py(1): train", 0, 199 * MS),
        python_frame("data.py(9): decode", 10 * MS, 29 * MS),
    ]
    finding = found(WHOLE, trace_of(tmp_path, events))["waiting-for-data"]
    assert finding.lines[-2:] == ("data.py(3): __getitem__: 28.5 ms", "data.py(9): decode: 9.5 ms"), "of each its own"
    assert not any("loss" in line for line in finding.lines)


# --- steps of another kind ---


def with_part(name, milliseconds, *, steps=2, of=(0, 1)):
    """Steps of 100 ms of which some have such a part, and the rest of all is the forward pass."""
    for number in range(steps):
        begin = 100 * number * MS
        end = begin + round(milliseconds * MS) * (number in of)
        yield step_mark(number, begin, begin + 100 * MS)
        yield annotation(name, begin, end)
        yield annotation("forward", end, begin + 100 * MS)


@pytest.mark.parametrize(
    ("part", "share", "rules"),
    [
        ("validation", 90, []),
        ("checkpoint", 90, []),
        ("data", 4.5, []),
        ("data", 5.5, ["waiting-for-data"]),
    ],
)
def test_part_is_a_finding_from_its_threshold_on(part, share, rules, tmp_path):
    """A twentieth of waiting. Validations and checkpoints are judged over the whole run."""
    assert list(found(WHOLE, trace_of(tmp_path, with_part(part, share)))) == rules


def test_fetches_of_a_validation_are_no_wait_of_the_training(tmp_path):
    """In each step of 100 ms those take 40 ms, and the batch to train on 1 ms."""
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events = []
    for number in (0, 1):
        begin = 100 * number * MS
        events += [
            step_mark(number, begin, begin + 100 * MS),
            annotation("data", begin, begin + MS),
            annotation(loader, begin + 10 * MS, begin + 50 * MS),
            annotation("validation (auto)", begin + 50 * MS, begin + 99 * MS),
        ]
    assert list(found(WHOLE, trace_of(tmp_path, events))) == []


def test_figures_are_of_steps_of_the_usual_kind(tmp_path):
    """Two of three wait for 30 ms; the third validates, and waits for nothing."""
    events = [*with_part("data", 30), step_mark(2, 200 * MS, 300 * MS), annotation("validation", 200 * MS, 300 * MS)]
    finding = found(replace(WHOLE, last=2, reached=3), trace_of(tmp_path, events))["waiting-for-data"]
    assert finding.title == "The step waits 30 ms for data, 30% of its time."
    assert any(line.endswith("on average over steps 0-1") for line in finding.lines)


# --- gains are those of steps that nobody records ---

SLOWED = replace(WHOLE, cost=Cost(idle_step_ms=40.0, recorded_step_ms=100.0))


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


def test_recording_overhead_is_subtracted_from_parts(tmp_path):
    """Of the 60 ms that it adds, the wait for data has as much as it has of the slices that were written down."""
    few, many = (found(SLOWED, trace_of(tmp_path, waiting(slices)))["waiting-for-data"] for slices in (0, 48))
    assert few.gain_ms == pytest.approx(40)
    assert many.gain_ms == pytest.approx(20)
    assert many.gain_percent == pytest.approx(50)


def test_gain_is_at_most_the_unprofiled_step(tmp_path):
    capture = replace(WHOLE, cost=Cost(idle_step_ms=13.8, recorded_step_ms=100.0))
    finding = found(capture, trace_of(tmp_path, waiting(0)))["waiting-for-data"]
    assert (finding.gain_ms, finding.gain_percent) == (13.8, 100)


def test_a_problem_that_only_recording_makes_is_none(tmp_path):
    assert "waiting-for-data" not in found(SLOWED, trace_of(tmp_path, waiting(97)))


def test_wait_of_the_timeline_replaces_the_profiled_wait(tmp_path):
    """A step of 104 ms waits 51 ms for data; recording, all of it in the loader's calls, makes it 1000 and 950 ms.

    By the number of slices nearly nothing of the wait would remain.
    """
    events = [
        event
        for number in (0, 1)
        for begin in (1000 * number * MS,)
        for event in (
            step_mark(number, begin, begin + 1000 * MS),
            annotation("data", begin, begin + 950 * MS),
            annotation("forward", begin + 950 * MS, begin + 1000 * MS),
            *(op("a", begin + place * 10 + 1, begin + place * 10 + 6) for place in range(99)),
        )
    ]
    trace = trace_of(tmp_path, events)
    cost = Cost(idle_step_ms=104.0, recorded_step_ms=1000.0)
    assert found(replace(WHOLE, cost=cost), trace)["waiting-for-data"].title.startswith("The step waits 950 ms"), (
        "blind"
    )
    finding = found(replace(WHOLE, cost=replace(cost, idle_data_ms=51.0)), trace)["waiting-for-data"]
    assert finding.gain_ms == pytest.approx(51)
    assert finding.gain_percent == pytest.approx(100 * 51 / 104)
    assert finding.title == "The step waits 51 ms for data, 49% of its time."
    assert finding.lines[0] == "unprofiled steps wait 51 ms of 104 ms for data, by the run's own clock"
    silent = found(replace(WHOLE, cost=replace(cost, idle_data_ms=5.0)), trace)
    assert "waiting-for-data" not in silent, "recording alone makes the wait"


@pytest.mark.parametrize(("waited", "rules"), [(30.0, 1), (1.0, 0)])
def test_a_wait_that_recording_hides_is_found_in_the_timeline(waited, rules, tmp_path):
    """4 of 100 ms of a recorded step are wait: too little to be said, if the timeline does not know better."""
    trace = trace_of(tmp_path, loading(4))
    cost = Cost(idle_step_ms=60.0, idle_data_ms=waited, recorded_step_ms=100.0)
    assert len({"waiting-for-data"} & set(found(replace(WHOLE, cost=cost), trace))) == rules
    assert "waiting-for-data" not in found(WHOLE, trace)


def test_device_work_during_the_wait_reduces_the_gain(tmp_path):
    """It works in 30 of the 50 ms of the recorded wait, so two fifths of the wait could go."""
    events = [*waiting(10)]
    for number in (0, 1):
        begin = 100 * number * MS
        events += [
            launch(number + 1, begin + 10 * MS - 2000, begin + 10 * MS - 1000),
            kernel(number + 1, begin + 10 * MS, begin + 40 * MS),
        ]
    cost = Cost(idle_step_ms=80.0, idle_data_ms=50.0, recorded_step_ms=100.0)
    finding = found(replace(WHOLE, cost=cost), trace_of(tmp_path, events))["waiting-for-data"]
    assert finding.gain_ms == pytest.approx(20, abs=0.01)
    assert finding.title == "The step waits 20 ms for data, 25% of its time."


# --- workers: as many as there is room for ---


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


def test_workers_are_not_advised_without_a_free_cpu(tmp_path):
    capture = replace(WHOLE, circumstances=Circumstances(cores=2, ranks=2, threads=1))
    finding = found(capture, trace_of(tmp_path, loading(50)))["waiting-for-data"]
    assert "2 CPUs for 2 ranks" in finding.advice
    assert "num_workers" not in finding.code
    assert (finding.gain_ms, finding.is_bound) == (pytest.approx(50), True)


WORKERS = "_MultiProcessingDataLoaderIter"


def test_unsampled_workers_get_no_advice_about_their_number(tmp_path):
    capture = replace(WHOLE, circumstances=Circumstances(cores=8, ranks=1, threads=2))
    finding = found(capture, trace_of(tmp_path, loading(50, WORKERS)))["waiting-for-data"]
    assert "Measure the loader alone" in finding.advice
    assert finding.code.startswith("perfhooks try --loader")
    assert (finding.gain_ms, finding.is_bound) == (pytest.approx(50), True)


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


def planned(tmp_path, makings, *, cores=16, loader=None, memory=None, **known):
    told = Circumstances(cores=cores, threads=1, workers=makings, loader=loader, memory_bytes=memory)
    capture = replace(WHOLE, circumstances=told, **known)
    return found(capture, trace_of(tmp_path, loading(50, WORKERS)))["waiting-for-data"]


def test_too_few_workers_get_a_sufficient_number(tmp_path):
    finding = planned(tmp_path, making(2, 200))
    assert finding.code == "DataLoader(..., num_workers=4, persistent_workers=True)"
    assert "4 workers would keep up: the wait falls to 0% of the step" in finding.advice
    assert finding.gain_ms == pytest.approx(50)
    assert "200 ms of CPU time; 100 MiB of memory per worker" in " ".join(finding.lines)


def test_computation_during_the_wait_for_data_is_no_gain(tmp_path):
    """It unpacks each batch: of 50 ms of waiting it computes for 20, whatever the number of workers."""
    cost = Cost(idle_step_ms=100, idle_data_ms=50, idle_thread_ms=70)
    finding = planned(tmp_path, making(1, 100), cost=cost)
    assert "2 workers would keep up: the wait falls to 0% of the step" in finding.advice
    assert finding.gain_ms == pytest.approx(30)


def test_advised_workers_are_limited_by_free_cpus(tmp_path):
    """A step computes 50 ms and its batch 200: three processors take 83 ms for that, whatever the number of workers."""
    finding = planned(tmp_path, making(2, 200), cores=3)
    assert "4 workers would keep up; 2 CPUs are free. 3 supply 60% of the batches" in finding.advice
    assert "the wait falls to 40%" in finding.advice
    assert finding.gain_ms == pytest.approx(100 - 250 / 3, abs=1)
    full = planned(tmp_path, making(2, 200), cores=2)
    assert "More than 2 would not be faster" in full.advice
    assert "num_workers" not in full.code


def test_workers_that_wait_for_a_disk_can_exceed_the_cpus(tmp_path):
    finding = planned(tmp_path, making(2, 200, processor=0.05), cores=2)
    assert finding.code.startswith("DataLoader(..., num_workers=4,")
    assert "Workers spend 95% of a batch waiting for a disk, a network or a lock" in finding.advice
    assert "Read less or faster" in finding.advice


@pytest.mark.parametrize(
    ("disk", "waits", "count", "advice"),
    [(900, 100, 20, "Read less or faster"), (100, 900, 20, "not for a disk"), (100, 900, 19, "Read less or faster")],
)
def test_waits_of_workers_are_shown_with_enough_samples(tmp_path, disk, waits, count, advice):
    stack = "torch/utils/data/_utils/fetch.py(50): fetch;a.py(3): load"
    workers = [
        msgspec.structs.replace(worker, samples=count // 2, stacks={stack: {"disk": disk, "waits": waits}})
        for worker in making(2, 200, processor=0.05)
    ]
    assert advice in planned(tmp_path, tuple(workers)).advice


def test_rare_slow_batches_suggest_more_prefetching(tmp_path):
    finding = planned(
        tmp_path, making(2, 60, waited=0.4, longest=1200), loader=Loader(num_workers=2, prefetch_factor=2)
    )
    assert "one batch took 1.2 s. The prefetched batches last only 200 ms" in finding.advice
    assert finding.code == "DataLoader(..., prefetch_factor=12, persistent_workers=True)"
    assert (finding.gain_ms, finding.is_bound) == (pytest.approx(50), True)


def test_late_transfers_suggest_no_more_workers(tmp_path):
    finding = planned(tmp_path, making(2, 60, waited=0.4))
    assert "transfer less" in finding.advice.lower()
    assert "num_workers" not in finding.code


def test_advised_workers_are_limited_by_memory(tmp_path):
    finding = planned(tmp_path, making(2, 200), memory=150 << 20)
    assert finding.code.startswith("DataLoader(..., num_workers=3,")
    assert "4 workers would keep up; free memory allows 3" in finding.advice


def test_batch_cheaper_than_its_transfer_stays_in_the_training(tmp_path):
    capture = replace(WHOLE, circumstances=Circumstances(cores=16, threads=1))
    finding = found(capture, trace_of(tmp_path, loading(4, wall=10)))["waiting-for-data"]
    assert "Leave num_workers at 0" in finding.advice
    assert "num_workers=" not in finding.code
    assert (finding.gain_ms, finding.is_bound) == (pytest.approx(4), True)


@pytest.mark.recorder
def test_attention_written_out_by_torch_is_not_the_users(tmp_path):
    """With dropout on a CPU it has no kernel of its own: the gradients look as if somebody had written it out."""
    import torch

    def attended(q, *, own):
        if own:
            return torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1)
        return torch.dropout(torch.softmax(q @ q.transpose(-2, -1) / 4, -1), 0.1, True) @ q

    found = {}
    for own in (True, False):
        q = torch.randn(2, 4, 64, 16, requires_grad=True)
        with torch.profiler.profile() as prof:
            for _ in range(3):
                attended(q, own=own).sum().backward()
        path = tmp_path / f"{own}.json"
        prof.export_chrome_trace(str(path))
        names = read(path).names
        assert ("aten::_scaled_dot_product_attention_math" in names) == own
        assert "aten::_softmax_backward_data" in names
        found[own] = [finding.rule for finding in findings.find(Capture(), read(path))]
    assert "written-out-attention" in found[False]
    assert "written-out-attention" not in found[True]


# --- a machine that has more to do ---


def waiting_in(tmp_path, queued, name="_SingleProcessDataLoaderIter"):
    """What is found where the thread of the steps waited for a CPU for such a share of its time."""
    capture = replace(WHOLE, circumstances=Circumstances(cores=16, threads=1, queued=queued))
    return findings.find(capture, trace_of(tmp_path, loading(40, name)))


def test_contention_makes_gains_bounds_and_sorts_doubts_last(tmp_path):
    finding, doubt = waiting_in(tmp_path, 0.2)
    assert doubt.title == "This job waited for a CPU 20% of the time, so times are too high."
    assert (finding.rule, finding.gain_ms, finding.is_bound) == ("waiting-for-data", pytest.approx(40), True)
    assert "too long" in finding.estimate
    assert "no CPU is free" in finding.advice
    assert "shared with other programs" in finding.advice


def test_wait_explained_by_missing_cpus_is_no_finding(tmp_path):
    assert [finding.rule for finding in waiting_in(tmp_path, 0.4, WORKERS)] == ["busy-machine"]
    assert "waiting-for-data" in [finding.rule for finding in waiting_in(tmp_path, 0.4)], "made by the thread itself"


@pytest.mark.parametrize("queued", [None, 0.0, 0.049])
def test_a_quiet_machine_is_no_finding(queued, tmp_path):
    (finding,) = waiting_in(tmp_path, queued)
    assert (finding.rule, finding.gain_ms) == ("waiting-for-data", 40)


def test_recorder_is_not_blamed_on_a_busy_machine(tmp_path):
    slow = replace(WHOLE, cost=Cost(idle_step_ms=40.0, recorded_step_ms=100.0))
    trace = trace_of(tmp_path, half_named(95))
    assert "profiler-overhead" in found(slow, trace)
    busy = replace(slow, circumstances=Circumstances(queued=0.3))
    assert set(found(busy, trace)) == {"busy-machine"}


@pytest.mark.parametrize(("options", "code"), [({}, ""), ({"with_stack": True}, "with_stack=False")])
def test_only_recorded_options_are_advised_against(options, code, tmp_path):
    slow = replace(WHOLE, cost=Cost(idle_step_ms=40.0, recorded_step_ms=100.0), options=options)
    finding = found(slow, trace_of(tmp_path, half_named(95)))["profiler-overhead"]
    assert finding.code == code
    assert ("Record fewer options" in finding.advice) == bool(options)


# --- an unprofiled step becomes known after the window ---


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


@pytest.mark.parametrize("idle_ms", [60.0, 100.0, 150.0])
def test_title_and_gain_are_for_the_same_step(idle_ms, tmp_path):
    (row,) = msgspec.to_builtins(findings.find(WHOLE, trace_of(tmp_path, half_named(60))))
    (again,) = scale_to_unprofiled([row], 100.0, idle_ms, None)
    (back,) = scale_to_unprofiled([again], 100.0, 100.0, None)
    assert again["values"]["unnamed_ms"]["value"] == pytest.approx(again["gain_ms"])
    assert again["title"] == f"Code outside of torch takes {words.ms(again['gain_ms'])} of a step."
    assert again["gain_percent"] >= row["gain_percent"] - 1e-6
    assert back["title"] == row["title"]


def test_title_and_gain_are_for_the_same_step_at_once(tmp_path):
    known = replace(WHOLE, cost=Cost(idle_step_ms=80.0, recorded_step_ms=100.0))
    finding = found(known, trace_of(tmp_path, half_named(60)))["unnamed-time"]
    assert finding.title == f"Code outside of torch takes {words.ms(finding.gain_ms)} of a step."


def test_recording_overhead_is_subtracted_from_gains():
    row = {"gain_ms": 40.0, "gain_percent": 40.0, "profiled_ms": 40.0, "overhead_share": 0.5, "evidence": ()}
    assert scale_to_unprofiled([row], 100.0, 60.0, None)[0]["gain_ms"] == pytest.approx(40 - 0.5 * 40)
    assert scale_to_unprofiled([row | {"overhead_share": 0.0}], 100.0, 30.0, None)[0]["gain_ms"] == 30.0
    assert scale_to_unprofiled([row | {"overhead_share": 1.0}], 100.0, 60.0, None) == []


@pytest.mark.parametrize(("starting", "rules"), [(2, {"recorded-start"}), (1, {"waiting-for-data"})])
def test_first_steps_of_a_program_give_no_advice(starting, rules, tmp_path):
    assert set(found(replace(WHOLE, starting_steps=starting), trace_of(tmp_path, loading(40)))) == rules


def test_upper_bound_is_the_full_time_of_the_evidence(tmp_path):
    """Workers are planned to leave some of the wait; under contention nothing of that plan is sure."""
    told = Circumstances(cores=16, ranks=4, threads=1)
    trace = trace_of(tmp_path, loading(90))
    estimate = found(replace(WHOLE, circumstances=told), trace)["waiting-for-data"]
    bound = found(replace(WHOLE, circumstances=replace(told, queued=0.2)), trace)["waiting-for-data"]
    assert (estimate.is_bound, estimate.gain_ms) == (False, pytest.approx(75, rel=0.02))
    assert (bound.is_bound, bound.gain_ms) == (True, pytest.approx(90))
    assert bound.estimate.startswith("All the time")
