"""Runs that saw the same data, and what steps waited for processors."""

import math

import numpy as np
import pytest

from perfhooks.analysis.comparison.timed import TimedRun, match_steps
from perfhooks.analysis.comparison.verdict import verdict
from perfhooks.run.steps import Counted, CpuInterval, Waits, append_waits, read_waits

WAITS_HEADER = ",".join(("stage", *CpuInterval._fields)) + "\n"

STEPS = 300


def run(logs, numbers=None, waits=None):
    walls = np.exp(logs)
    known = np.arange(len(walls)) if numbers is None else numbers
    return TimedRun(Counted(known, walls, np.full(len(walls), np.nan), np.zeros(len(walls), bool)), waits)


def lengths(random, steps=STEPS):
    """Sequences of different lengths: what a step takes depends on its batch."""
    return random.normal(0, 0.4, steps)


def noise(random, steps=STEPS):
    return random.normal(0, 0.02, steps)


def test_runs_that_saw_the_same_data_are_compared_step_by_step():
    """And are known twenty times as well."""
    random = np.random.default_rng(1)
    data = lengths(random)
    a, b = ([run(data + noise(random) + shift) for _ in range(3)] for shift in (0, math.log(1.04)))
    apart = verdict([each.level() for each in a], [each.level() for each in b])
    together = verdict(*match_steps(a, b))
    assert (apart.outcome, together.outcome) == ("undecided", "slower")
    assert together.ratio == pytest.approx(1.04, rel=0.005)
    errors = [[each.mean.above for each in levels] for levels in ([each.level() for each in a], match_steps(a, b)[0])]
    assert np.mean(errors[0]) > 10 * np.mean(errors[1])


@pytest.mark.slow
@pytest.mark.parametrize("runs", [1, 2])
def test_errors_of_pairs_come_from_differences_of_pairs(runs):
    """With as few runs as there are, each is part of what is usual."""
    random = np.random.default_rng(2)
    found = []
    for _ in range(200):
        data = lengths(random)
        a, b = ([run(data + noise(random)) for _ in range(runs)] for _ in "ab")
        a, b = match_steps(a, b)
        means = [np.mean([each.mean.log for each in side]) for side in (a, b)]
        error = math.sqrt(sum(each.mean.above**2 for each in (*a, *b))) / runs
        found.append((means[1] - means[0], error))
    differences, errors = np.array(found).T
    assert math.sqrt((errors**2).mean()) == pytest.approx(differences.std(), rel=0.15)


def test_runs_with_different_data_are_not_paired():
    random = np.random.default_rng(3)
    other = [run(lengths(random) + noise(random)) for _ in "ab"]
    assert match_steps(other[:1], other[1:]) is None
    drift = np.linspace(0, 1, STEPS)
    drifting = [run(drift + noise(random)) for _ in "ab"]
    assert match_steps(drifting[:1], drifting[1:]) is None


def test_steps_that_some_runs_lack_are_omitted_from_pairs():
    random = np.random.default_rng(4)
    data = lengths(random)
    a = run(data + noise(random))
    b = run((data + noise(random))[100:], np.arange(100, STEPS))
    levels = match_steps([a], [b])
    assert [each[0].steps for each in levels] == [200, 200]
    few = [match_steps([a], [run((data + noise(random))[at:], np.arange(at, STEPS))]) for at in (250, 251)]
    assert [each is not None for each in few] == [True, False], "fifty are enough"
    again = np.concatenate([np.arange(200), np.arange(100, 200)])
    assert match_steps([a], [run(data[again] + noise(random), again)]) is None, "it ran some steps twice"


# --- processors ---


def test_waits_of_steps_are_read_as_written(tmp_path):
    rows = [
        CpuInterval(0, 10, 1000.0, 600.0, 650.0, 300.0, 500.0),
        CpuInterval(10, 30, 1000.0, 900.0, 950.0, 50.0, 0.0),
    ]
    path = tmp_path / "rank0.processor.csv"
    append_waits(path, "train", rows[:1])
    append_waits(path, "validate", [CpuInterval(0, 5, 10.0, 1.0, 1.0, 9.0)])
    append_waits(path, "train", rows[1:])
    assert path.read_text().startswith(WAITS_HEADER)
    found = read_waits(path, "train")
    assert found.intervals == tuple(rows)
    assert found.others == 0.25
    assert found.shares(np.array([0, 9, 10, 29])).tolist() == [0.3, 0.3, 0.05, 0.05]
    assert found.shares(np.array([30, 500])) == pytest.approx([0.175, 0.175]), "else that of all"
    assert read_waits(path, "validate").others is None, "nobody told it"
    assert path.read_text().splitlines()[2].endswith(",9.000000,")
    assert read_waits(path, "test") is None
    assert read_waits(tmp_path / "none.csv", "train") is None


def test_torn_or_foreign_file_supplies_its_valid_rows(tmp_path):
    path = tmp_path / "rank0.processor.csv"
    good = "train,0,10,1000,600,650,300\n"
    path.write_text(f"{WAITS_HEADER}train,5,1,1,1,1,1\ntrain,1,2,nan,1,1,1\ntrain,1,2,0,1,1,1\n{good}train,10,2")
    assert len(read_waits(path, "train").intervals) == 1
    path.write_bytes(bytes(range(256)) * 10)
    assert read_waits(path, "train") is None


def test_run_contains_the_cpu_use_of_other_programs():
    waits = Waits((CpuInterval(0, STEPS, 1000.0, 990.0, 990.0, 10.0, 480.0),))
    walls = np.full(STEPS, math.log(0.01))
    assert run(walls, waits=waits).level().others == pytest.approx(0.48)
    assert run(walls, waits=Waits((waits.intervals[0]._replace(others_ms=math.nan),))).level().others is None
    assert run(walls).level().others is None


def test_steps_of_a_busy_second_lose_their_waits():
    """The first half of the run waited for half of its time, and took twice as long."""
    walls = np.log(np.where(np.arange(STEPS) < STEPS // 2, 0.02, 0.01))
    half = STEPS // 2
    waits = Waits((CpuInterval(0, half, 20.0 * half, 10.0 * half, 10.0 * half, 10.0 * half),
                   CpuInterval(half, STEPS, 10.0 * half, 10.0 * half, 10.0 * half, 0.0)))  # fmt: skip
    found = run(walls, waits=waits).level()
    assert found.own.value == pytest.approx(0.01)
    assert found.own.above == pytest.approx(0, abs=1e-9)
    assert found.waited == pytest.approx(1 / 3)
    assert found.whole.value == pytest.approx(0.015)
