"""The summary of a run: one source for all outputs."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from finished_runs import windows_of

from perfhooks import testing
from perfhooks.analysis.findings import texts
from perfhooks.analysis.findings.finding import OVERHEAD
from perfhooks.core.statistics import most_common
from perfhooks.record.launch.summary_text import text_of
from perfhooks.report import page
from perfhooks.report.finishing.messages import UpdateReport
from perfhooks.report.finishing.serving import Reports
from perfhooks.report.handlers.permit import Permit
from perfhooks.report.page import run_data
from perfhooks.report.page.run_data import from_trace
from perfhooks.report.page.run_summary import RunSummary, has_current_report, read_summary, shares_of_step, summarize
from perfhooks.run.capture import Capture, Cost
from perfhooks.run.finished import FinishedRun
from perfhooks.run.steps import Steps
from perfhooks.testing import annotation, step_mark

MS = 1_000_000

ACTS = """
import json, time
import torch

nets = [torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)) for _ in range(2)]
optimizers = [torch.optim.SGD(net.parameters(), 1e-3) for net in nets]
walls, began = [], time.perf_counter()
for step in range(150):
    nets[0].eval()
    with torch.no_grad():
        for _ in range(2):
            nets[0](torch.randn(1, 3))
    nets[0].train()
    for net, optimizer in zip(nets, optimizers):
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.randn(64, 3)).square().mean().backward()
            optimizer.step()
    time.sleep(0.005)
    walls.append(1e3 * (time.perf_counter() - began))
    began = time.perf_counter()
print(json.dumps(walls))
"""
"""A step acts twice without gradients, and updates two networks twice each."""
THREE = """
import sys
import torch

sys.modules["perfhooks.record.launch.early"]._LONGEST_S = 1e9  # on a busy machine, one step may take seconds
net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.randn(4096, 256)).square().mean().backward()
    optimizer.step()
