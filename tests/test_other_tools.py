"""Tools that replace threads, trace lines or compile functions work under `perfhooks run` as without it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.process]

SCRIPT = str(Path(__file__).parent / "tools_training.py")
RECORD = (
    *["-m", "perfhooks", "run", "--handler", "steps", "--exit-timeout", "60", "--schedule"],
    "wait=4 warmup=1 active=4 repeat=1",
)


def run(folder, *words):
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("workers", [(), ("workers",)], ids=["no workers", "workers"])
@pytest.mark.parametrize(
    ("tool", "before"),
    [
        ("gevent", ()),
        ("numba", ()),
        ("coverage", ("-m", "coverage", "run")),
        ("debugpy", ["-m", "debugpy", "--listen", "127.0.0.1:0"]),
    ],
)
def test_training_beside_another_tool_has_equal_results_and_is_recorded(tool, before, workers, tmp_path):
    pytest.importorskip(tool)
    if (tool, workers) == ("gevent", ("workers",)):
        pytest.skip("a loader with workers stops in a program that gevent has changed, also without perfhooks")
    words = (*before, SCRIPT, tool, *workers)
    folders = tmp_path / "bare", tmp_path / "recorded"
    for folder in folders:
        folder.mkdir()
    bare, recorded = run(folders[0], *words), run(folders[1], *RECORD, *words)
    assert (recorded.returncode, recorded.stdout) == (bare.returncode, bare.stdout), recorded.stderr
    assert bare.returncode == 0, bare.stderr
    (table,) = folders[1].glob("perf/2*/train-000005-000008/rank0.steps.csv")
    with table.open(encoding="utf-8", newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["5", "6", "7", "8"]
    if tool == "coverage":
        assert lines_of_script(folders[1]) == lines_of_script(folders[0]) != []


def lines_of_script(folder):
    done = run(folder, *["-m", "coverage", "json", "-q", "-o", "-"], "--include", SCRIPT)
    return json.loads(done.stdout)["files"][SCRIPT]["executed_lines"]
