"""A small training that waits for its data. The tutorials find the reason and measure the fix."""

import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Random images from a slow disk."""

    def __len__(self) -> int:
        return int(16 * args.steps)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.0004)  # the disk
        return torch.rand(256), index % 10


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--fused", action="store_true")
args = parser.parse_args()

hidden = [layer for _ in range(6) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
model = torch.nn.Sequential(*hidden, torch.nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters(), fused=args.fused)
loader = DataLoader(Images(), batch_size=16, num_workers=args.workers)

for images, labels in loader:
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