"""


def timeline(walls, data=None, *, recorded=()):
    """Steps with these times in ms, of which some were recorded."""
    count = len(walls)
    is_recorded = np.isin(np.arange(count), recorded)
    waits = np.full(count, np.nan) if data is None else np.array(data, float)
    is_first = np.arange(count) < 3
    nothing = np.full(count, np.nan)
    return Steps(np.arange(count), ~is_recorded, is_recorded, np.array(walls, float), waits, nothing, nothing, is_first)


def report(usual=None, *, findings=(), stage="train", **facts):
    """The data of a report with one window."""
    share = {"steps": {"usual": usual or {}, **facts}, "findings": {"rows": list(findings)}}
    window = {"name": "w", "stage": stage, "first": 3, "last": 5, "ranks": [{"rank": 0}], "details": {"0": share}}
    return {"windows": [window], "run": {}}


def finding(title, gain_ms=None, **more):
    return {"title": title, "gain_ms": gain_ms, "gain_percent": gain_ms, "evidence": [], **more}


def found(*rows):
    return report({"wall_ms": 100}, findings=rows)


def at(name, requested_at=None):
    lines = [texts.shared("seen", line=name, steps="step 3")]
    if requested_at is not None:
        lines.append(texts.FindingText("waiting-for-data", {})("loop", line=requested_at))
    return finding("Data.", 12.0, evidence=msgspec.to_builtins(lines))


MEAN = {"wall_ms": 410, "backward_ms": 410}
WALLS = [900, 300, 200, 400, 410, 420, *[100, 101, 102] * 10, 5000]
KINDS = [10.0] * 3 + [10.0, 10.1, 9.9, 10.0, 25.0, 25.1, 25.2, 45.1, 45.2, 45.3] * 20
FUNCTIONS = {"forward": "net, train.py:3", "backward": "loss, train.py:7"}
EXPLANATIONS = {"train": {"parts": {"largest_functions": FUNCTIONS}}}
HUNDRED = {"train": timeline([100.0] * 30)}
WAITING = {"wall_ms": 200, "data_ms": 50, "forward_ms": 100, "backward_ms": 50}
TWO_LOOPS = report({"wall_ms": 1}, stage="validate")
TWO_LOOPS["windows"] = report({"wall_ms": 2})["windows"] + TWO_LOOPS["windows"]
BUSY = {"wall_ms": 100.0, "forward_ms": 60.0, "backward_ms": 40.0}
AHEAD = {"wall_ms": 10.0, "forward_ms": 6.0, "backward_ms": 4.0, "busy_ms": 42.8, "busy_share": 0.99}
RARE = {"wall_ms": 1000, "validation_ms": 900, "forward_ms": 50, "backward_ms": 50}
SUMMARIES = {
    "the median of unprofiled steps": (report(MEAN), {"train": timeline(WALLS, recorded=[3, 4, 5])}),
    # the median may be that of a rarer kind
    "three kinds of steps": (report(), {"train": timeline(KINDS)}),
    "batches": (report() | {"run": {"steps_by": {"what": "batches"}}}, {"train": timeline([2.0] * 30)}),
    "several updates per step": (
        report(MEAN) | {"run": {"steps_by": {"what": "optimizer", "fetches": 0.0, "updates": 5.98}}}, HUNDRED,
    ),
    "several batches per profiled step": (
        report(MEAN) | {"run": {"steps_by": {"what": "loader", "fetches": 130.4, "updates": 1.0}}}, {},
    ),
    "profiled steps only": (report(MEAN), {}),
    "a short program": (report(), {"train": timeline([5000, 210, 200])}),
    "a part of a step": (report(MEAN, is_part=True), {}),
    "a recording without steps": (report(MEAN, without_steps=True), {}),
    "a recording without steps in a loop": (report(MEAN, without_steps=True), {"train": timeline([5.0] * 30)}),
    "a part of another loop": (
        report({"wall_ms": 410}, stage="process", is_part=True), {"train": timeline([9e3, 5, 5])},
    ),
    "two loops": (TWO_LOOPS, {"train": timeline([2.0] * 30), "validate": timeline([1.0] * 30)}),
    # recording makes the work of the host longer, and not the wait for data
    "a wait for data": (report(WAITING), {"train": timeline([100.0] * 30, data=[50.0] * 30, recorded=[3, 4, 5])}),
    # a device that is busy for 80% decides how long a step is
    **{f"a device that is busy {busy:.0%}": (report(BUSY | {"busy_share": busy}), HUNDRED) for busy in (0.85, 0.75)},
    # the host of a recording is ahead of the device, whose queue is empty when the recording begins
    "a device that works longer than the host": (report(AHEAD), {"train": timeline([43.0] * 30)}),
    "profiled steps of a device that works longer": (report(AHEAD), {}),
    "a rare validation": (report(RARE), HUNDRED),
    # a run that trains more layers, or longer texts, from step 20 on
    "a window among other steps": (
        report(WAITING), {"train": timeline([100.0] * 20 + [300.0] * 80, [50.0] * 20 + [3.0] * 80, recorded=[3, 4, 5])},
    ),
    "a window among two kinds of steps": (report(MEAN), {"train": timeline([100.0, 300.0, 300.0] * 20)}),
    "findings": (
        found(finding("The machine is busy.", doubts_others=True), at("train.py(20): <module>"), *map(finding, "bcd")),
        {},
    ),
    "a finding about the recorder": (
        found(finding("Recording is slow", rule=OVERHEAD), finding("Adam is slow", 3.0, rule="optimizer")), {},
    ),
    "a large function": (
        report(MEAN | {"forward_ms": 20}) | {"explanations": EXPLANATIONS}, {},
    ),
    "places of findings": (
        found(at("run (train.py:43)"), at("<module> (train.py:43)"), at("train.py(20): load")), {},
    ),
    # the function was running when the recording began, so its line is unknown
    "a place without a line": (
        found(at("train.py: <module>, in fetchers.py(56): __next__", "<module> (train.py:85)")), {},
    ),
    "calls of a model": (report(MEAN) | {"run": {"steps_by": {"what": "call"}}}, {}),
    "a window among other steps of a busy machine": (
        found(finding("The machine is busy.", doubts_others=True)) , {"train": timeline([100.0] * 20 + [300.0] * 80)},
    ),
    "a place in a folder with a number": (found(at("main (src/my(1)/train.py:7)")), {}),
}  # fmt: skip
"""The data of reports and the steps of runs; a golden file has the summary of each."""


def test_summaries_equal_the_golden_file(golden):
    lines = []
    for name, (data, steps) in SUMMARIES.items():
        made = summarize(data, steps)
        source = f"{made.steps or 'no steps'}{', profiled' * made.is_profiled}"
        lines += [f"=== {name}", made.step, f"  {made.step_ms} ms of {source}"]
        lines += [f"  profiled: {made.profiled_ms} ms of {made.profiled_steps or 'no steps'}"]
        lines += [f"  {part.share:.1%} {part.name}{part.where and f' at {part.where}'}" for part in made.parts]
        lines += [
            f"- {each.title} gain: {each.gain or 'none'}; at: {each.where or 'nowhere'}" for each in made.findings
        ]
        lines += [f"warning: {made.warning}"] * bool(made.warning) + [""]
    golden("run_summaries.txt", "\n".join(lines))


@pytest.mark.parametrize(("unprofiled_ms", "rules"), [(24.0, [OVERHEAD]), (62.0, [])])
def test_finding_about_the_recorder_needs_the_steps_of_the_run(unprofiled_ms, rules):
    """Steps that grow after the window may take longer than its profiled ones."""
    share = {"findings": {"rows": [finding("Recording is slow", rule=OVERHEAD)], "step_ms": 42.7}}
    cost = Cost(idle_step_ms=unprofiled_ms, recorded_step_ms=42.7)
    assert [row["rule"] for row in run_data._rate_unprofiled(share, Capture(cost=cost))["findings"]["rows"]] == rules


@pytest.mark.parametrize("spread", ["normal", "lognormal"])
def test_noise_is_no_kind_of_steps(spread):
    walls = np.exp(np.random.default_rng(0).normal(0, 0.1 if spread == "normal" else 1, 500))
    assert most_common(walls).mean() > 0.99


def test_trace_of_another_tool_has_a_summary(tmp_path):
    events = [step_mark(0, 0, 100 * MS), annotation("forward", 0, 60 * MS)]
    summary = from_trace(testing.write_trace(tmp_path / "t.json", events))["summary"]
    assert (summary["step_ms"], summary["is_profiled"]) == (100, True)
    assert summary["parts"] == [{"name": "forward", "share": 0.6}, {"name": "other code", "share": 0.4}]


def is_current(run):
    return has_current_report(FinishedRun(run, brief=True))


def test_exit_summary_of_an_old_report_has_the_present_step_time(tmp_path):
    """A report from before the last steps has other gains than `perfhooks show`."""
    run = tmp_path / "run"
    windows_of(run, ("train-000020-000022", 0, 3.0))
    rows = [f"train,{step},wait,{wall},{wall / 2}" for step, wall in enumerate([10.0] * 20 + [20.0] * 21)]
    timeline = run / "rank0.timeline.csv"
    timeline.write_text("\n".join(["stage,step,phase,wall_ms,data_ms", *rows[:20], ""]))
    page.write(run)
    assert is_current(run)
    before = text_of([str(run)])
    assert before.startswith("perfhooks: step 10 ms (profiled steps 20-22: ")
    timeline.write_text("\n".join(["stage,step,phase,wall_ms,data_ms", *rows, ""]))
    assert not is_current(run)
    assert text_of([str(run)]).startswith("perfhooks: step 20 ms (profiled steps 20-22: ")
    page.write(run)
    assert text_of([str(run)]).startswith("perfhooks: step 20 ms (profiled steps 20-22: ")


@pytest.mark.parametrize("table", ["functions", "none"])
def test_summary_without_findings_names_the_next_command(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    windows_of(tmp_path / "run", ("train-000020-000022", 0, 3.0))
    (tmp_path / f"run/train-000020-000022/rank0.{table}.csv").touch()
    page.write(tmp_path / "run")
    hints = [line for line in text_of([str(tmp_path / "run")]).splitlines() if "no finding" in line]
    expected = "  no finding with a gain; `perfhooks show run -t functions` lists functions by time"
    assert hints == [expected] * (table == "functions")


@pytest.mark.parametrize(
    "name", ["rank0.rare.csv", "rank0.slow.csv", "run.json", "train-000020-000022/rank0.page.json"]
)
def test_report_is_old_after_a_change_of_its_files(name, tmp_path):
    run = tmp_path / "run"
    windows_of(run, ("train-000020-000022", 0, 3.0))
    page.write(run)
    assert is_current(run)
    (run / name).write_text("{}")
    assert not is_current(run)


def test_worker_updates_the_report_of_a_killed_training(tmp_path):
    run = tmp_path / "run"
    windows_of(run, ("train-000020-000022", 0, 3.0))
    reports = Reports()
    reports.add(UpdateReport(str(run / "train-000020-000022"), 0, Permit()))
    reports.write()
    rows = [f"train,{step},wait,20,1" for step in range(41)]
    (run / "rank0.timeline.csv").write_text("\n".join(["stage,step,phase,wall_ms,data_ms", *rows, ""]))
    assert not is_current(run)
    reports.write_old()
    assert is_current(run)
    assert read_summary(run).step_ms == 20


@pytest.mark.process
def test_summary_is_read_from_the_report_without_polars(tmp_path):
    assert read_summary(tmp_path) is None
    (tmp_path / "report.json").write_text('{"format": 1, "summary": {"step_ms": 3.5, "steps": "9 unprofiled steps"}}')
    assert read_summary(tmp_path) == RunSummary(step_ms=3.5, steps="9 unprofiled steps")
    code = "import sys, perfhooks.report.page.run_summary; assert not {'polars', 'torch'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


LONG = """
import time
import torch

