"""What the second window, which explains the first one with stacks and shapes, takes of a training."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from unittest import mock

import torch
from comparison import Comparison, say
from torchvision.models import resnet18

import perfhooks
from perfhooks.core import words
from perfhooks.record.loop.limits import explaining
from perfhooks.record.loop.limits.budget import EXPLAINING_S
from perfhooks.run.finished import FinishedRun

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 3
AFTERWARDS = 12
"""Steps after the last window: they say what one usually takes."""
MINUTE_S = 60.0


def measure() -> list[Comparison]:
    """Each training with both windows; the round in which the second took least counts."""
    rows = [(f"the bound: {words.share(EXPLAINING_S / MINUTE_S)} of the first minute", EXPLAINING_S * 1e3)]
    trainings = {
        "small layers": layers(),
        "ResNet-18, small images": images(),
        "transformer": transformer(),
        "Python code": python(),
    }
    for name, step in trainings.items():
        costs = []
        for count in range(ROUNDS):
            say(f"a second window: {name}, {count + 1} of {ROUNDS}")
            with mock.patch.object(explaining, "EXPLAINING_S", MINUTE_S):  # what is left out is measured as well
                costs.append(second_window_s(step))
        cost = min(costs)
        said = f"{words.share(cost / MINUTE_S)} of the first minute"
        rows.append((f"{name}: {said}", cost * 1e3))
    title = "what the second window takes of a training, in time that its thread computes"
    return [Comparison(title=title, unit="ms", rows=tuple(rows))]


def layers() -> Callable[[], None]:
    """Twenty small layers: a step of many short operators."""
    return _training(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20))), torch.randn(16, 64))


def images() -> Callable[[], None]:
    """A network of convolutions of middle size."""
    return _training(resnet18(num_classes=10), torch.randn(8, 3, 64, 64))


def transformer() -> Callable[[], None]:
    """Six layers of attention, 64 tokens."""
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return _training(torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), torch.randn(8, 64, 256))


def _training(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        loss = model(x).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


def python() -> Callable[[], None]:
    """The same, with a batch that 20,000 calls of Python make."""
    train = layers()

    def step() -> None:
        sum(map(_square, range(20_000)))
        train()

    return step


def _square(number: int) -> int:
    return number * number


def second_window_s(step: Callable[[], None]) -> float:
    """Seconds that a training computed longer for its second window: calls counted, warmed up, recorded and ended."""
    spent: list[float] = []
    last_in_window = 0
    with tempfile.TemporaryDirectory() as folder:
        with perfhooks.Profiler(schedule="when settled", out=folder, run="it", keep_results=False) as profiler:
            while not last_in_window or len(spent) - last_in_window < AFTERWARDS:
                began = time.thread_time()
                step()
                profiler.step()
                spent.append(time.thread_time() - began)
                if profiler.in_window:
                    last_in_window = len(spent)
        profiler.wait()
        run = FinishedRun(Path(folder, "it"))
        second = run.explanation("train")
        assert second is not None, "it was left out"
        begin, end = run.windows[-1].capture.end + 1, second.capture.end
    usual = median(spent[end + 1 :] or spent)
    # the time of a step ends with the turn to the next one: the last one here has the end of the window
    return sum(one - usual for one in spent[begin : end + 1])
