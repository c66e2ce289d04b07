"""The first cases of `make fuzz`, so that it keeps working; the rest are many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "written"])
def test_damaged_traces_are_read_or_refused(tmp_path, recorded):
    """Every table of what is left of a trace can be made and written, and nothing is raised but a TraceError."""
    environment = os.environ | ({} if recorded else {"PERFHOOKS_TRACES": str(tmp_path)})
    command = [sys.executable, str(SCRIPT), "--cases", "200", "--folders", "0", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("200 cases: {")