weight = torch.nn.Parameter(torch.ones(8))
optimizer = torch.optim.SGD([weight], 1e-3)
began = time.perf_counter()
value = torch.ones(8)
(weight * 1.0).sum().backward()
while time.perf_counter() - began < 2 or torch.autograd._profiler_enabled():
    value = value * 1.0
optimizer.step()
"""
"""One step that goes on until the first recording has ended, as its budget is spent."""


def launched(launch, tmp_path, script):
    (tmp_path / "script.py").write_text(script)
    done = launch("--out", "perf", "--run", "it", tmp_path / "script.py")
    assert done.returncode == 0, done.stderr
    return done.stdout, read_summary(tmp_path / "perf/it")


def test_step_time_agrees_with_the_clock_of_the_script(launch, tmp_path):
    """An iteration is one step, though each network is updated twice; acting is no validation."""
    out, summary = launched(launch, tmp_path, ACTS)
    steps = FinishedRun(tmp_path / "perf/it").steps["train"].typical()
    # the same steps, counted from the last one, as the machine may have less time for others
    clock = np.array(json.loads(out))[steps.numbers - steps.numbers[-1] - 1]
    assert 0.75 < np.median(steps.all_ms) / np.median(clock) < 1.3
    assert summary.step_ms == pytest.approx(steps.median_ms, rel=1e-3)
    assert "validation" not in [part.name for part in summary.parts]


def test_start_of_the_profiler_is_in_no_profiled_step(launch, tmp_path):
    """The start of our profiler lies within the second update."""
    _, summary = launched(launch, tmp_path, THREE)
    assert summary.parts[0].name in {"forward", "backward"}


def test_part_of_a_long_step_is_named_as_part(launch, tmp_path):
    _, summary = launched(launch, tmp_path, LONG)
    assert (summary.step_ms, summary.step) == (None, "a part of step 0 was recorded")


ACCUMULATES = """
import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64))
optimizer = torch.optim.{optimizer}(model.parameters())
x = torch.randn(32, 64)

