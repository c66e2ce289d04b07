"""Profile a ResNet-18 that mmengine's Runner trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torchvision.models import resnet18

from images import CLASSES, arguments, list_files, loader
from perfhooks_mmengine import ProfilerHook


class Classifier(BaseModel):  # type: ignore[misc]  # mmengine ships no types
    """A ResNet-18, and nothing in it that knows of profiling."""

    def __init__(self) -> None:
        super().__init__()
        self.model = resnet18(num_classes=CLASSES)

    def forward(self, images: torch.Tensor, labels: torch.Tensor, mode: str) -> Any:
        """The loss of one batch, or its scores."""
        scores = self.model(images)
        return {"loss": torch.nn.functional.cross_entropy(scores, labels)} if mode == "loss" else scores


def main() -> None:
    """Train a few steps, show the table of the profiled ones and list the files."""
    args = arguments(__doc__).parse_args()
    hook = ProfilerHook(
        schedule="skip_first=2 wait=2 warmup=1 active=3 repeat=2", with_stack=True, max_trace_mb=None, out=args.out
    )
    runner = Runner(
        model=Classifier(),
        work_dir="work_dirs/resnet18",
        train_dataloader=loader(args),
        train_cfg={"by_epoch": False, "max_iters": args.steps},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.01, "momentum": 0.9}},
        default_hooks={"checkpoint": None},
        custom_hooks=[hook],
    )
    runner.train()

    print(hook.profiler.summary())
    list_files((args.out or Path(runner.log_dir) / "perf") / "latest")


if __name__ == "__main__":
    main()
