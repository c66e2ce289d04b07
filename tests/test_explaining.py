"""The second window, which explains the first: when there is one, what it costs, and that nobody takes its times."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np
import pace
import pytest
import torch
from terminal import steps_of_mean

import perfhooks
from perfhooks import trace
from perfhooks.analysis import findings
from perfhooks.analysis.findings import evidence as evidence_module
from perfhooks.analysis.findings import products, texts
from perfhooks.analysis.findings.finding import UNNAMED, Finding, additional_findings
from perfhooks.analysis.findings.texts import EvidenceLine
from perfhooks.cli.actions import show, sources
from perfhooks.record.loop import requested
from perfhooks.record.loop.ending import in_step
from perfhooks.record.loop.limits import explaining, other_threads
from perfhooks.report.page import run_data
from perfhooks.report.page.markdown import of_run
from perfhooks.report.page.run_data import StoredFindings
from perfhooks.run import steps
from perfhooks.run.capture import Capture, Place
from perfhooks.run.circumstances import processor
from perfhooks.run.finished import FinishedRun, FinishedWindow
from perfhooks.trace.limits.datasheets import Peaks
from perfhooks.trials import recorded

pytestmark = pytest.mark.process


class Net(torch.nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, 4))

    def forward(self, x):
        return self.layers(x)


def train(folder, steps=30, data=None, **options):
    """A training whose window nobody planned; its profiler."""
    data = torch.ones(8, 16) if data is None else data
    net = Net(data.shape[1]).to(data)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    given = {"schedule": "when settled", "background": False, "keep_results": False} | options
    with perfhooks.Profiler(out=folder, run="it", **given) as profiler:
        for _ in profiler.steps(range(steps)):
            loss = net(data).sum()
            loss.backward()
            optimizer.step()
            assert loss.item() is not None
    return profiler


def explain_at_once(patch):
    pace.make_even(patch)
    patch.setattr(explaining, "EXPLAINING_S", 1e3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run with both windows."""
    with pytest.MonkeyPatch.context() as patch:
        explain_at_once(patch)
        measured = Peaks(tflops={"float32": 1e-6}, gb_per_s=1e3, source="made up")
        peaks = tmp_path_factory.mktemp("settings") / "peaks.json"
        peaks.write_bytes(msgspec.json.encode({processor(torch.get_num_threads()): measured}))
        patch.setenv("PERFHOOKS_PEAKS", str(peaks))
        return train(tmp_path_factory.mktemp("perf")).folder


def captures(folder):
    return [Place(path.parent, 0).load() for path in sorted(folder.glob("*/rank0.capture.json"))]


def test_second_window_of_one_step_follows_the_first_window(folder):
    first, second = captures(folder)
    assert (first.first, first.last, first.explains, first.options) == (12, 14, False, {})
    # the calls of step 15 are counted, step 16 warms up
    assert (second.first, second.last, second.explains) == (16, 16, True)
    assert second.options == {"with_stack": True, "record_shapes": True}


def test_times_come_from_the_first_window(folder):
    run = FinishedRun(folder)
    assert [window.name for window in run.windows] == ["train-000012-000014"]
    assert run.last().name == "train-000012-000014"
    assert run.explanation("train").name == "train-000016-000016"
    assert run.steps["train"].is_recorded.sum() == 3
    assert set(show.tables(str(folder), ["steps"])["steps"]["step"]) == {12, 13, 14}
    assert "| 16 |" not in of_run(folder)
    assert steps_of_mean(12, 14).search(first_line(folder))


def test_unprofiled_step_of_the_headline_covers_the_run(folder):
    usual = FinishedRun(folder).steps["train"].typical()
    assert captures(folder)[0].cost.idle_step_ms == pytest.approx(usual.median_ms)
    assert usual.numbers.min() < 12
    assert usual.numbers.max() > 14
    assert first_line(folder).startswith("step ")


def first_line(folder):
    return json.loads((folder / "report.json").read_text())["windows"][-1]["ranks"][0]["headline"]


def test_lines_modules_and_shapes_come_from_the_second_window(folder):
    found = show.tables(str(folder), ["functions", "modules", "stacks"])
    assert all(set(table["window"]) == {"train-000016-000016"} for table in found.values())
    assert "Net_0" in found["modules"]["name"].to_list()
    by_line = show.tables(str(folder), ["operators"], ["line"])["operators"]
    assert any("test_explaining.py" in (line or "") for line in by_line["line"])
    assert "window" not in show.tables(str(folder), ["operators"])["operators"].columns


def test_report_has_one_window_with_its_explanation(folder):
    page = json.loads((folder / "report.json").read_text())
    (window,) = page["windows"]
    (line,) = (each.line for each in captures(folder) if each.explains)
    assert line == "step 16: recorded with stacks and shapes, to name lines and modules"
    details, told = window["details"]["0"], page["explanations"]["train"]
    assert (details["explained"], details["subject"]["model"]) == (True, "Net")
    assert (told["name"], told["steps"], told["rank"]) == ("train-000016-000016", "step 16", 0)
    # a function may be large if the step was paused in it
    parts = set(told["parts"]) - {"largest_functions"}
    assert parts == {"flames", "functions", "modules", "behind_operators", "shapes"}
    assert set(details["steps"]["rows"]["step"]) == {12, 13, 14}


