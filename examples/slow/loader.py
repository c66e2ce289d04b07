"""The training process reads each image itself."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[torch.Tensor]):
    """Random images from a slow disk."""

    def __len__(self) -> int:
        return 8 * 600

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.001)  # the disk
        return torch.full((512,), index / len(self))


def main() -> None:
    """Train for one epoch."""
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Images(), batch_size=8)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