def closure():
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    return loss

for _ in range({steps}):
    if "{optimizer}" == "LBFGS":
        optimizer.step(closure)
    else:
        for _ in range(40):
            loss = (model(x) - x).square().mean() / 40
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
"""Forty backward passes in an update, or about twenty within one."""


@pytest.mark.parametrize("optimizer", ["AdamW", "LBFGS"])
def test_passes_within_an_update_are_no_steps(launch, tmp_path, optimizer):
    _, summary = launched(launch, tmp_path, ACCUMULATES.format(optimizer=optimizer, steps=4))
    assert (summary.unit, summary.profiled_ms, summary.findings) == ("step", None, [])
    assert summary.profiled_steps == "a part of step 0"
    _, whole = launched(launch, tmp_path, ACCUMULATES.format(optimizer=optimizer, steps=40))
    assert (whole.unit, whole.is_profiled) == ("step", False)
    assert int(whole.steps.split()[0]) > 10


@pytest.mark.parametrize(
    ("step_ms", "wall_ms", "share"), [(40, 60, 0.9), (56, 60, 54 / 56), (54, 8, 1.0), (50, 8, 1.0)]
)
def test_device_is_busy_for_its_time_in_a_step(step_ms, wall_ms, share):
    """54 ms of device work: profiled steps are larger than the median, or the host is ahead of the device."""
    usual = {"wall_ms": wall_ms, "busy_ms": 54.0, "busy_share": 0.9, "forward_ms": wall_ms}
    (part,) = shares_of_step(RunSummary(step_ms=step_ms), usual, None)
    assert part.share == pytest.approx(share)


@pytest.mark.parametrize(
    ("first", "last", "reached", "partial", "end"),
    [
        (14, 16, 16, None, 16),
        (14, 16, 16, "ended inside step 16", 15),
        (14, 16, 15, "ended inside step 15", 14),
        (14, 16, 14, "ended inside step 14", 14),
        (0, None, 3, None, 2),
        (0, None, 0, None, 0),
    ],
)
def test_window_ends_with_its_last_complete_step(first, last, reached, partial, end):
    assert Capture(first=first, last=last, reached=reached, partial=partial).end == end
