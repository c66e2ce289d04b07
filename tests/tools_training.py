"""A training beside other tools: ``python tools_training.py [gevent] [numba] [workers]``."""

import sys

if "gevent" in sys.argv:
    from gevent import monkey, sleep

    monkey.patch_all()

import torch


def double(number):
    return number * 2


if "numba" in sys.argv:
    import numba

    double = numba.njit(double)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, number):
        return torch.full((8,), double(number) / 160)


def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in torch.utils.data.DataLoader(Numbers(), 4, num_workers=2 if "workers" in sys.argv else 0):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        if "gevent" in sys.argv:
            sleep(0)
    print(f"loss {loss.item()!r}")


if __name__ == "__main__":
    main()