def test_mfu_combines_operations_and_step_time_of_both_windows(folder):
    """A step multiplies twice forward and three times backward, 11,264 operations, at a million a second."""
    page = json.loads((folder / "report.json").read_text())
    (window,) = page["windows"]
    idle = window["ranks"][0]["cost"]["idle_step_ms"]
    assert page["explanations"]["train"]["least_ms"] == pytest.approx(11.264, rel=1e-3)
    said = f"MFU {100 * 11.264 / idle:.3g}%: at the dense peaks of the device, the operations of step 16 would take"
    assert window["details"]["0"]["limits"][0].startswith(said)


def evidence(*lines):
    """Stored evidence. A pair is a source with its time in ms."""
    shared = [
        texts.shared("source", name=line[0], time_ms=line[1]) if isinstance(line, tuple) else EvidenceLine("x", line)
        for line in lines
    ]
    return msgspec.to_builtins(shared)


def said(row):
    return [line["text"] for line in row["evidence"]]


def test_findings_combine_lines_and_times_of_two_windows():
    request = msgspec.to_builtins([texts.shared("record-stacks", option="x")])
    row = {"rule": "host", "evidence": [*evidence("3 ms of 4"), *request], "advice": "a.", "code": "b"}
    other = {"rule": "host", "evidence": evidence("9 ms of 12", ("a.py(3): f", 8.1)), "advice": "new", "code": ""}
    alone = {"rule": "other", "evidence": evidence(("b.py(1): g", 1.0)), "advice": "", "code": ""}
    second = [other, alone | {"evidence": evidence(("c.py(1): h", 1.0))}]
    found = findings.add_source_lines([row, alone], second, "step 17")
    assert said(found[0]) == ["3 ms of 4", "a.py(3): f (seen in step 17)"]
    assert found[0]["evidence"][1]["values"]["line"] == {"value": "a.py(3): f", "unit": "name"}
    assert (found[0]["advice"], found[1]) == ("a.", alone)
    assert findings.add_source_lines([row], [], "step 17") == [row | {"evidence": evidence("3 ms of 4")}]


def test_a_second_window_removes_the_advice_to_record_one():
    text = texts.FindingText("unnamed-time", {"option": "x", "recording": "y"}, ["without-stacks"])
    row = {"rule": text.rule, "evidence": [], "advice": text.fix, "code": text.code}
    (found,) = findings.add_source_lines([row], [], "step 17")
    usual = texts.FindingText("unnamed-time", {})
    assert row["advice"] != usual.fix
    assert (found["advice"], found["code"]) == (usual.fix, usual.code)


def test_finding_by_shapes_has_times_of_the_first_window(tmp_path, monkeypatch):
    """Only the second window knows that the products multiply float64."""
    explain_at_once(monkeypatch)
    monkeypatch.setattr(products, "HEAVY", 0.0)  # a pause may take most of the one step
    monkeypatch.setattr(evidence_module, "NOTABLE", 0.0)
    folder = train(tmp_path, data=torch.ones(256, 512, dtype=torch.float64)).folder
    stored = json.loads((folder / "report.json").read_bytes())
    (window,) = stored["windows"]
    step_ms = window["ranks"][0]["cost"]["idle_step_ms"]
    (finding,) = (row for row in window["details"]["0"]["findings"]["rows"] if row["rule"] == "float64-products")
    assert finding["gain_percent"] == pytest.approx(100 * finding["gain_ms"] / step_ms)
    assert 0 < finding["gain_ms"] <= finding["most_ms"] <= step_ms
    assert "seen in step 16" in said(finding)
    assert "GEMMs and convolutions in float64" in str(stored["summary"])
    shown = show.tables(str(folder), ["findings"])["findings"]
    assert shown.filter(rule="float64-products")["gain_ms"].to_list() == pytest.approx([finding["gain_ms"]])


def test_findings_by_shapes_are_added_once():
    row = {"rule": "kernels-below-limit", "evidence": evidence("2 kernels"), "advice": "", "code": ""}
    (added,) = additional_findings([], [row, row | {"rule": "host-bound"}], "step 17")
    assert said(added) == ["2 kernels", "seen in step 17"]
    assert additional_findings([row], [row], "step 17") == []


def test_busy_threads_prevent_a_second_window(tmp_path, monkeypatch, caplog):
    """torch's recorder records all threads, and each operator would wait for them."""
    monkeypatch.setattr(requested, "SHORTEST_WAIT_S", 0.0)
    monkeypatch.setattr(other_threads, "_SHARE", 0.0)  # on a busy machine the thread has little time
    pace.make_even(monkeypatch, ignores_threads=False)
    caplog.set_level("INFO", "perfhooks")
    over = threading.Event()

    def small(number):
        return number + 1

    def busy():
        number = 0
        while not over.is_set():
            number = small(number)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        profiler = train(tmp_path, steps=25, background=True)
    finally:
        over.set()
        thread.join()
    assert profiler.wait()
    captures = [json.loads(path.read_text()) for path in (tmp_path / "it").glob("*/rank0.capture.json")]
    assert [each["options"].get("with_stack", False) for each in captures] == [False]
    assert caplog.text.count("no second window with stacks and shapes: other threads of the training compute") == 1


