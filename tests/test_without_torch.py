"""Without torch everything works but recording, which says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perfhooks import testing
from perfhooks.testing import op, step_mark

pytestmark = pytest.mark.process

NO_TORCH = "import sys; sys.modules['torch'] = None\n"
"""Makes ``import torch`` fail where there is one."""


def done(code, *words):
    return subprocess.run(
        [sys.executable, "-c", NO_TORCH + code, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_recording_without_torch_names_the_needed_version():
    result = done("import perfhooks\nperfhooks.Profiler()")
    last = result.stderr.splitlines()[-1]
    assert last == "ModuleNotFoundError: perfhooks records with PyTorch 2.4 or later: pip install 'torch>=2.4'"


@pytest.mark.parametrize("verb", [["demo"]])
def test_verb_that_needs_torch_is_one_line_without_torch(verb):
    result = done("from perfhooks.cli.app import main\nmain()", *verb)
    assert result.returncode == 2
    assert result.stderr == "perfhooks: perfhooks records with PyTorch 2.4 or later: pip install 'torch>=2.4'\n"


def test_doctor_reports_missing_torch_as_the_problem(tmp_path):
    result = done("from perfhooks.cli.app import main\nmain()", "doctor", "--out", tmp_path / "perf")
    assert result.returncode == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("problem")]
    assert line.startswith("problem  torch")
    assert "pip install 'torch>=2.4'" in line


def test_reading_showing_and_reporting_do_without(tmp_path):
    trace = testing.write_trace(tmp_path / "a.json", [step_mark(1, 0, 1000), op("aten::mm", 10, 500)])
    for verb in (["show", trace], ["report", trace], ["flame", trace], ["schedule", "wait=1 warmup=1 active=1"]):
        result = done("from perfhooks.cli.app import main\nmain()", *verb)
        assert result.returncode == 0, result.stderr
