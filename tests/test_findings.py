"""Every rule finds what was planted for it in a real training, and says nothing about the same training done well."""

import dataclasses
import functools
import importlib
import inspect
import json
import logging
import re
import sys
from pathlib import Path

import msgspec
import pytest
from twins import TRACES

from perfhooks import testing
from perfhooks.analysis import findings
from perfhooks.analysis.findings import Evidence, Finding, data, python_code, rare_work
from perfhooks.analysis.findings.finding import source_location
from perfhooks.core import labels
from perfhooks.run.capture import Capture, Cost, Place
from perfhooks.testing import annotation, kernel, launch, op, step_mark
from perfhooks.trace import read

BAD = Path(__file__).parents[1] / "examples" / "bad"
NAMES = sorted(path.stem for path in BAD.glob("*.py"))
OF_RUNS = [name for name in NAMES if name in {rule.__name__ for rule in findings.RUN_RULES}]
OF_WINDOWS = [name for name in NAMES if name not in OF_RUNS]
WITH_STACKS = {"waiting_for_data"}
MS = 1_000_000
"""Nanoseconds."""


def find(capture, trace):
    """What is found but for a part of the step without a name: these trainings have no labels, and this has tests."""
    return [finding for finding in findings.find(capture, trace) if finding.rule != "unnamed-time"]


def rules(found):
    return [finding.rule for finding in found]


@functools.cache
def training(name):
    sys.path.insert(0, str(BAD))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BAD))


@pytest.fixture
def one_thread():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.backends.mkldnn.enabled = True


WORTH_TRYING = ("operator_loop", "zeroed_gradients")
"""Following the advice was measured, and did not always help: the gain is an upper bound."""


def recorded(name, out, *, good, monkeypatch=None):
    """What is found in a window of a training; what this machine does to it by its load is left out.

    What recording cost has tests of its own, and only one of these trainings has data to wait for.
    """
    training(name).main(out, good=good)
    (facts,) = {path.resolve() for path in out.glob("*/train-*/rank0.capture.json")}
    place = Place(facts.parent)
    capture = place.load()
    if monkeypatch is not None and (capture.circumstances.queued or 0) > 0.05:
        # other programs make the work of a step and small operators longer, but not the wait for data
        monkeypatch.setattr(data, "HEAVY", 0.0)
        monkeypatch.setattr(python_code, "SMALL_NS", 10 * python_code.SMALL_NS)
    capture = dataclasses.replace(
        capture, cost=Cost(), circumstances=dataclasses.replace(capture.circumstances, queued=None)
    )
    found = find(capture, read(place.artifact("pt.trace.json.gz")))
    if name != "waiting_for_data":
        # its data is the numbers of a range: what looks like a wait for them is one for a processor
        found = [finding for finding in found if finding.rule != "waiting-for-data"]
    return capture, found


@pytest.mark.recorder
@pytest.mark.usefixtures("one_thread", "nothing_compiled")
@pytest.mark.parametrize("name", OF_WINDOWS)
def test_exactly_the_planted_problem_is_found(name, tmp_path, monkeypatch):
    _, found = recorded(name, tmp_path, good=False, monkeypatch=monkeypatch)
    assert rules(found) == [name.replace("_", "-")]
    (finding,) = found
    assert finding.is_bound == (name in WORTH_TRYING)
    assert finding.gain_ms > 0
    assert 0 < finding.gain_percent <= 100
    assert finding.lines
    assert all(isinstance(line, str) and line for line in finding.lines)
    assert finding.title.endswith(".")
    if name in WITH_STACKS:
        assert any(f"{name}.py" in line for line in finding.lines), "stacks tell the function"


@pytest.mark.recorder
@pytest.mark.usefixtures("one_thread", "nothing_compiled")
@pytest.mark.parametrize("name", OF_WINDOWS)
def test_good_versions_of_bad_trainings_have_no_findings(name, tmp_path):
    _, found = recorded(name, tmp_path, good=True)
    assert found == []


@pytest.mark.recorder
@pytest.mark.parametrize("name", OF_RUNS)
@pytest.mark.parametrize("good", [False, True])
def test_rare_work_is_found_in_the_report_of_a_run(name, good, tmp_path, monkeypatch):
    if not good:
        for share in ("MAJOR", "HEAVY"):  # a pause may take most of such a short run
            monkeypatch.setattr(rare_work, share, 0.0)
    training(name).main(tmp_path, good=good)
    page = next(tmp_path.glob("2*/report.json"))
    found = json.loads(page.read_bytes()).get("findings", [])
    assert [each["rule"] for each in found] == [] if good else [name.replace("_", "-")]
    assert all(0 < each["gain_percent"] <= 50 for each in found)


def test_rules_with_a_measured_gain_describe_the_measurement():
    rules = (*findings.RULES, *findings.RUN_RULES)
    measured = [rule for rule in rules if re.search("is_measured=(?!False)", inspect.getsource(rule))]
    assert measured
    assert [rule.__name__ for rule in measured if not re.search(r"[Mm]easured", rule.__doc__ or "")] == []


