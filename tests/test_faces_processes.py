"""Integrations in real processes: several ranks, SIGTERM, Ctrl-C, a missing framework."""

from __future__ import annotations

import csv
import json
import os
import signal
from importlib.metadata import version
from pathlib import Path

import pytest
import warm

pytestmark = pytest.mark.framework

for needed in ("transformers", "accelerate", "lightning"):
    pytest.importorskip(needed)

HERE = Path(__file__).parent
SCRIPT = HERE / "face_training.py"
FACES = ("transformers", "accelerate", "fabric")
WINDOW = "train-000003-000005"
TIMEOUT = 300


def environment(folder):
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC", "SLURM"))}
    return quiet | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}


def steps(path):
    with path.open(encoding="utf-8") as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


def test_two_ranks_of_all_integrations_share_a_run(frameworks, tmp_path):
    """And those of a model whose parameters are sharded (FSDP)."""
    how = {"folder": tmp_path, "environment": environment(tmp_path), "timeout": TIMEOUT}
    done = warm.ranks(frameworks, SCRIPT, tmp_path, **how)
    assert [each.returncode for each in done] == [0, 0], [each.stderr for each in done]
    old = tuple(map(int, version("torch").split(".")[:2])) < (2, 6)
    for face in ("lightning", *FACES) if old else ("lightning", *FACES, "fsdp"):
        (run,) = {path.parent.resolve() for path in (tmp_path / face / "perf").glob("*/run.json")}
        assert json.loads((run / "run.json").read_text())["world_size"] == 2
        for rank in range(2):
            assert steps(run / WINDOW / f"rank{rank}.steps.csv") == [3, 4, 5], (face, rank)
            assert (run / f"rank{rank}.timeline.csv").read_text().count("\ntrain,") == 8, (face, rank)


def test_signal_ends_the_process_and_keeps_the_window(frameworks, tmp_path):
    """SIGTERM and Ctrl-C in the middle of the second step that is recorded, under every face."""
    how = {"folder": tmp_path, "environment": environment(tmp_path), "timeout": TIMEOUT}
    done = warm.run(frameworks, SCRIPT, tmp_path, "sigterm", "ctrl-c", **how)
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    for face in FACES:
        assert codes[f"{face}-sigterm"] == -signal.SIGTERM, done.stderr
        assert codes[f"{face}-ctrl-c"] == -signal.SIGINT, done.stderr
        for way, cause in (("sigterm", "SIGTERM"), ("ctrl-c", "KeyboardInterrupt")):
            (window,) = (tmp_path / f"{face}-{way}" / "perf" / "latest").glob("train-*")
            assert json.loads((window / "rank0.capture.json").read_text())["partial"] == cause
            assert steps(window / "rank0.steps.csv")[0] == 3


FABRIC = """
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=1)
model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), 0.1))
for batch in fabric.setup_dataloaders(loader):
    fabric.backward(model(batch).sum())
    optimizer.step()
    optimizer.zero_grad()
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, optimizer, loader = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), 0.1), loader)
for batch in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).sum())
        optimizer.step()
        optimizer.zero_grad()
"""
BEFORE = """
import torch
layer, loader = torch.nn.Linear(4, 2), torch.utils.data.DataLoader(torch.randn(40, 4))
"""


@pytest.mark.parametrize(("program", "fetches"), [(FABRIC, 1), (ACCELERATE, 2)], ids=["fabric", "accelerate"])
def test_perfhooks_run_detects_updates_waits_and_parts(launch_framework, tmp_path, program, fetches):
    (tmp_path / "train.py").write_text(BEFORE + program)
    schedule = "skip_first=10 wait=0 warmup=2 active=3 repeat=1"
    done = launch_framework("--schedule", schedule, "train.py")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "perf" / "latest"
    steps_by = json.loads((run / "run.json").read_text())["steps_by"]
    assert (steps_by["what"], round(steps_by["fetches"])) == ("loader", fetches)
    (table,) = run.glob("*/rank0.steps.csv")
    with table.open(encoding="utf-8") as file:
        row = list(csv.DictReader(file))[1]
    assert row["step"] == "13"
    for part in ("data", "forward", "backward", "optimizer"):
        assert float(row[f"{part}_ms"]) > 0, part


@pytest.mark.parametrize("face", [*FACES, "lightning", "mmengine"])
def test_a_framework_that_is_missing_is_named_with_its_command(run_script, face):
    packages = {"fabric": ["lightning", "lightning_fabric"], "lightning": ["lightning", "pytorch_lightning"]}
    names = packages.get(face, [face])
    hide = "; ".join(f"sys.modules[{name!r}] = None" for name in names)
    done = run_script(f"import sys; {hide}; import perfhooks_{face}")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert f"pip install 'perfhooks[{face}]'" in last
