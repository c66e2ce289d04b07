"""However a training with mmengine ends, its window is kept, and the process ends as it would have without us."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("mmengine")

import mmengine_ends
import warm
from filelock import FileLock
from mmengine.hooks import Hook
from mmengine_training import capture, rows, runner, tidy, validation, windows

from perfhooks_mmengine import ProfilerHook

pytestmark = pytest.mark.framework

HERE = Path(__file__).parent

if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)


HALVES = (mmengine_ends.CASES[::2], mmengine_ends.CASES[1::2])
"""On a busy machine, all cases would take longer than one test may."""


@pytest.fixture
def ended(case, frameworks, shared_folder):
    """The folder of half of the cases, and their exit codes; made once, also if several processes share the tests."""
    number = int(case in HALVES[1])
    folder = shared_folder / f"ends{number}"
    codes = folder / "codes.json"
    with FileLock(f"{folder}.lock"):
        if not codes.exists():
            shutil.rmtree(folder, ignore_errors=True)  # what a killed process of pytest has left
            folder.mkdir()
            done = warm.run(frameworks, HERE / "mmengine_ends.py", folder, *HALVES[number], timeout=300, is_whole=True)
            assert done.returncode == 0, done.stderr
    return folder, json.loads(codes.read_text())


OURS = ("perfhooks_mmengine", "perfhooks/", "contextlib.py", "torch/_dynamo/external_utils.py")
"""Files of frames that are there because of us; the last is what torch.compiler.disable puts around our label."""


def traceback(text):
    """What Python said of an exception, less our own frames, and without addresses."""
    start = text.find("Traceback (most recent call last)")
    lines = text[start:].splitlines() if start >= 0 else []
    kept, ours = [], False
    for line in lines:
        if line.startswith("  File "):
            ours = any(part in line for part in OURS)
        if not (ours and line.startswith("  ")):
            kept.append(line)
    return re.sub(r"0x[0-9a-f]+", "0x", "\n".join(kept))


def kept(folder, case):
    """The capture and the table of the one window of a case."""
    (window,) = (path.parent for path in (folder / case).rglob("rank0.capture.json"))
    return capture(window), rows(window)


CODES = {
    **dict.fromkeys(mmengine_ends.CASES, 0),
    **dict.fromkeys([case for case in mmengine_ends.CASES if "exception" in case], 1),
    "background": 1,
    "resume": 1,
    "ctrl-c": -2,
    "sigterm": -15,
    "exit": 3,
}


@pytest.mark.parametrize("case", mmengine_ends.CASES)
def test_exit_code_equals_that_without_perfhooks(ended, case):
    folder, codes = ended
    assert codes[case] == CODES[case], (folder / f"{case}.txt").read_text()
    assert codes.get(f"{case}, without", codes[case]) == codes[case]


@pytest.mark.parametrize("case", mmengine_ends.COMPARED)
def test_traceback_equals_that_without_perfhooks(ended, case):
    folder, _ = ended
    found, expected = (traceback((folder / f"{name}.txt").read_text()) for name in (case, f"{case}, without"))
    assert found == expected
    assert "During handling" not in found


CAUSES = {
    **{case: "RuntimeError: out of luck" for case in mmengine_ends.CASES if "exception" in case},
    "ctrl-c": "KeyboardInterrupt",
    "sigterm": "SIGTERM",
    "exit": "SystemExit: 3",
    "exit 0": "SystemExit: 0",
    "background": "RuntimeError: out of luck",
    "caught": "RuntimeError: out of luck",
}


@pytest.mark.parametrize("case", CAUSES)
def test_recording_is_kept_with_the_reason_for_its_end(ended, case):
    facts, table = kept(ended[0], case)
    assert facts["partial"].startswith(CAUSES[case])
    assert facts["state"] == "done"
    whole = mmengine_ends.ITERATION + (case == "exception in validation")  # which comes after the iteration
    assert [row["step"] for row in table] == list(range(2, whole))


@pytest.mark.parametrize("case", ["train twice", "train, test", "two hooks", "workers"])
def test_ends_that_leave_mmengines_hook_open_close_ours(ended, case):
    _, table = kept(ended[0], case)
    assert [row["step"] for row in table] == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("case", ["test", "val", "resume"])
def test_runner_without_training_records_nothing(ended, case):
    assert not list((ended[0] / case).rglob("*.capture.json"))


@pytest.mark.usefixtures(tidy.__name__)
def test_a_validation_that_fails_ends_its_own_window_only(tmp_path):
    """Somebody's loop may catch the error and go on training."""

    class Fail(Hook):
        def before_val_iter(self, runner, batch_idx, **_):
            if batch_idx == 3:
                raise RuntimeError("no score")

    hook = ProfilerHook(schedule={"train": "wait=9 warmup=0 active=2 repeat=1", "val": "wait=1 warmup=0 active=9"})
    made = runner(tmp_path, hook, Fail(), **validation())
    run = made.val_loop.run

    def forgiving():
        with pytest.raises(RuntimeError):
            run()

    made.val_loop.run = forgiving
    made.train()
    partial = {window.name: capture(window)["partial"] for window in windows(made)}
    assert partial["train-000009-000010"] is None
    assert len(partial) == 2
