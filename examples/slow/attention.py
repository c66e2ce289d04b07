"""The attention is written out: two products and a softmax between them."""

import torch


def attention(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the values, weighted by the similarity of queries and keys."""
    return torch.softmax(queries @ keys.mT / queries.shape[-1] ** 0.5, -1) @ values


def main() -> None:
    """Train on random sequences of 256 tokens."""
    projection, heads = torch.nn.Linear(128, 384), 4
    optimizer = torch.optim.SGD(projection.parameters(), lr=0.01)
    for _ in range(300):
        tokens = torch.rand(8, 256, 128)
        queries, keys, values = projection(tokens).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        optimizer.zero_grad()
        attention(queries, keys, values).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
