"""What the examples share: their command line, and images: CIFAR-10 where it lies already, else random."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

CLASSES = 10


class SyntheticImages(Dataset[tuple[torch.Tensor, int]]):
    """Noise in the form of CIFAR-10: 3 x 32 x 32 floats and a class."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index >= self.size:
            raise IndexError(index)
        return torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(index)), index % CLASSES


def count(text: str) -> int:
    """A number of things on the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer >= 1, got {text!r}")
    return int(text)


def folder(text: str) -> Path:
    """A folder that is there."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"no such folder: {text}")
    return Path(text)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The command line of an example."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=count, default=16, help="training steps (default: %(default)s)")
    parser.add_argument("--batch-size", type=count, default=16, help="images in a batch (default: %(default)s)")
    parser.add_argument(
        "--data", type=folder, help="a folder with CIFAR-10 as torchvision stores it; default: ./data if it is there"
    )
    parser.add_argument("--out", type=Path, help="the folder that holds runs (default: perf, in the framework's logs)")
    return parser


def training_images(args: argparse.Namespace, size: int) -> Dataset[tuple[torch.Tensor, int]]:
    """CIFAR-10 from ``--data`` or from ``./data``, else so many random images, and a line that says so."""
    where = args.data or Path("data")
    if args.data is not None or (where / "cifar-10-batches-py").is_dir():
        from torchvision import datasets, transforms

        pictures: Dataset[tuple[torch.Tensor, int]] = datasets.CIFAR10(
            where, train=True, transform=transforms.ToTensor()
        )
        return pictures
    print("data: random images; for CIFAR-10 give --data FOLDER, or have it in ./data")
    return SyntheticImages(size)


def loader(args: argparse.Namespace) -> DataLoader[tuple[torch.Tensor, int]]:
    """The training images; random ones are as many as ``--steps`` needs."""
    images = training_images(args, args.steps * args.batch_size)
    return DataLoader(images, batch_size=args.batch_size, shuffle=True, drop_last=True)


def validation_loader(args: argparse.Namespace) -> DataLoader[tuple[torch.Tensor, int]]:
    """A few batches of noise to validate on."""
    return DataLoader(SyntheticImages(4 * args.batch_size), batch_size=args.batch_size)


def device() -> torch.device:
    """The accelerator, if there is one."""
    if not hasattr(torch, "accelerator"):  # new in torch 2.6
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def list_files(folder: Path) -> None:
    """Print what a run left."""
    print(f"\nfiles in {folder}:")
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            print(f"  {path.relative_to(folder)}  ({path.stat().st_size / 1000:.1f} kB)")
