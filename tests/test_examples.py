"""Every example runs as a user would run it, and the three loops leave the same files for the same schedule."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
COMMANDS = {
    "raw_loop": ["--batch-size", "2"],
    "lightning_resnet18": ["--batch-size", "2"],
    "mmengine_resnet18": [],
}
WINDOWS = {"train-000005-000007": [5, 6, 7], "train-000011-000013": [11, 12, 13]}
"""What ``skip_first=2 wait=2 warmup=1 active=3 repeat=2`` records of 16 steps."""
KINDS = {
    "rank0.capture.json",
    "rank0.operators.csv",
    "rank0.pt.trace.json.gz",
    "rank0.stacks.folded",
    "rank0.steps.csv",
}
"""What every example leaves of a window, whatever runs its loop."""


def run_example(name, here):
    """Run an example in a folder; give what it printed and the run folder it left."""
    command = [sys.executable, EXAMPLES / f"{name}.py", *COMMANDS[name]]
    environment = os.environ | {"TMPDIR": str(here)}
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = {path.resolve().parent for path in here.rglob("run.json")}
    return done, run


def steps(table):
    with table.open(encoding="utf-8") as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


def shown(folder):
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.mark.parametrize("name", [name for name in COMMANDS if (EXAMPLES / f"{name}.py").exists()])
def test_every_example_leaves_the_same_files_with_the_step_numbers_that_the_schedule_draws(name, tmp_path):
    done, run = run_example(name, tmp_path)
    folders = [path for path in run.iterdir() if path.is_dir()]
    assert {folder.name: steps(folder / "rank0.steps.csv") for folder in folders} == WINDOWS
    assert all(shown(folder) >= KINDS for folder in folders)
    assert "wall" in done.stdout, "it ends with the step table"
    assert "rank0.pt.trace.json.gz" in done.stdout, "and with the files it wrote"
    assert "Traceback" not in done.stderr
