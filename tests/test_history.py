"""The runs of a folder over time: in their order, and where the level changed, by a slow fit that tries everything."""

import itertools
import json
import statistics

import numpy as np
import pytest
from comparing_runs import make_run, training
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from perfhooks.analysis.comparison import history
from perfhooks.analysis.comparison.change_points import SHORTEST, change_points, fit
from perfhooks.cli.app import app
from perfhooks.core.errors import PerfhooksError
from perfhooks.run.live.requests import Loop
from perfhooks.run.live.status import Status
from perfhooks.run.liveness import Process
from perfhooks.run.publishing import publish_json


def run(*words):
    return CliRunner().invoke(app, ["history", *map(str, words)])


def cost(values, places, price):
    """Of a fit whose pieces begin there."""
    edges = [0, *places, len(values)]
    pieces = [values[first:last] for first, last in itertools.pairwise(edges)]
    if any(len(piece) < min(SHORTEST, len(values)) for piece in pieces):
        return float("inf")
    return sum(sum(abs(each - statistics.median(piece)) for each in piece) + price for piece in pieces)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=9), st.integers(1, 20))
def test_no_other_pieces_fit_better(values, price):
    """All ways to cut up to nine runs are tried."""
    places = range(1, len(values))
    every = [cut for count in range(len(values)) for cut in itertools.combinations(places, count)]
    least = min(cost(values, cut, price / 2) for cut in every)
    assert cost(values, fit(values, price / 2), price / 2) == pytest.approx(least)


def test_single_disturbed_run_is_no_change():
    level = [1.0, 1.01, 1.0, 0.99, 1.0, 1.01, 1.0]
    assert change_points(np.log([*level, 1.6, *level])) == []
    assert change_points(np.log([*level, *(1.2 * each for each in level), *level])) == [7, 14]
    assert change_points([]) == change_points([1.0]) == []


@pytest.mark.parametrize("count", [4, 10, 30])
def test_equal_runs_rarely_have_a_change(count):
    rng = np.random.default_rng(count)
    series = [rng.normal(0, 0.02, count).tolist() for _ in range(300)]
    assert sum(bool(change_points(each)) for each in series) <= 6  # 3 are expected at most


def test_ten_percent_are_found_in_ten_runs_that_differ_by_two():
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(100):
        values = rng.normal(0, 0.02, 10) + np.log(1.1) * (np.arange(10) >= 5)
        found += any(abs(place - 5) <= 1 for place in change_points(values.tolist()))
    assert found >= 90


@pytest.fixture
def folder(tmp_path):
    """Eight runs of a command, named against their order, of which the last four are slower; and one of another."""
    for number in range(8):
        make_run(
            tmp_path / f"r{9 - number}",
            None,
            [5.0 + 0.01 * number + (number >= 4)] * 60,
            command=["/home/me/train.py", "--lr", "1", "--out", f"x{number}"],
            started=f"2026-03-{10 + number}T10:30:00+0000",
            revision=f"{number}" * 40,
            machine="8 x z80",
        )
    make_run(tmp_path / "other", training(), [9.0] * 60, command=["train.py", "--lr", "2"], machine="8 x z80")
    make_run(tmp_path / "short", None, [9.0] * 10, command=["train.py", "--lr", "2"], machine="8 x z80")
    (tmp_path / "latest").symlink_to("r2")
    return tmp_path


def test_runs_of_a_command_are_sorted_by_time_with_commits(folder):
    (first, second), left = history.read(folder)
    assert [point.run for point in first.points] == ["r9", "r8", "r7", "r6", "r5", "r4", "r3", "r2"]
    assert [point.revision[0] for point in first.points] == list("01234567")
    (change,) = first.changes
    assert (change.place, change.before_ms, change.after_ms) == (4, pytest.approx(5.015), pytest.approx(6.055))
    assert (first.command, [point.run for point in second.points]) == ("train.py --lr 1", ["other"])
    assert left == ["short has 10 unprofiled steps of train; 20 are needed"]


def test_terminal_chart_begins_at_zero_and_marks_slowdowns(folder):
    lines = run(folder).output.splitlines()
    assert lines[0] == "train.py --lr 1, 8 runs on 8 x z80"
    place = next(place for place, line in enumerate(lines) if "Slower" in line)
    assert lines[place] == "  Slower, +21%: 5.01 ms before, 6.05 ms after; between r6 (333333333) and r5 (444444444)."
    assert lines[place - 1].startswith("  2026-03-13 10:30  333333333  r6   5.03 ms  ")
    bars = [line.count("#") for line in lines[1:10] if "#" in line]
    assert [bars[0], bars[-1]] == [20, 24]  # 5 to 6.07
    assert lines[-1] == "skipped: short has 10 unprofiled steps of train; 20 are needed"


def test_json_contains_the_same_history(folder):
    told = json.loads(run(folder, "--format", "json").stdout)
    assert [each["heading"] for each in told["histories"]] == [
        "train.py --lr 1, 8 runs on 8 x z80",
        "train.py --lr 2, 1 run on 8 x z80",
    ]
    assert told["histories"][0]["changes"][0]["place"] == 4
    assert len(told["left"]) == 1


def test_jobs_of_different_sizes_have_separate_histories(tmp_path):
    for ranks in (1, 2):
        make_run(tmp_path / f"r{ranks}", None, [5.0 / ranks] * 60, command=["train.py"], world_size=ranks)
    headings = [line for line in run(tmp_path).output.splitlines() if line.startswith("train.py")]
    assert headings == ["train.py, 1 run", "train.py, 2 ranks, 1 run"]


def test_run_of_a_busy_machine_is_marked(tmp_path):
    busy = make_run(tmp_path / "busy", None, [5.0] * 60)
    loop = Loop(stage="train", step=300)
    publish_json(busy / "rank0.status.json", Status(process=Process.current(), time=0, loop=loop, waited=0.4))
    assert run(tmp_path).output.splitlines()[1].endswith("#  (CPU contention, waited 40%)")


def test_broken_run_is_skipped_and_empty_folder_is_an_error(folder, tmp_path):
    broken = make_run(folder / "broken", None, [5.0] * 60)
    (broken / "run.json").write_text("{")
    assert "skipped: " in run(folder).output
    assert "run.json" in run(folder).output
    (tmp_path / "empty").mkdir()
    for target, said in (
        (tmp_path / "empty", "no run with 20 unprofiled steps"),
        (tmp_path / "none", "There is no folder"),
    ):
        done = run(target)
        assert isinstance(done.exception, PerfhooksError)
        assert said in str(done.exception)


@pytest.mark.browser
def test_report_draws_runs_and_changes_offline(folder, chromium):
    page = folder / "history.html"
    assert run(folder, "-o", page).exit_code == 0
    chromium.open(page)
    assert chromium.complaints == []
    assert {each.partition(":")[0] for each in chromium.requests} <= {"file", "data", "blob"}
    assert chromium.run("document.querySelectorAll('.lane').length") == 9
    assert chromium.run("document.querySelector('.change').innerText").startswith("Slower, +21%: 5.01 ms before")
    widths = chromium.run("[...document.querySelectorAll('.lane > i')].map((bar) => parseFloat(bar.style.width))")
    assert widths[0] / widths[7] == pytest.approx(5 / 6.07)
    assert "short has 10 unprofiled steps" in chromium.run("document.getElementById('left').innerText")
