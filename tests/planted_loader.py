"""A dataset whose stages are known: each takes the clock around itself, and says with every sample what it took."""

from __future__ import annotations

import threading
import time
import zlib

import numpy as np
import torch
from torch.utils.data import Dataset

STAGES = ("sleep", "decode", "numbers", "count", "lock")
_BLOB = bytes(np.random.default_rng(0).integers(0, 64, 500_000, dtype=np.uint8))
_NUMBERS = np.linspace(0, 1, 400_000)
_LOCK = threading.Lock()


def sleep() -> None:
    time.sleep(0.012)


def decode() -> None:
    zlib.compress(_BLOB, 1)


def numbers() -> None:
    for _ in range(2):
        np.sort(np.sin(_NUMBERS))


def count() -> None:
    total = 0
    for number in range(350_000):
        total += number % 7


def lock() -> None:
    holder = threading.Timer(0.008, _LOCK.release)
    _LOCK.acquire()
    holder.start()
    with _LOCK:
        pass
    holder.join()


class Planted(Dataset[torch.Tensor]):
    """Samples that are the seconds of their stages, then their number."""

    def __init__(self, length: int = 200) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        took = []
        for stage in (sleep, decode, numbers, count, lock):
            began = time.perf_counter()
            stage()
            took.append(time.perf_counter() - began)
        return torch.tensor([*took, index], dtype=torch.float64)
