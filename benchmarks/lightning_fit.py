"""What a step of a Lightning training costs while nothing is recorded."""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from comparison import Comparison, say, seconds
from lightning.pytorch.profilers import PyTorchProfiler
from torch.utils.data import DataLoader

from perfhooks_lightning import ProfilerCallback

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST, LAST = 200, 1200
"""The steps that are timed; the only window is over long before."""
SHORT, LONG = 3_000, 9_000
"""Steps of two fits. Their difference is the cost of a step without the start: both have both windows."""
ROUNDS = 3
CALLS = 1_000_000  # each of ROUNDS times; the best one counts
WINDOW = {"wait": 1, "warmup": 1, "active": 1}


class Tiny(pl.LightningModule):
    """Many small modules, so that what is done for each of them shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(16)])

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:  # noqa: ARG002 -- Lightning's form
        """The loss of one batch."""
        return self.layers(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Idle(Tiny):
    """Steps that do nothing, so that the callbacks' own time shows."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:  # type: ignore[override]
        """Do nothing."""


class Clock(pl.Callback):
    """Times the steps from FIRST to LAST."""

    began = ended = 0.0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Look at the clock twice."""
        if trainer.global_step == FIRST:
            self.began = time.perf_counter()
        elif trainer.global_step == LAST:
            self.ended = time.perf_counter()


def measure() -> list[Comparison]:
    """A whole fit, and our hooks alone."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        schedule = torch.profiler.schedule(**WINDOW)
        fits: dict[str, Callable[[], dict[str, Any]]] = {
            "PyTorchProfiler": lambda: {"profiler": PyTorchProfiler(dirpath=folder, schedule=schedule)},
            "PyTorchProfiler, record_module_names=False": lambda: {
                "profiler": PyTorchProfiler(dirpath=folder, schedule=schedule, record_module_names=False)
            },
            "perfhooks: ProfilerCallback": lambda: {"callbacks": [ours(folder)]},
            "no profiler": dict,
        }
        steps = {name: min(fit(folder, name, **make()) for _ in range(ROUNDS)) for name, make in fits.items()}
        alone = hooks(folder)
        slopes, start_ups = idle_fits(folder)
    added = steps["PyTorchProfiler"] - steps["no profiler"]
    return [
        Comparison(title="One idle step of a Lightning fit, 16 small layers", unit="us", rows=tuple(steps.items())),
        Comparison(
            title="What profiling adds to it",
            unit="us",
            rows=(("PyTorchProfiler, its fit less the one without", added), ("perfhooks: its hooks, alone", alone)),
        ),
        Comparison(
            title=f"One step that does nothing: fits of {LONG} and {SHORT} steps, their difference, CPU time",
            unit="us",
            rows=slopes,
        ),
        Comparison(title="The rest of such a fit, CPU time", unit="ms", rows=start_ups),
    ]


def ours(folder: str) -> ProfilerCallback:
    return ProfilerCallback({**WINDOW, "repeat": 1}, out=folder, on_trace_ready="steps", background=False)


def fit(folder: str, name: str, callbacks: list[pl.Callback] | None = None, **options: Any) -> float:
    """Microseconds of a step."""
    say(f"a fit with {name}")
    clock = Clock()
    trainer = quiet(folder, [clock, *(callbacks or [])], max_steps=LAST, **options)
    trainer.fit(Tiny(), DataLoader(torch.ones(LAST * 2, 8), batch_size=2))
    return (clock.ended - clock.began) / (LAST - FIRST) * 1e6


def idle_fits(folder: str) -> tuple[tuple[tuple[str, float], ...], tuple[tuple[str, float], ...]]:
    """Microseconds of a step, and milliseconds of the rest of a fit, in the time of the thread that trains."""
    callbacks: dict[str, Callable[[], pl.Callback]] = {
        "an empty callback": pl.Callback,
        "perfhooks: no window is due": lambda: ProfilerCallback({**WINDOW, "skip_first": 10**9}, out=folder),
        "perfhooks: both windows": lambda: ProfilerCallback(out=folder),
    }
    spent: dict[tuple[str, int], float] = {}
    for count in range(ROUNDS):
        for name, make in callbacks.items():
            say(f"steps that do nothing, with {name}, {count + 1} of {ROUNDS}")
            for steps in (SHORT, LONG):
                spent[name, steps] = min(idle_fit(folder, make(), steps), spent.get((name, steps), float("inf")))
    slopes = {name: (spent[name, LONG] - spent[name, SHORT]) / (LONG - SHORT) for name in callbacks}
    start_ups = {name: spent[name, SHORT] - SHORT * slope for name, slope in slopes.items()}
    return tuple((name, 1e6 * each) for name, each in slopes.items()), tuple(
        (name, 1e3 * each) for name, each in start_ups.items()
    )


def idle_fit(folder: str, callback: pl.Callback, steps: int) -> float:
    """Seconds that the thread computes in a whole fit."""
    trainer = quiet(folder, [callback], max_epochs=1)
    data = DataLoader(torch.ones(steps, 8), batch_size=1)
    began = time.thread_time()
    trainer.fit(Idle(), data)
    spent = time.thread_time() - began
    for profiler in callback.profilers.values() if isinstance(callback, ProfilerCallback) else ():
        profiler.wait()  # its worker would disturb the next fit
    return spent


def quiet(folder: str, callbacks: list[pl.Callback], **options: Any) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def hooks(folder: str) -> float:
    """Microseconds that our hooks take for a step, called as Lightning calls them."""
    say("our hooks alone")
    callback = ours(folder)
    taken: list[float] = []

    class Caller(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
            if trainer.global_step == LAST:
                best, nothing = (
                    min(seconds(work) for _ in range(ROUNDS))
                    for work in (lambda: call(callback, trainer, pl_module), empty)
                )
                taken.append(best - nothing)

    trainer = quiet(folder, [callback, Caller()], max_steps=LAST)
    trainer.fit(Tiny(), DataLoader(torch.ones(LAST * 2, 8), batch_size=2))
    return taken[0] / CALLS * 1e6


def call(callback: ProfilerCallback, trainer: pl.Trainer, module: pl.LightningModule) -> None:
    for _ in range(CALLS):
        callback.on_train_batch_start(trainer, module, None, 0)
        callback.on_before_backward(trainer, module, None)
        callback.on_after_backward(trainer, module)
        callback.on_train_batch_end(trainer, module, None, None, 0)


def empty() -> None:
    for _ in range(CALLS):
        pass
