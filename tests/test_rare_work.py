"""Validations and checkpoints are timed in every step, and judged over the whole run."""

from __future__ import annotations

import json
import textwrap

import msgspec
import numpy as np
import pytest

from perfhooks.analysis.findings import rare_work as findings
from perfhooks.analysis.findings.finding import gain
from perfhooks.core import labels, words
from perfhooks.run import rare_work, steps
from perfhooks.run.live.slow_steps import SlowStep
from perfhooks.run.rare_work import RareWork
from perfhooks.run.timeline import Aside, Timeline

MS = 1_000_000


def steps_of(*walls):
    numbers, none = np.arange(len(walls)), np.full(len(walls), np.nan)
    flags = np.ones(len(walls), bool)
    return steps.Steps(numbers, flags, ~flags, np.array(walls, float), none, none, none, ~flags)


def validations(*pairs):
    return [RareWork("train", step, labels.VALIDATION, ms, "evaluate (train.py:20)") for step, ms in pairs]


def test_validation_is_judged_by_the_time_of_the_run():
    """Three of 100 steps validate for 40 ms each, which is 12% of the run."""
    walls = [48.8 if step % 33 == 32 else 8.8 for step in range(100)]
    (found,) = findings.of_run(validations((32, 40), (65, 40), (98, 40)), steps_of(*walls))
    assert found.title == "Validation takes 12% of the run."
    assert (found.gain_ms, found.gain_percent) == (pytest.approx(0.6), pytest.approx(6.0))
    assert found.lines == (
        "3 validations of 40 ms on average in 100 steps: 120 ms of 1 s",
        "evaluate (train.py:20): 120 ms",
    )


def slow_step(step, cause, line="", wall_ms=200.0, times_median=10.0):
    return SlowStep("train", step, wall_ms, times_median, cause, None, line, None, 0.0, None, None, None, None)


def test_slow_steps_are_judged_by_their_time_above_the_median():
    """Each of four steps of 200 ms takes 180 ms more than the median of 20 ms. One of them validates."""
    causes = {20: "own code", 40: "blocking call", 60: "own code", 80: "evaluation", 90: "CPU contention"}
    lines = {20: "gae (ppo.py:25)", 40: "load (ppo.py:7)", 60: "gae (ppo.py:26)"}
    slow = [slow_step(step, cause, lines.get(step, "")) for step, cause in causes.items()]
    walls = [200.0 if step in causes else 20.0 for step in range(100)]
    (found,) = findings.of_run(validations((80, 180)), steps_of(*walls), slow=slow)
    assert found.title == "Slow steps take 19% of the run."
    text = gain(msgspec.to_builtins(found))
    assert words.of_step(text) == text == "at most 5.4 ms, 19% of the run"
    assert found.lines == (
        "3 slow steps of 100, 180 ms above the median on average: 540 ms of 2.9 s",
        "gae (ppo.py:25): 360 ms",
        "load (ppo.py:7): 180 ms",
    )


def test_compilations_outside_of_the_windows_have_a_finding():
    """Three of 100 steps compile for 180 ms each."""
    slow = [slow_step(step, "compilation", "forward (train.py:9)") for step in (30, 60, 90)]
    walls = [200.0 if step in (30, 60, 90) else 20.0 for step in range(100)]
    (found,) = findings.of_run([], steps_of(*walls), slow=slow)
    assert found.title == "Slow steps take 21% of the run, mostly compilation by torch.compile."
    assert "mark_dynamic" in found.code
    (found,) = findings.of_run([], steps_of(*walls), slow=[row._replace(cause="own code") for row in slow])
    assert found.title == "Slow steps take 21% of the run."


def test_period_of_long_steps_is_known_without_their_cause():
    """Each 16th step takes 47 ms instead of 2 ms: 45 of 77 ms. Step 160 was profiled, others were long by chance."""
    walls = np.where(np.arange(960) % 16, np.where(np.random.default_rng(0).random(960) < 0.05, 7.0, 2.0), 47.0)
    walls[250] = 47.0
    steps_of_run = steps_of(*walls)
    steps_of_run.is_idle[160] = False
    (found,) = findings.of_run([], steps_of_run, slow=[slow_step(32, "own code", "gae (ppo.py:25)", 47.0, 23.5)])
    assert found.title == "One of 16 steps takes 45 ms longer, 55% of the run."
    assert found.lines[1:] == ("gae (ppo.py:25): 45 ms",)


