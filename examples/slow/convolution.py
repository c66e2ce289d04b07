"""Someone switched off oneDNN to find a bug, and forgot to switch it on again."""

import torch


def main() -> None:
    """Train on random images."""
    torch.backends.mkldnn.set_flags(False)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.ReLU(), torch.nn.Flatten()
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(400):
        optimizer.zero_grad()
        model(torch.rand(8, 3, 32, 32)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
