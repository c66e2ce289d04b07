"""Shared by the tests of integrations: a schedule, options, and the files of a run."""

import csv
import gzip
import json
import re
from pathlib import Path

TWO_WINDOWS = "skip_first=1 wait=1 warmup=1 active=2 repeat=2"
"""Records steps 3 and 4, 7 and 8."""


def at_once(folder):
    """Options: only step tables, in ``perf/run`` in a folder, made by the training itself."""
    return {"on_trace_ready": ["steps"], "out": folder / "perf", "run": "run", "background": False}


def read(path):
    """A step table, numbers as numbers."""
    with path.open(encoding="utf-8") as file:
        return [
            {name: float(value) if value and name != "stage" else value for name, value in row.items()}
            for row in csv.DictReader(file)
        ]


def tables(folder, run="run"):
    """The step table of each window of a run, by the name of its folder."""
    return {path.parent.name: read(path) for path in sorted((folder / "perf" / run).glob("*/rank0.steps.csv"))}


def windows(folder, run="run"):
    """The steps in the table of each window of a run, by the name of its folder."""
    return {name: [int(row["step"]) for row in rows] for name, rows in tables(folder, run).items()}


def capture(folder, window, run="run"):
    """The facts of a window."""
    return json.loads((folder / "perf" / run / window / "rank0.capture.json").read_text(encoding="utf-8"))


def events(folder, window, run="run"):
    """The events of a window's trace."""
    with gzip.open(folder / "perf" / run / window / "rank0.pt.trace.json.gz") as file:
        return json.load(file)["traceEvents"]


def parts(row):
    """The parts of a step that took time."""
    names = ("data", "transfer", "forward", "backward", "optimizer", "validation", "checkpoint")
    return {name for name in names if row[f"{name}_ms"]}


def run_readme(package, names):
    """Execute the Python blocks of a face's README, one after the other, with what a reader has."""
    text = (Path(__file__).parents[1] / "integrations" / package / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found
    for block in found:
        exec(compile(block, f"{package}/README.md", "exec"), names)