def test_rules_have_a_planted_case():
    """Either a script in examples/bad or a synthetic trace in test_findings_devices.py, by the name of the rule."""
    import test_findings_devices

    planted = (
        {name.replace("_", "-") for name in NAMES}
        | set(test_findings_devices.PLANTED)
        | {"profiler-overhead", "unnamed-time", "busy-machine", "held-clocks"}
        | {"graph-breaks", "left-uncompiled", "slow-steps"}  # in test_compilation.py and test_rare_work.py
    )
    assert planted == {rule.__name__.replace("_", "-") for rule in (*findings.RULES, *findings.RUN_RULES)}


# --- what all findings have in common ---


def waiting(wait, wall=100):
    """Two steps that wait for data."""
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    for number in (0, 1):
        begin = number * wall * MS
        yield step_mark(number, begin, begin + wall * MS)
        yield annotation(loader, begin, begin + wait * MS)


def trace_of(tmp_path, events, **metadata):
    return read(testing.write_trace(tmp_path / "t.json", events, **metadata))


WHOLE = Capture(first=0, last=1, reached=2)


def test_largest_gain_comes_first(tmp_path):
    compiling = (annotation("compile_inner (dynamo_timed)", begin * MS, (begin + 60) * MS) for begin in (20, 120))
    found = find(WHOLE, trace_of(tmp_path, [*waiting(10), *compiling]))
    assert rules(found) == ["recompilation", "waiting-for-data"]
    assert [finding.gain_ms for finding in found] == pytest.approx([60, 10])
    assert [finding.gain_percent for finding in found] == pytest.approx([60, 10])


def test_findings_are_plain_data(tmp_path):
    (finding,) = find(WHOLE, trace_of(tmp_path, waiting(50)))
    assert msgspec.json.decode(msgspec.json.encode(finding), type=Finding) == finding


def test_estimates_state_that_gains_overlap(tmp_path):
    (finding,) = find(WHOLE, trace_of(tmp_path, waiting(50)))
    assert "may overlap" in finding.estimate


def test_raising_rule_does_not_affect_other_rules(tmp_path, monkeypatch, caplog):
    def broken(_):
        raise RuntimeError("a rule of the future")

    monkeypatch.setattr(findings, "RULES", (broken, *findings.RULES))
    with caplog.at_level(logging.DEBUG, "perfhooks"):
        found = find(WHOLE, trace_of(tmp_path, waiting(50)))
    assert rules(found) == ["waiting-for-data"]
    assert [record.levelname for record in caplog.records if "broken" in record.getMessage()] == ["DEBUG"]


@pytest.mark.parametrize("wait", [4, 0])
def test_less_than_its_threshold_is_no_finding(wait, tmp_path):
    assert find(WHOLE, trace_of(tmp_path, waiting(wait))) == []


@pytest.mark.parametrize("events", [[op("aten::mm", 0, 10)], [step_mark(0, 5, 5)]], ids=["one", "no time"])
def test_hardly_any_events_are_no_finding_and_no_failure(events, tmp_path, caplog):
    with caplog.at_level(logging.DEBUG, "perfhooks"):
        assert find(Capture(), trace_of(tmp_path, events)) == []
    assert "failed" not in caplog.text


def test_a_step_that_was_cut_short_does_not_count(tmp_path):
    """Its wait would be half of it."""
    events = [*waiting(0), step_mark(2, 200 * MS, 210 * MS), annotation("data", 200 * MS, 209 * MS)]
    capture = Capture(first=0, last=3, reached=2, partial="stopped before its last step")
    assert find(capture, trace_of(tmp_path, events)) == []
    assert rules(find(dataclasses.replace(capture, partial=None), trace_of(tmp_path, events))) == []


@pytest.mark.parametrize(
    ("capture", "steps"),
    [(Capture(stage=labels.FOREIGN, last=0), [0, 1]), (Capture(last=2, reached=3), [0, 1, 2])],
)
def test_a_short_mark_at_the_end_counts_only_if_it_was_planned(tmp_path, capture, steps):
    """An idle ``step()`` leaves one at the end of foreign recordings. In ours, an earlier step may have been paused."""
    trace = trace_of(tmp_path, [*waiting(50), step_mark(2, 200 * MS, 201 * MS)])
    assert Evidence(capture, trace).steps["step"].to_list() == steps


def test_gain_of_the_host_is_idle_time_between_device_work(tmp_path):
    """Nobody knows what lies before the first and after the last work of a recording without steps."""
    events = [op("aten::mm", 0, 100), launch(1, 10, 11), kernel(1, 20, 30), launch(2, 31, 32), kernel(2, 50, 60)]
    stepped = Evidence(Capture(first=0, last=0, reached=1), trace_of(tmp_path, [step_mark(0, 0, 100), *events]))
    whole = Evidence(Capture(), trace_of(tmp_path, events))
    assert [each.host_limit_ms * 1e6 for each in (stepped, whole)] == [pytest.approx(80), pytest.approx(20)]


