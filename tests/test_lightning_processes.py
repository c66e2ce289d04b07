"""What needs processes of its own: either Lightning, none at all, and two ranks."""

import json
import os
from pathlib import Path

import pytest
import warm
from lightning_training import read

pytestmark = pytest.mark.framework

HERE = Path(__file__).parent


FIT = """\
import importlib, sys
import torch
pl = importlib.import_module("{framework}")
from perfhooks_lightning import ProfilerCallback

class Tiny(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

callback = ProfilerCallback("wait=1 warmup=0 active=2 repeat=1", out="perf", run="run", on_trace_ready="steps")
trainer = pl.Trainer(
    max_epochs=1, accelerator="cpu", callbacks=[callback], logger=False, enable_checkpointing=False, profiler="simple"
)
assert isinstance(callback, pl.Callback)
trainer.fit(Tiny(), torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=2))
print(callback.summary())
print("other Lightning:", "{other}" in sys.modules)
"""


@pytest.mark.parametrize(
    ("framework", "other"), [("lightning.pytorch", "pytorch_lightning"), ("pytorch_lightning", "lightning.pytorch")]
)
def test_callback_works_with_each_lightning_alone(framework, other, run_script, tmp_path):
    done = run_script(FIT.format(framework=framework, other=other))
    assert done.returncode == 0, done.stderr
    assert "other Lightning: False" in done.stdout
    rows = read(tmp_path / "perf" / "run" / "train-000001-000002" / "rank0.steps.csv")
    assert [int(row["step"]) for row in rows] == [1, 2]
    assert all(float(row[f"{part}_ms"]) > 0 for row in rows for part in ("data", "forward", "backward", "optimizer"))


def test_missing_lightning_explains_the_installation(run_script):
    code = "import sys\nsys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\nimport perfhooks_lightning"
    done = run_script(code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: perfhooks_lightning needs Lightning: pip install 'perfhooks[lightning]'"
    )


TWO_RANKS = """\
import lightning.pytorch as pl
from lightning_training import ProfilerCallback, QUIET, Tiny, batches

WINDOW = "wait=1 warmup=0 active=2 repeat=1"
for folder, options in {"all": {}, "one": {"ranks": [0]}}.items():
    callback = ProfilerCallback(
        {"train": WINDOW, "validate": WINDOW}, on_trace_ready=["steps", "trace"], log_results=False, **options
    )
    trainer = pl.Trainer(
        **QUIET | {"devices": 2}, strategy="ddp", max_epochs=1, callbacks=[callback], default_root_dir=folder,
        logger=False, enable_checkpointing=False,
    )
    trainer.fit(Tiny(), batches(8), batches(8))
    print(trainer.global_rank, callback.profilers["train"].step_num, callback.profilers["validate"].step_num)
"""


def test_two_ranks_share_one_folder_and_can_be_selected(frameworks, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"import sys; sys.path.append({str(HERE)!r})\n{TWO_RANKS}")
    done = warm.ranks(frameworks, script, folder=tmp_path, environment=dict(os.environ), timeout=180)
    assert [each.returncode for each in done] == [0, 0], [each.stderr[-4000:] for each in done]
    windows = ("train-000001-000002", "validate-000001-000002")
    for folder, ranks in {"all": {0, 1}, "one": {0}}.items():
        (manifest,) = {path.resolve() for path in (tmp_path / folder).glob("perf/*/run.json")}
        assert json.loads(manifest.read_text(encoding="utf-8"))["world_size"] == 2
        for window in windows:
            found = {path.name for path in (manifest.parent / window).iterdir()}
            for name in ("steps.csv", "pt.trace.json.gz", "capture.json"):
                assert {file for file in found if file.endswith(name)} == {f"rank{rank}.{name}" for rank in ranks}
            for rank in ranks:
                rows = read(manifest.parent / window / f"rank{rank}.steps.csv")
                assert [(int(row["rank"]), int(row["step"])) for row in rows] == [(rank, 1), (rank, 2)]
