"""The model is validated after every fifth step."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def validate(model: torch.nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]]) -> float:
    """Return the mean loss."""
    model.eval()
    with torch.no_grad():
        losses = [model(batch).square().mean() for (batch,) in loader]
    model.train()
    return float(torch.stack(losses).mean())


def main() -> None:
    """Train for one epoch."""
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    training = DataLoader(TensorDataset(torch.rand(64 * 500, 512)), batch_size=64)
    validation = DataLoader(TensorDataset(torch.rand(640, 512)), batch_size=64)
    for step, (batch,) in enumerate(training):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if step % 5 == 0:
            validate(model, validation)


if __name__ == "__main__":
    main()
