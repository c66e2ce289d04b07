"""Trainings of many kinds compute the same with everything switched on as without perfhooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfhooks.record.loop.tasks import QUEUE

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).with_name("kinds_training.py")
EVERYTHING = ("--with-stack", "--record-shapes", "--profile-memory", "--with-flops", "--schedule")
EVERYTHING += ("wait=3 warmup=1 active=2",)
NOTICES_READS = ("function_mode", "modes_in_a_step", "computed_weights")
"""torch's recorder with stacks reads gradients. These programs notice it, so the default options leave stacks out."""


def run(*command, code=7, said=None):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == code, done.stderr[-3000:]
    if said is not None:
        said.append(done.stderr)
    return done.stdout.splitlines()


def launched(folder, *options):
    return (sys.executable, "-m", "perfhooks", "run", "--out", str(folder), *options)


@pytest.fixture(scope="module")
def plain():
    return run(sys.executable, SCRIPT)


@pytest.mark.nightly
def test_all_options_leave_the_results_unchanged(plain, tmp_path):
    kinds, said = [line.split()[0] for line in plain], []
    assert len(kinds) > 40
    options = launched(tmp_path, *EVERYTHING)
    lines = run(*options, SCRIPT, *(kind for kind in kinds if kind not in NOTICES_READS), said=said)
    assert lines == [line for line in plain if not line.startswith(NOTICES_READS)]
    recorded = len(list(tmp_path.glob("latest/train-*")))
    is_worker_late = "too many earlier windows are waiting for the worker process" in said[0]  # on a busy machine
    assert recorded > 10 or (is_worker_late and recorded >= QUEUE), "windows were recorded"


@pytest.mark.parametrize(
    "kinds",
    [(*NOTICES_READS[:2], "dispatch_mode", "subclass_tensors", "exceptions_in_a_step"), NOTICES_READS[2:]],
)
def test_results_are_the_same_by_default(kinds, tmp_path):
    lines = run(sys.executable, SCRIPT, "--batches=150", *kinds)
    assert run(*launched(tmp_path), SCRIPT, "--batches=150", *kinds) == lines
    assert list(tmp_path.glob("latest/train-*"))


def test_patch_of_module_calls_across_the_end_of_a_window():
    """It puts our stand-in back after the window has ended, and later windows still end with torch's own."""
    code = """if True:
        import torch
        from torch.nn import Module
        from perfhooks.record.loop import labelling

        before, model = Module.__call__, torch.nn.Linear(2, 2)
        labelling.start("train")
        patched = Module.__call__

        def patch(module, *args, **kwargs):
            return patched(module, *args, **kwargs)

        Module.__call__ = patch
        labelling.stop()
        labelling.start("train")
        model(torch.ones(2))
        labelling.stop()
        Module.__call__ = patched
        model(torch.ones(2))
        labelling.start("train")
        model(torch.ones(2))
        labelling.stop()
        assert Module.__call__ is before
    """
    run(sys.executable, "-c", code, code=0)