@pytest.mark.parametrize(("recorded_ms", "expected"), [(15.1, ["profiler-overhead"]), (14.9, []), (None, [])])
def test_recording_overhead_of_half_a_step_has_no_gain(recorded_ms, expected, tmp_path):
    cost = Cost(idle_step_ms=10.0, recorded_step_ms=recorded_ms)
    capture = dataclasses.replace(WHOLE, cost=cost, options={"with_stack": True, "record_shapes": False})
    found = find(capture, trace_of(tmp_path, waiting(0)))
    assert rules(found) == expected
    for finding in found:
        assert finding.gain_ms is finding.gain_percent is None
        assert "recorded with with_stack=True" in finding.lines


# --- on traces of other people's trainings: what was looked at, one by one ---

REAL = {
    "a100-ddp2-train-3steps": ["host-bound", "device-pauses"],
    "alexnet-cuda-sync": ["recorded-start"],
    "b200-eager-stacks-shapes": ["host-bound"],
    "cpu-only-rank34": [],
    "h100-bert-small": ["host-bound"],
    "mi210-gpu-only": ["layout-conversions"],
    "mi250-minitoy-train": ["synchronisation", "recorded-start"],
    "mi300-bert-small": ["host-bound"],
    "odd-no-distributed-info": [],
    "sampled-128ranks-rank0": ["device-pauses", "exposed-communication"],
    "sampled-128ranks-rank1": ["device-pauses", "exposed-communication"],
    "triton-compile": ["kernels-below-limit"],
    "v100-resnet-train-5steps": ["float32-products"],
}
"""The A100, B200, H100 and MI300 idle for 60 to 90% of a step between small kernels; the V100 multiplies float32
without tensor cores and is never idle; the MI210 transposes images around its convolutions for a seventh of the time;
the ranks of the large job communicate for a quarter of the step while nothing computes, and their devices pause for up
to 64 ms at once while the optimizer computes on the host; those of the A100 pause while DDP unflattens gradients. The
program of AlexNet makes its context and loads cuDNN for 42 of 43 s, and one launch of the MI250 takes 6.5 of 9.3 ms.
The attention that was compiled for an MI300X does 1.1 * 10^12 operations in 3.68 ms, 23% of what its datasheet says."""


def found_in(path, caplog):
    with caplog.at_level(logging.DEBUG, "perfhooks"):
        found = find(Capture(), read(path))
    assert "failed" not in caplog.text
    for finding in found:
        assert finding.gain_ms is None or finding.gain_percent <= 100
    return rules(found)


@pytest.mark.parametrize("name", TRACES)
def test_no_rule_fails_on_any_dialect(name, traces, caplog):
    found = found_in(traces / f"{name}.json.gz", caplog)
    assert ("recorded-start" in found) == (name in ("alexnet-cuda-sync", "mi250-minitoy-train"))


@pytest.mark.slow
def test_real_traces_have_the_expected_findings(recordings, caplog):
    found = {path.name.removesuffix(".json.gz"): found_in(path, caplog) for path in recordings.glob("*.json.gz")}
    assert {name: REAL[name] for name in found.keys() & REAL.keys()} == found


@pytest.mark.parametrize(
    ("name", "location"),
    [
        ("<module> (/a/train.py:7)", (None, "/a/train.py", 7)),
        ("load (exp 1/my (2).py:12)", ("load", "exp 1/my (2).py", 12)),
        ("/a/train.py(7): main", ("main", "/a/train.py", 7)),
        ("exp (1)/моё.py(7): __init__", ("__init__", "exp (1)/моё.py", 7)),
        ("my.py files/train.pyw(7): <lambda>", ("<lambda>", "my.py files/train.pyw", 7)),
        ("my train.py: main", ("main", "my train.py", None)),
        ("train.py: main, in a b/loops.py(56): __next__", ("main", "train.py", None)),
        ("aten::addmm in a b/layer.py(122): apply", ("apply", "a b/layer.py", 122)),
        ("the call in train.py, which waits", (None, None, None)),
    ],
)
def test_location_of_evidence_is_function_file_and_line(name, location):
    assert source_location(evidence_of(name))[:3] == location


def evidence_of(*names):
    values = [{"name": {"value": name, "unit": "name"}, "time_ms": {"value": 3.0, "unit": "ms"}} for name in names]
    return [{"phrase": "source", "text": "", "values": value} for value in values]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("my train.py: main", "main, my train.py"),
        ("train.py: main, in <built-in function sleep>", "sleep in main, train.py"),
        ("train.py: main, in <built-in method sort of numpy.ndarray object at 0x7f>", "sort in main, train.py"),
        ("train.py: <module>, in a b/__init__.py(120): dump", "dump in train.py"),
        ("train.py: main, in a b/loops.py(56): <lambda>", "main, train.py"),
        ("train.py(5): main, in json/__init__.py(120): dump", "main, train.py:5"),
    ],
)
def test_location_of_a_finding_is_its_largest_source(name, shown):
    assert str(source_location(evidence_of(name, "data.py(7): load"))) == shown
