"""The same training from a configuration file: ``python lightning_cli.py fit --config lightning_resnet18.yaml``."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

import lightning as L  # noqa: N812 -- as Lightning's own documentation writes it
from lightning.pytorch.cli import LightningCLI

from images import loader, validation_loader
from lightning_resnet18 import Classifier

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch.utils.data import DataLoader


class Images(L.LightningDataModule):
    """Noise, or CIFAR-10 from a local folder."""

    def __init__(self, steps: int = 16, batch_size: int = 16, data: Path | None = None) -> None:
        super().__init__()
        self.args = Namespace(steps=steps, batch_size=batch_size, data=data)

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, int]]:
        """As many batches as there are steps."""
        return loader(self.args)

    def val_dataloader(self) -> DataLoader[tuple[torch.Tensor, int]]:
        """A few batches."""
        return validation_loader(self.args)


if __name__ == "__main__":
    LightningCLI(Classifier, Images)