def test_periodic_work_counts_with_all_its_lengths():
    """It begins with a third of its last length."""
    walls = np.where(np.arange(960) % 16, 2.0, np.linspace(47.0, 141.0, 960))
    (found,) = findings.of_run([], steps_of(*walls))
    excess_ms = (walls - 2)[::16]
    assert (
        found.title
        == f"One of 16 steps takes {excess_ms.mean():.3g} ms longer, {excess_ms.sum() / walls.sum():.0%} of the run."
    )


def test_long_steps_count_although_only_half_of_them_are_outliers():
    """A step from three times the median on is an outlier. A third of the steps was profiled."""
    walls = [(28.0, 32.0)[step // 4 % 2] if step % 4 == 0 else 10.0 for step in range(384)]
    steps_of_run = steps_of(*walls)
    steps_of_run.is_idle[100:228] = False
    (found,) = findings.of_run([], steps_of_run)
    assert found.title == f"One of 4 steps takes 20 ms longer, {20 / 60:.0%} of the run."
    assert found.most_ms == pytest.approx(20 / 4)


@pytest.mark.parametrize(("known", "share"), [(3, 5 * 180 / 2900), (2, 2 * 180 / 2900)])
def test_unknown_causes_count_if_more_time_has_a_known_cause(known, share):
    slow = [slow_step(step, "own code" if index < known else "unknown") for index, step in enumerate(range(20, 70, 10))]
    walls = [200.0 if step in {row.step for row in slow} else 20.0 for step in range(100)]
    (found,) = findings.of_run([], steps_of(*walls), slow=slow)
    assert found.title == f"Slow steps take {share:.0%} of the run."


def test_fix_of_long_steps_without_lines_names_the_period():
    walls = [47.0 if step % 16 == 0 else 2.0 for step in range(960)]
    (found,) = findings.of_run([], steps_of(*walls))
    assert found.advice.startswith("Look for work that the program does once in 16 steps")
    assert found.code == ""


@pytest.mark.parametrize("cause", ["other ranks", "CPU contention"])
def test_periodic_steps_with_a_cause_of_another_rule_are_no_finding(cause):
    slow = [slow_step(step, cause) for step in range(0, 960, 16)]
    walls = [200.0 if step % 16 == 0 else 20.0 for step in range(960)]
    assert findings.of_run([], steps_of(*walls), slow=slow) == []


def test_periodic_steps_count_although_they_waited_for_a_cpu():
    """Half of the long steps waited for a CPU, too, as did some others."""
    waits = np.flatnonzero(np.random.default_rng(0).random(960) < np.where(np.arange(960) % 16, 0.03, 0.5)).tolist()
    walls = [200.0 if step % 16 == 0 or step in waits else 20.0 for step in range(960)]
    (found,) = findings.of_run([], steps_of(*walls), slow=[slow_step(step, "CPU contention") for step in waits])
    assert found.title == f"One of 16 steps takes 180 ms longer, {60 * 180 / sum(walls):.0%} of the run."


def test_long_steps_by_chance_have_no_period():
    walls = np.where(np.random.default_rng(0).random(960) < 0.1, 47.0, 2.0)
    assert findings.of_run([], steps_of(*walls)) == []


@pytest.mark.parametrize("cause", ["data", "other ranks", "CPU contention", "unknown"])
def test_slow_steps_with_a_cause_of_another_rule_are_no_finding(cause):
    slow = [slow_step(step, cause, "f (a.py:1)") for step in (20, 40, 60)]
    assert findings.of_run([], steps_of(*[20.0] * 100), slow=slow) == []


@pytest.mark.parametrize(
    "rows",
    [validations((9, 900.0)), validations((10, 90.0), (10, 90.0)), validations((5, 0.3), (9, 0.3)), []],
    ids=["only once", "only at the end", "little", "none"],
)
def test_little_or_single_validation_is_no_finding(rows):
    assert findings.of_run(rows, steps_of(*[10.0] * 10)) == []


def test_validation_after_the_last_step_belongs_to_the_run():
    (found,) = findings.of_run(validations((1, 50), (4, 100)), steps_of(10, 60, 10, 10))
    assert found.title == "Validation takes 79% of the run."


def test_the_rows_of_a_run_are_written_and_read(tmp_path):
    path = tmp_path / "rank0.rare.csv"
    rare_work.append(path, "train", [Aside(3, labels.CHECKPOINT, 5 * MS, "save (a, b.py:2)")])
    rare_work.append(path, "train", [Aside(7, labels.VALIDATION, MS, "")])
    with path.open("a") as file:
        file.write("train,-1,validation,1,\ntrain,1,other,1,\ntrain,1,validation,nan,\ntrain,1,valid")
    assert rare_work.read(path) == [
        RareWork("train", 3, "checkpoint", 5.0, "save (a, b.py:2)"),
        RareWork("train", 7, "validation", 1.0, ""),
    ]
    assert rare_work.read(tmp_path / "other.csv") == []


def test_nested_work_counts_once_and_belongs_to_its_step():
    line = Timeline("train")
    line.begin(5)
    line.set_aside(10, 90)
    line.set_aside(20, 60)
    line.set_aside(30, 40, labels.CHECKPOINT, "f (a.py:1)")
    line.end_step(100)
    line.set_aside(99, 170)  # the fetch for this validation ended the step
    taken = line.take_rare()
    assert taken == [
        Aside(5, labels.VALIDATION, 80, ""),
        Aside(5, labels.CHECKPOINT, 10, "f (a.py:1)"),
        Aside(6, labels.VALIDATION, 71, ""),
    ]
    assert line.take_rare() == []


SCRIPT = """
    import io, time
    import torch
    from torch.utils.data import DataLoader
    began = time.monotonic()
    net = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader, held_out = DataLoader(torch.rand(80, 8), batch_size=4), DataLoader(torch.rand(4, 8), batch_size=2)

    def evaluate():
        with torch.no_grad():
            for batch in held_out:
                net(batch)
                time.sleep(max(0.05, (time.monotonic() - began) / 4))  # on a busy machine, the epochs take long

    def collect():
        time.sleep(max(0.3, 8 * longest))

    longest, last = 0.0, began
    for epoch in range(3):
        for step, batch in enumerate(loader):
            if step in (5, 15):
                collect()
            elif step > 1:
                longest = max(longest, time.monotonic() - last)
            last = time.monotonic()
            net(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.005)
        evaluate()
        torch.save(net.state_dict(), io.BytesIO())
        time.sleep(0.02)
"""


def test_perfhooks_run_detects_validations_and_their_lines(launch, tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    launch("--run", "it", "train.py")
    rows = rare_work.read(tmp_path / "perf/it/rank0.rare.csv")
    assert [(row.part, row.step) for row in rows] == [
        (part, step) for step in (20, 40, 60) for part in ("validation", "checkpoint")
    ]
    assert {row.line for row in rows if row.part == "validation"} == {"evaluate (train.py:12)"}
    assert all(row.ms >= 100 for row in rows if row.part == "validation")
    stored = json.loads((tmp_path / "perf/it/report.json").read_bytes())
    by_rule = {each["rule"]: each for each in stored["findings"]}
    # on a busy machine, checkpoints may take long enough to be found as well, and other steps be slow
    assert {"slow-steps", "validation-in-steps"} <= by_rule.keys()
    assert by_rule.keys() <= {"slow-steps", "validation-in-steps", "checkpoint-in-steps"}
    slow, found = by_rule["slow-steps"], by_rule["validation-in-steps"]
    assert " slow steps of 60, " in slow["evidence"][0]["text"]
    assert "collect (train.py:17)" in [line["text"].partition(": ")[0] for line in slow["evidence"][1:]]
    assert slow["title"] in [row["title"] for row in stored["summary"]["findings"]]
    assert gain(found).endswith("% of the run")
    assert any(line["text"].startswith("evaluate (train.py:12)") for line in found["evidence"])
    capture = next((tmp_path / "perf/it").glob("train-*/rank0.capture.json"))
    assert json.loads(capture.read_bytes())["circumstances"]["loader"]["line"] == "<module> (train.py:21)"
