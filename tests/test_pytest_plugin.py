"""The fixture for pytest, in sessions of their own; the trainings in them are real."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch  # noqa: F401 -- pytester forgets what the session in it imported, and torch can be imported once
from comparing_runs import make_run, training
from test_comparing import steps

from perfhooks.analysis.comparison import baseline

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[1]


@pytest.fixture
def session(pytester, monkeypatch):
    """Runs a test file with the plugin, and with no other of this session's."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(code, *words):
        pytester.makepyfile(code)
        return pytester.runpytest_inprocess("-p", "perfhooks.pytest_plugin", "-p", "no:cacheprovider", *words)

    return run


def test_pytest_finds_the_plugin_by_itself():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    name = re.search(r'entry-points.pytest11\]\nperfhooks = "(.+)"', text)[1]
    assert hasattr(import_module(name), "assert_not_slower")


@pytest.mark.parametrize(("median", "outcome"), [(5.0, "passed"), (9.0, "failed")])
def test_assertion_fails_if_a_run_is_slower_than_its_baseline(pytester, session, median, outcome):
    make_run(pytester.path / "base", training(), steps())
    make_run(pytester.path / "new", training(data=4000), steps(median, seed=1))
    done = session('def test_it(assert_not_slower):\n    assert_not_slower("base", "new", by=0.02)\n')
    done.assert_outcomes(**{outcome: 1})
    if outcome == "failed":
        done.stdout.fnmatch_lines(["*AssertionError: *Slower: a step takes*", "*waiting for data takes 4 ms*"])
    else:
        # what could not be decided passes, and is said
        done.stdout.fnmatch_lines(["*= perfhooks =*", "test_it: Undecided: a step takes *"])


def test_default_tolerance_is_two_percent(pytester, session):
    for name, seed in [("base", 0), ("base2", 1), ("new", 2), ("new2", 3)]:
        make_run(pytester.path / name, training(), steps(count=1000, seed=seed))
    done = session('def test_it(assert_not_slower):\n    assert_not_slower(["base", "base2"], ["new", "new2"])\n')
    done.stdout.fnmatch_lines(["*= perfhooks =*", "test_it: The same, within 1.[0-9]%: a step takes *"])


TRAINS = """
import perfhooks, torch

def train(name):
    with perfhooks.Profiler(schedule="skip_first=45 wait=0 warmup=1 active=2 repeat=1", out="perf", run=name,
                            background=False) as prof:
        for x in prof.steps([torch.ones(64, 64)] * 60):
            x @ x

def test_it(assert_not_slower):
    train("own")
    made = assert_not_slower("base.json", by=0.9)
    assert made is None or made.verdict.runs_b == 1
"""


@pytest.mark.recorder
def test_fixture_compares_and_saves_the_runs_of_the_test(pytester, session):
    """A missing baseline is an error with its remedy, not a pass."""
    missing = session(TRAINS)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*base.json does not exist; pytest --perfhooks-save writes it*"])
    assert not (pytester.path / "base.json").exists()
    done = session(TRAINS.replace('"own"', '"first"'), "--perfhooks-save")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["base.json was written from 1 run"])
    kept = baseline.decode(pytester.path / "base.json")
    assert (kept.label, kept.costs.steps) == ("first", 2)
    # a machine that others use may make it slower by any amount
    outcomes = session(TRAINS.replace('"own"', '"second"')).parseoutcomes()
    assert outcomes.get("passed", 0) + outcomes.get("failed", 0) == 1


@pytest.mark.recorder
@pytest.mark.parametrize("base", ['"folder"', '["base.json", "other.json"]'])
def test_baseline_must_be_a_single_file(pytester, session, base):
    """A folder would be a run, and a file holds one side."""
    (pytester.path / "folder").mkdir()
    done = session(TRAINS.replace('"own"', '"one"').replace('"base.json"', base), "--perfhooks-save")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*--perfhooks-save needs base to be one file, not a run*"])
    assert [path.name for path in pytester.path.glob("*.json")] == []


def test_missing_run_of_a_test_is_an_error(pytester, session):
    make_run(pytester.path / "base", training(), steps())
    done = session('def test_it(assert_not_slower):\n    assert_not_slower("base")\n')
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*no run was recorded in this test; pass a run with new=*"])


def test_session_without_comparisons_prints_nothing(session):
    done = session("def test_it():\n    pass\n")
    done.assert_outcomes(passed=1)
    done.stdout.no_fnmatch_line("*perfhooks*=*")
