"""The first cases of `make fuzz`, so that it keeps working; the rest are many."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfhooks import handlers
from perfhooks.command.actions import show

USES = {*show.TABLES, "merge", "others", "page", "flame", "try", *(f"handler {name}" for name in handlers.NAMES)}
USES -= {"startup"}  # no trace has it
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "written"])
def test_damaged_traces_are_read_or_refused(tmp_path, recorded):
    """All that can be made of a trace is made of what is left of some, and nothing is raised but a TraceError."""
    environment = os.environ | ({} if recorded else {"PERFHOOKS_TRACES": str(tmp_path)})
    command = [
        sys.executable,
        str(SCRIPT),
        "--cases",
        "200",
        "--folders",
        "0",
        "--all",
        "0.02",
        "--keep",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    counts, made, *_ = done.stdout.splitlines()
    assert counts.startswith("200 cases: {")
    assert set(ast.literal_eval(made.removeprefix("made "))) >= USES


@pytest.mark.parametrize("kind", ["baselines", "requests"])
def test_what_else_others_may_write_is_taken_or_refused(tmp_path, kind):
    command = [sys.executable, str(SCRIPT), "--of", kind, "--cases", "80", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = ast.literal_eval(done.stdout.splitlines()[0].removeprefix("80 cases: "))
    assert len(counts) == 2, "some are good, some are not"
    assert sum(counts.values()) == 80


def test_calls_of_any_operator_with_any_arguments_stay_within_their_bounds(tmp_path):
    command = [sys.executable, str(SCRIPT), "--of", "calls", "--cases", "2", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("2 cases: {")
