"""The first cases of `make fuzz`, so that it keeps working; the rest are many."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
import warm

from perfhooks.cli.actions import show
from perfhooks.report import handlers

pytestmark = [pytest.mark.process, pytest.mark.nightly]

USES = {*show.TABLES, "merge", "others", "page", "flame", "try", *(f"handler {name}" for name in handlers.NAMES)}
USES -= {"startup"}  # no trace has it
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


@pytest.fixture
def fuzz(channel, tmp_path):
    """Runs it; gives what it prints when nothing fails, by lines."""

    def run(*words, **environment):
        words = (*words, "--keep", tmp_path)
        how = {"folder": tmp_path, "environment": os.environ | environment, "timeout": 300}
        done = warm.run(channel, SCRIPT, *words, **how)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


def test_damaged_traces_are_read_or_rejected(fuzz, traces):
    """All that can be made of a trace is made of what is left of some, and nothing is raised but a TraceError."""
    words = ["--cases", "200", "--folders", "0", "--all", "0.02"]
    counts, made, *_ = fuzz(*words, PERFHOOKS_TRACES=str(traces))
    assert counts.startswith("200 cases: {")
    assert set(ast.literal_eval(made.removeprefix("made "))) >= USES


def test_files_of_other_writers_are_accepted_or_rejected(fuzz):
    lines = fuzz("--of", "baselines", "requests", "--cases", "80")
    found = [ast.literal_eval(line.removeprefix("80 cases: ")) for line in lines if line.startswith("80 cases: ")]
    assert [len(counts) for counts in found] == [2, 2], "some are good, some are not"
    assert [sum(counts.values()) for counts in found] == [80, 80]


def test_trace_is_written_if_none_was_recorded(fuzz, tmp_path):
    lines = fuzz("--cases", "9", "--folders", "0", "--only", "flame", PERFHOOKS_TRACES=str(tmp_path))
    assert "read" in lines[0]
    assert lines[1].startswith("made {'flame': ")


def test_operator_calls_stay_within_their_bounds(fuzz):
    assert fuzz("--of", "calls", "--cases", "2")[0].startswith("2 cases: {")
