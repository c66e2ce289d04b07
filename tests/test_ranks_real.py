"""Real trainings on several ranks of this machine: who is slow is named, and what a rank loses costs no other."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import os
import re
from pathlib import Path

import pytest
import warm
from gloo_training import LATE_S

from perfhooks.analysis import ranks
from perfhooks.analysis.ranks.merge import merge
from perfhooks.report.finishing.leftovers import finish_all

pytestmark = pytest.mark.framework

HERE = Path(__file__).parent
SCRIPT = HERE / "gloo_training.py"
EXAMPLE = HERE.parent / "examples" / "torchrun_ddp.py"
LOOPS = {"raw": r"torchrun-\w+", "lightning": r"\d{8}-\d{6}-\d+", "mmengine": r"\d{8}_\d{6}"}
"""Whose loop trains, and what its ranks call their run."""
WINDOWS = ["train-000003-000006", "train-000008-000011"]
LATE_MS = LATE_S * 1e3
TIMEOUT = 240


def environment(folder, **more):
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC", "SLURM"))}
    return quiet | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder), **more}


def the_run(out):
    """The one run folder of all ranks."""
    (found,) = {path.parent.resolve() for path in out.glob("*/run.json")}
    return found


@pytest.fixture
def launch(channel, tmp_path):
    """Has some process start the ranks, as any launcher does; gives their exit codes in each attempt."""

    def start(*arguments):
        words = ["--out", tmp_path / "perf", *arguments]
        done = warm.run(channel, SCRIPT, *words, folder=tmp_path, environment=environment(tmp_path), timeout=TIMEOUT)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return start


@pytest.mark.parametrize("loop", LOOPS)
def test_a_rank_that_sleeps_in_its_loader_is_named(frameworks, tmp_path, loop):
    """Two ranks of a torchrun train. They train again if other programs delayed both equally."""
    if loop != "raw" and importlib.util.find_spec(loop) is None:
        pytest.skip(f"needs {loop}")
    how = {"folder": tmp_path, "environment": environment(tmp_path), "timeout": TIMEOUT}
    for attempt in range(4):
        out = tmp_path / f"perf{attempt}"
        done = warm.ranks(frameworks, SCRIPT, "--out", out, "--slow-data", 1, "--loops", loop, **how)
        assert [each.returncode for each in done] == [0, 0], [each.stderr for each in done]
        run = the_run(out / loop)
        if ranks.findings(ranks.gather(run)):
            break
    assert re.fullmatch(LOOPS[loop], run.name)
    data = ranks.gather(run)
    assert [window["name"] for window in data["windows"]] == WINDOWS
    assert data["missing"] == []
    (finding,) = ranks.findings(data)
    assert (finding["rank"], finding["ranks"], finding["part"]) == (1, [1], "data")
    walls = [window["ranks"]["wall_ms"] for window in data["windows"]]
    assert min(map(min, walls)) > LATE_MS / 2, "each waits for the other"
    assert LATE_MS / 2 < finding["gain_ms"] < max(map(max, walls))
    for window in data["windows"]:
        assert window["unmatched"] in (0, 2), "the last may still be open on a thread of its own when recording ends"
        assert window["clocks"]["ranks"] == 2
        assert window["ranks"]["offset_ms"] == [0, 0], "both are of this machine"
        worst = zip(window["worst"]["last_rank"], window["worst"]["wait_ms"], strict=True)
        assert any(last == 1 and wait > LATE_MS / 2 for last, wait in worst), "also beside a pause of the other"
    result = merge(run)
    with gzip.open(result.path) as file:
        assert {event["pid"] for event in json.load(file)["traceEvents"]} >= {1000, 2000}


def test_equal_waits_for_data_name_no_rank(tmp_path, launch):
    assert launch("--ranks", 2, "--slow-data", 0, 1) == [[0, 0]]
    data = ranks.gather(the_run(tmp_path / "perf" / "raw"))
    assert all(min(window["ranks"]["data_ms"]) > LATE_MS / 2 for window in data["windows"])
    assert ranks.findings(data) == []


def test_a_rank_that_computes_longer_is_named_among_four(tmp_path, launch):
    """Started without torchrun: they meet in one folder all the same."""
    assert launch("--ranks", 4, "--slow-compute", 2) == [[0] * 4]
    data = ranks.gather(the_run(tmp_path / "perf" / "raw"))
    assert data["ranks"] == [0, 1, 2, 3]
    (finding,) = ranks.findings(data)
    assert (finding["rank"], finding["part"]) == (2, "compute")


def lacks(run, data):
    """What is said of the first window's ranks, the steps of its first one, and why that is partial."""
    said = {(entry["what"], tuple(entry["ranks"])) for entry in data["missing"] if entry["window"] == WINDOWS[0]}
    with (run / WINDOWS[0] / "rank0.steps.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    return said, steps, json.loads((run / WINDOWS[0] / "rank0.capture.json").read_text())["partial"]


def test_killed_rank_does_not_affect_other_ranks(tmp_path, launch):
    """Both attempts meet in one folder, as those of an elastic restart do."""
    assert launch("--ranks", 2, "--steps", 8, "--attempts", 2, "--killed", 1) == [[0, 0], [1, -9]]
    run = the_run(tmp_path / "perf" / "raw")
    list(finish_all(run))
    data = ranks.gather(run)
    assert data["windows"][0]["ranks"]["rank"] == [0]
    said, steps, partial = lacks(run, data)
    assert said == {("died", (1,)), ("earlier", (1,)), ("partial", (0,))}
    assert steps == [3, 4]
    assert partial is not None


def test_rank_with_a_full_disk_continues_training(tmp_path, launch):
    assert launch("--ranks", 2, "--steps", 8, "--full", 1) == [[0, 0]]
    run = the_run(tmp_path / "perf" / "raw")
    list(finish_all(run))
    data = ranks.gather(run)
    assert 0 in data["windows"][0]["ranks"]["rank"]
    said, steps, partial = lacks(run, data)
    assert said & {("absent", (1,)), ("unfinished", (1,))}
    assert ("partial", (0,)) not in said
    assert (steps, partial) == ([3, 4, 5, 6], None)


def test_the_example_runs_on_two_ranks(frameworks, tmp_path):
    """As torchrun would run it."""
    words = ["--batch-size", "2", "--out", tmp_path / "perf"]
    how = {"folder": tmp_path, "environment": environment(tmp_path), "timeout": TIMEOUT}
    first, second = warm.ranks(frameworks, EXAMPLE, *words, **how)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "wall" in first.stdout
    for window in ("train-000005-000007", "train-000011-000013"):
        assert all(f"{window}/rank{rank}.collectives.csv" in first.stdout for rank in (0, 1))
    assert ranks.gather(the_run(tmp_path / "perf"))["missing"] == []
