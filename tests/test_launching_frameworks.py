"""`perfhooks run` with the frameworks: their own face takes over, and the script has no line of ours."""

from __future__ import annotations

import pytest
from terminal import steps_of_mean
from test_early import FAST
from test_launching import WORDS, rows

from perfhooks.run.capture import Place

pytestmark = pytest.mark.framework

LIGHTNING = """
import lightning as L
from lightning.pytorch.demos.boring_classes import BoringModel

L.Trainer(max_steps=12, limit_val_batches=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
          enable_model_summary=False, accelerator="cpu").fit(BoringModel())
"""

MMENGINE = """
import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner


class Tiny(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, inputs, labels, mode="loss"):
        return {"loss": torch.nn.functional.cross_entropy(self.layer(inputs), labels)}


samples = torch.utils.data.TensorDataset(torch.randn(48, 4), torch.randint(2, (48,)))
Runner(
    Tiny(), "work", train_dataloader=torch.utils.data.DataLoader(samples, batch_size=4),
    train_cfg=dict(by_epoch=True, max_epochs=1), optim_wrapper=dict(optimizer=dict(type="SGD", lr=0.1)),
    log_level="ERROR",
).train()
"""

TRANSFORMERS = """
import torch
from transformers import Trainer, TrainingArguments


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x, labels):
        scores = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}


samples = [{"x": torch.randn(4), "labels": torch.tensor(i % 2)} for i in range(96)]
Trainer(
    Tiny(), TrainingArguments("out", per_device_train_batch_size=8, num_train_epochs=1, report_to=[], use_cpu=True,
                              save_strategy="no", disable_tqdm=True),
    train_dataset=samples,
).train()
"""


@pytest.mark.parametrize(
    ("framework", "script"), [("lightning", LIGHTNING), ("mmengine", MMENGINE), ("transformers", TRANSFORMERS)]
)
def test_integration_of_the_framework_takes_over(launch_framework, tmp_path, framework, script):
    pytest.importorskip(framework)
    (tmp_path / "train.py").write_text(script)
    done = launch_framework(*WORDS, "train.py")
    assert done.returncode == 0, done.stderr
    err = done.stderr
    (window,) = tmp_path.rglob("train-000005-000008")
    assert window.parent.name == "it"
    assert window.parent.parent.name == "perf"
    assert [row["step"] for row in rows(window / "rank0.steps.csv")] == ["5", "6", "7", "8"]
    startup = {row["phase"]: float(row["seconds"]) for row in rows(window.parent / "rank0.startup.csv")}
    # what a warm process has imported already is no part of its start
    assert "python" in startup, "the start ends with the first update"
    told = Place(window).load().circumstances
    called = {"lightning": "Lightning", "mmengine": "mmengine", "transformers": "the Trainer"}
    assert (told.framework, told.is_launched) == (called[framework], True), "advice is given in its words"
    assert (told.loader.num_workers, told.loader.batch_size) == (
        0,
        {"mmengine": 4, "transformers": 8}.get(framework, 1),
    )
    assert '"steps_by": null' in (window.parent / "run.json").read_text(), "the framework says what a step is"
    assert sum(bool(steps_of_mean(5, 8).search(line)) for line in err.splitlines()) == 1, err
    logged = [
        path.read_text()
        for path in tmp_path.rglob("*")
        if path.suffix in (".json", ".log") and "perf" not in path.parts
    ]
    assert not any("perf/" in text for text in (done.stdout, *logged)), "nobody asked for our numbers among its own"


PATIENT = """
from perfhooks.record.launch import early
early._LONGEST_S = 600.0  # a busy machine may take longer for a few steps
"""


@pytest.mark.parametrize(
    ("framework", "script", "recorded"),
    [
        ("lightning", LIGHTNING.replace("max_steps=12", "max_steps=5"), "123"),
        ("mmengine", MMENGINE.replace("48", "16"), "123"),
        ("transformers", TRANSFORMERS.replace("range(96)", "range(32)"), "12"),
    ],
)
def test_short_fit_writes_a_report_into_the_framework_folder(launch_framework, tmp_path, framework, script, recorded):
    """Its first steps are kept until the face has a window, and here it has none; Lightning checks its sanity first."""
    pytest.importorskip(framework)
    (tmp_path / "train.py").write_text(PATIENT + script)
    done = launch_framework(*FAST, "train.py")
    assert done.returncode == 0, done.stderr
    err = done.stderr
    assert "no window" not in err
    assert "nothing was recorded" not in err
    (steps,) = tmp_path.rglob("rank0.steps.csv")
    # a script that computes for long before its first step is recorded from then on, so the first step is complete
    assert [row["step"] for row in rows(steps) if row["step"] != "0"] == [*recorded]
    assert (steps.parents[1] / "rank0.timeline.csv").exists(), "it is the run of the face"
    assert err.splitlines()[-1].endswith(str(steps.parents[1])), err


def test_a_plain_loop_after_a_trainer_has_a_run_of_its_own(launch_framework, tmp_path):
    """From the fortieth update on, whose steps are counted anew; the name that was given is the first one's."""
    pytest.importorskip("lightning")
    (tmp_path / "train.py").write_text(f"""{LIGHTNING}
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
""")
    done = launch_framework(*WORDS, "train.py")
    assert done.returncode == 0, done.stderr
    windows = sorted(tmp_path.rglob("train-000005-000008"))
    assert [window.parent.name for window in windows] == ["it", "it-2"]
    assert [Place(window).load().circumstances.framework for window in windows] == ["Lightning", ""]
    lines = [line for line in done.stderr.splitlines() if line.startswith("perfhooks: ")]
    assert sum(bool(steps_of_mean(5, 8).search(line)) for line in lines) == 2
