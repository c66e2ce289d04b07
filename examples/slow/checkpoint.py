"""A checkpoint is saved after every fifth step."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch


def main(folder: Path) -> None:
    """Train on random batches."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(600):
        optimizer.zero_grad()
        model(torch.rand(32, 1024)).square().mean().backward()
        optimizer.step()
        if step % 5 == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "last.pt")


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        main(Path(name))
