"""Trainings in processes of multiprocessing under `perfhooks run`: recorded like ranks of torchrun."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import warm

from perfhooks.core import process
from perfhooks.record.launch import children

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parent / "children_training.py"
WORDS = ("--schedule", "wait=4 warmup=1 active=4 repeat=1", "--handler", "steps", "--exit-timeout", "200")


@pytest.fixture
def started(launch, tmp_path):
    """Runs the training in the test's folder, where its ranks meet."""
    script = shutil.copy(SCRIPT, tmp_path)
    return lambda words: launch(*WORDS, script, *words.split())


def run_folders(folder):
    return [path for path in (folder / "perf").glob("*") if not path.is_symlink()]


def lines_of_perfhooks(done):
    return [line for line in done.stderr.splitlines() if line.startswith("perfhooks: ")]


def error_of_program(text):
    """Standard error without lines of perfhooks and numbers of processes."""
    lines = [line for line in text.splitlines() if "perfhooks" not in line and not line.startswith("  ")]
    return re.sub(r"\d+", "N", "\n".join(lines))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("torch spawn 2", 0),
        ("torch spawn 1 exit", 1),
        ("process fork 1 raise", 1),
        ("process fork 1 exit", 3),
        ("process forkserver 1", 0),
    ],
)
def test_training_in_a_child_process_is_recorded(channel, started, words, code, tmp_path):
    ranks, done = int(words.split()[2]), started(words)
    assert done.returncode == code, done.stderr
    if code:
        bare = warm.run(channel, tmp_path / SCRIPT.name, *words.split(), timeout=300)
        assert (done.returncode, done.stdout) == (bare.returncode, bare.stdout)
        assert error_of_program(done.stderr) == error_of_program(bare.stderr)
    assert done.stdout.count("loss") == ranks
    (run,) = run_folders(tmp_path)
    captures = [json.loads(file.read_text()) for file in run.glob("train-*/rank*.capture.json")]
    assert sorted(capture["rank"] for capture in captures) == list(range(ranks))
    assert {capture["state"] for capture in captures} == {"done"}
    assert len(list(run.glob("rank*.timeline.csv"))) == ranks
    assert len(lines_of_perfhooks(done)) == 1, done.stderr
    assert f"{run}" in done.stderr


def test_training_in_a_child_after_a_training_is_recorded_apart(started, tmp_path):
    done = started("after fork 1")
    assert done.returncode == 0, done.stderr
    runs = run_folders(tmp_path)
    assert len(runs) == 2, done.stderr
    assert all(list(run.glob("train-*/rank0.steps.csv")) for run in runs)
    assert len(lines_of_perfhooks(done)) == 2, done.stderr


LIGHTNING = """
import lightning.pytorch as L, torch

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
@pytest.mark.nightly  # three imports of Lightning; "torch spawn 2" above takes the same way
def test_lightning_in_spawned_processes_is_recorded(launch_framework, tmp_path):
    pytest.importorskip("lightning")
    script = tmp_path / "fit.py"
    script.write_text(LIGHTNING)
    done = launch_framework(*WORDS, script)
    assert done.returncode == 0, done.stderr
    (run,) = run_folders(tmp_path)
    assert len(list(run.glob("train-*/rank*.steps.csv"))) == 2
    assert "nothing" not in done.stderr
    assert len(lines_of_perfhooks(done)) == 1, done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("pool spawn 1", "nothing was recorded: a worker of a process pool trains"),
        ("executor fork 1", "nothing was recorded: a worker of a process pool trains"),
        ("process spawn 1 predict", "fetched no batch and made no update, and no child process trained"),
    ],
)
def test_children_without_a_recording_are_the_reason(started, words, reason, tmp_path):
    done = started(words)
    assert done.returncode == 0, done.stderr
    (line,) = lines_of_perfhooks(done)
    assert reason in line
    assert not (tmp_path / "perf").exists()


@pytest.mark.parametrize("package", ["multiprocessing", "multiprocess", "concurrent.futures", "joblib.externals.loky"])
def test_worker_of_a_pool_is_a_helper(package, monkeypatch):
    monkeypatch.setattr(process, "target_module", lambda: "my.pools")
    assert not children.is_helper_process()
    name = {"concurrent.futures": "process", "joblib.externals.loky": "process_executor"}.get(package, "pool")
    monkeypatch.setattr(process, "target_module", lambda: f"{package}.{name}")
    assert children.is_helper_process()
