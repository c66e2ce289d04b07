"""Trainings in processes of multiprocessing under `perfhooks run`: recorded like ranks of torchrun."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfhooks.core import process
from perfhooks.record.launch.command_line import VARIABLE

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parent / "children_training.py"
WORDS = ("--schedule", "wait=4 warmup=1 active=4 repeat=1", "--handler", "steps", "--exit-timeout", "60")


def started(folder, *words):
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    script = folder / SCRIPT.name
    shutil.copy(SCRIPT, script)
    command = [sys.executable, *words[:-1], script, *words[-1].split()]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    for meeting in folder.glob("*.meeting"):
        meeting.unlink()
    return done


def run_folders(folder):
    return [path for path in (folder / "perf").glob("*") if not path.is_symlink()]


def error_of_program(text):
    """Standard error without lines of perfhooks and numbers of processes."""
    lines = [line for line in text.splitlines() if "perfhooks" not in line and not line.startswith("  ")]
    return re.sub(r"\d+", "N", "\n".join(lines))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("torch spawn 2", 0),
        ("torch spawn 1 exit", 1),
        ("process spawn 1 raise", 1),
        ("process fork 1 exit", 3),
        ("process forkserver 2", 0),
    ],
)
def test_training_in_a_child_process_is_recorded(words, code, tmp_path):
    ranks, is_failing = int(words.split()[2]), code != 0
    done = started(tmp_path, "-m", "perfhooks", "run", *WORDS, words)
    assert done.returncode == code, done.stderr
    if is_failing:
        bare = started(tmp_path, words)
        assert (done.returncode, done.stdout) == (bare.returncode, bare.stdout)
        assert error_of_program(done.stderr) == error_of_program(bare.stderr)
    assert done.stdout.count("loss") == ranks
    (run,) = run_folders(tmp_path)
    captures = [json.loads(file.read_text()) for file in run.glob("train-*/rank*.capture.json")]
    assert sorted(capture["rank"] for capture in captures) == list(range(ranks))
    assert {capture["state"] for capture in captures} == {"done"}
    assert len(list(run.glob("rank*.timeline.csv"))) == ranks
    assert len(re.findall("^perfhooks: ", done.stderr, re.MULTILINE)) == 1, done.stderr
    assert f"{run}" in done.stderr


def test_training_in_a_child_after_a_training_is_recorded_apart(tmp_path):
    done = started(tmp_path, "-m", "perfhooks", "run", *WORDS, "after fork 1")
    assert done.returncode == 0, done.stderr
    runs = run_folders(tmp_path)
    assert len(runs) == 2, done.stderr
    assert all(list(run.glob("train-*/rank0.steps.csv")) for run in runs)
    assert len(re.findall("^perfhooks: ", done.stderr, re.MULTILINE)) == 2, done.stderr


LIGHTNING = """
import lightning as L, torch

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

if __name__ == "__main__":
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp_spawn", **quiet)
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(48, 8), 2))
"""


@pytest.mark.framework
def test_lightning_in_spawned_processes_is_recorded(tmp_path):
    pytest.importorskip("lightning")
    (tmp_path / "fit.py").write_text(LIGHTNING)
    command = [sys.executable, "-m", "perfhooks", "run", *WORDS, "fit.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = run_folders(tmp_path)
    assert len(list(run.glob("train-*/rank*.steps.csv"))) == 2
    assert "nothing" not in done.stderr
    assert len(re.findall("^perfhooks: ", done.stderr, re.MULTILINE)) == 1, done.stderr


@pytest.mark.parametrize("words", ["pool spawn 1", "executor fork 1"])
def test_training_in_a_pool_is_not_recorded_and_says_why(words, tmp_path):
    done = started(tmp_path, "-m", "perfhooks", "run", *WORDS, words)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("perfhooks: ")]
    assert "nothing was recorded: a worker of a process pool trains" in line
    assert not (tmp_path / "perf").exists()


def test_child_without_a_training_records_nothing(tmp_path):
    done = started(tmp_path, "-m", "perfhooks", "run", *WORDS, "process spawn 1 predict")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("perfhooks: ")]
    assert line.endswith("fetched no batch and made no update, and no child process trained")
    assert not (tmp_path / "perf").exists()


@pytest.mark.parametrize(
    "module",
    [
        "multiprocessing.pool",
        "multiprocess.pool",
        "concurrent.futures.process",
        "joblib.externals.loky.process_executor",
    ],
)
def test_worker_of_a_pool_is_a_helper(module, monkeypatch):
    from perfhooks.record.launch import children

    monkeypatch.setattr(process, "target_module", lambda: "my.pools")
    assert not children.is_helper_process()
    monkeypatch.setattr(process, "target_module", lambda: module)
    assert children.is_helper_process()
