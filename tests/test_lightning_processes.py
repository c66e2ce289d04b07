"""Each package of Lightning alone, in a process of its own."""

from pathlib import Path

import pytest
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
    done = run_script(FIT.format(framework=framework, other=other), timeout=300)
    assert done.returncode == 0, done.stderr
    assert "other Lightning: False" in done.stdout
    rows = read(tmp_path / "perf" / "run" / "train-000001-000002" / "rank0.steps.csv")
    assert [int(row["step"]) for row in rows] == [1, 2]
    assert all(float(row[f"{part}_ms"]) > 0 for row in rows for part in ("data", "forward", "backward", "optimizer"))
