"""Profile a ResNet-18 that Lightning trains and validates; the training can be left and taken up again."""

from __future__ import annotations

from pathlib import Path

import lightning as L  # noqa: N812 -- as Lightning's own documentation writes it
import torch
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

from images import CLASSES, arguments, list_files, loader, validation_loader
from perfhooks_lightning import ProfilerCallback


class Classifier(L.LightningModule):
    """A ResNet-18, and nothing in it that knows of profiling."""

    def __init__(self) -> None:
        super().__init__()
        self.model = resnet18(num_classes=CLASSES)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:  # noqa: ARG002 -- Lightning's form
        """The loss of one batch."""
        images, labels = batch
        return cross_entropy(self.model(images), labels)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """Log the loss of one batch."""
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def main() -> None:
    """Train a few steps, show the table of the profiled ones and list the files."""
    parser = arguments(__doc__)
    parser.add_argument("--checkpoint", type=Path, help="go on from this file if it is there, and write it at the end")
    args = parser.parse_args()
    profiler = ProfilerCallback(
        schedule="skip_first=2 wait=2 warmup=1 active=3 repeat=2", with_stack=True, max_trace_mb=None, out=args.out
    )
    trainer = L.Trainer(
        max_steps=args.steps,
        callbacks=[profiler],
        val_check_interval=6,
        check_val_every_n_epoch=None,
        enable_checkpointing=False,
        log_every_n_steps=1,
    )
    resumed = args.checkpoint if args.checkpoint is not None and args.checkpoint.exists() else None
    trainer.fit(Classifier(), loader(args), validation_loader(args), ckpt_path=resumed)
    if args.checkpoint is not None:
        trainer.save_checkpoint(args.checkpoint)

    print(profiler.summary())
    list_files((args.out or Path(str(trainer.log_dir)) / "perf") / "latest")


if __name__ == "__main__":
    main()
