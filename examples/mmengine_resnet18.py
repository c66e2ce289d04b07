"""Profile a torchvision ResNet-18 trained by mmengine's Runner, on random images."""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
import torchvision
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from perfhooks_mmengine import ProfilerHook


class ResNet(BaseModel):  # type: ignore[misc]  # mmengine ships no types
    """What mmengine asks of a model: a forward pass that knows its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.resnet = torchvision.models.resnet18(num_classes=10)

    def forward(self, images: Tensor, labels: Tensor, mode: str) -> Any:
        """Give the losses to train on, or the scores."""
        scores = self.resnet(images)
        return {"loss": functional.cross_entropy(scores, labels)} if mode == "loss" else scores


def main() -> None:
    """Train 16 iterations and show where their time went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work-dir", default=tempfile.mkdtemp(), help="where mmengine puts its logs")
    parser.add_argument("--steps", type=int, default=16, help="iterations to train")
    args = parser.parse_args()

    images = TensorDataset(torch.randn(args.steps * 16, 3, 32, 32), torch.randint(10, (args.steps * 16,)))
    hook = ProfilerHook(schedule="skip_first=2 wait=2 warmup=1 active=3 repeat=2", with_stack=True)
    runner = Runner(
        model=ResNet(),
        work_dir=args.work_dir,
        train_dataloader=DataLoader(images, batch_size=16),
        train_cfg={"by_epoch": True, "max_epochs": 1},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.01}},
        custom_hooks=[hook],
    )
    runner.train()

    print(hook.profiler.summary())
    run = Path(runner.log_dir) / "perf" / "latest"
    for file in sorted(run.resolve().rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            print(file)


if __name__ == "__main__":
    main()