def test_table_of_findings_has_lines_of_the_second_window(folder, monkeypatch):
    def found(capture, trace):
        lines = evidence("9 ms", ("a.py(3): f", 8.0)) if capture.explains else evidence("3 ms")
        words = dict.fromkeys(("rule", "title", "estimate", "advice", "code"), "x")
        return [Finding(**words, gain_ms=None, gain_percent=None, evidence=lines)]

    monkeypatch.setattr(findings, "find", found)
    monkeypatch.setattr(
        show, "stored_findings", lambda _: StoredFindings("", [], {})
    )  # as of windows without a share of the report
    table = show.tables(str(folder), ["findings"])["findings"]
    assert table["evidence"].to_list() == ["3 ms; a.py(3): f (seen in step 16)"]


@pytest.mark.parametrize(("step", "is_usual"), [(48, False), (49, True)])
def test_functions_of_a_periodically_long_step_are_not_those_of_usual_steps(step, is_usual):
    """Each fourth step writes a log."""
    walls = np.where(np.arange(200) % 4, 10.0, 40.0)
    flags, none = np.ones(200, bool), np.full(200, np.nan)
    of_run = steps.Steps(np.arange(200), flags, ~flags, walls, none, none, none, ~flags)
    capture = Capture(first=step, last=step, reached=step)
    window = FinishedWindow(Path("w"), {Place(Path("w"), 0): capture})
    rows = [{"rule": rule} for rule in (UNNAMED, "optimizer-loop")]
    summary = {"largest_functions": {"other": "log, train.py:6"}, "flames": {}, "findings": {"rows": rows}}
    found = run_data._explanation(window, summary, of_run)
    assert [*found["parts"]] == ["flames", "largest_functions"] if is_usual else ["flames"]
    assert [row["rule"] for row in found["findings"]["rows"]] == [UNNAMED] * is_usual + ["optimizer-loop"]


def test_operators_are_tried_with_shapes_of_the_second_window(folder):
    found = sources.find(str(folder))
    last, shapes = sources.last_window(found)[0], sources.last_window(found, need="record_shapes")[0]
    assert (last.window, shapes.window) == ("train-000012-000014", "train-000016-000016")
    timed, own = (source.capture.tables(trace.read(source.path)) for source in (last, shapes))
    calls = recorded.load_calls(own, None, timed)
    spent = dict.fromkeys(calls.names(), 0.0)
    for name, time in zip(calls.names(), calls.own.tolist(), strict=True):
        spent[name] += time / calls.steps / 1e6
    table = timed.operators()
    expected = dict(zip(table["name"], (table["exclusive_cpu_ms"] / 3).to_list(), strict=True))
    assert spent["aten::addmm"] == pytest.approx(expected["aten::addmm"], rel=0.01)
    assert calls.step_ms == pytest.approx(timed.steps["wall_ms"].mean())


@pytest.mark.usefixtures("even_pace")
@pytest.mark.parametrize(
    "options",
    [
        {"explain": False},
        {"record_shapes": True},
        {"on_trace_ready": "steps"},
        {"schedule": "wait=9 warmup=1 active=2 repeat=1"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_the_user_prevent_a_second_window(tmp_path, options, monkeypatch):
    monkeypatch.setattr(explaining, "EXPLAINING_S", 1e3)
    assert [each.explains for each in captures(train(tmp_path, **options).folder)] == [False]


@pytest.mark.usefixtures("even_pace")
@pytest.mark.parametrize(("seconds", "mb"), [(1e-6, 20), (1e3, 0.05)])
def test_too_expensive_second_window_is_replaced_by_one_line(seconds, mb, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(explaining, "EXPLAINING_S", seconds)
    monkeypatch.setattr(in_step, "SHORTEST_S", 600.0)  # the first window must not end inside a step
    caplog.set_level("INFO", "perfhooks")
    assert len(captures(train(tmp_path, max_trace_mb=mb).folder)) == 1
    limits = f"the budget of {seconds:g} s or max_trace_mb={mb:g}"
    assert caplog.text.count(f"no second window with stacks and shapes: recording one step would exceed {limits};") == 1


@pytest.mark.usefixtures("even_pace")
@pytest.mark.parametrize("steps", [15, 16, 17, 18])
def test_end_of_the_loop_removes_the_listeners(tmp_path, steps, monkeypatch):
    monkeypatch.setattr(explaining, "EXPLAINING_S", 1e3)
    train(tmp_path, steps=steps)
    assert sys.getprofile() is None


@pytest.mark.usefixtures("even_pace")
def test_explained_window_is_not_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(explaining, "EXPLAINING_S", 1e3)
    assert [each.explains for each in captures(train(tmp_path, keep_windows=1).folder)] == [False, True]
