"""Adam updates a hundred small parameters one by one."""

import torch


def main() -> None:
    """Train on random batches."""
    model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(50)))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(600):
        optimizer.zero_grad()
        model(torch.rand(32, 128)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
