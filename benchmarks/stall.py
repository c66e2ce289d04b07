"""How long the training loop stands still when a window ends."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from comparison import Comparison, say, seconds
from torch.profiler import ProfilerActivity, profile
from torchvision.models import resnet50

import perfhooks
from perfhooks.options import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOWS = 3
"""How many windows each profiler records; the shortest stall counts."""
FIELDS = {"wait": 1, "warmup": 1, "active": 5}
RECORDING: dict[str, Any] = {"activities": [ProfilerActivity.CPU], "record_shapes": True, "with_stack": True}


def measure() -> list[Comparison]:
    """The stall at the end of five steps of ResNet-50, recorded with shapes and stacks."""
    train = training()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = (
            ("torch.profiler: table, stacks, trace.json.gz", stall(train, theirs(folder, everything))),
            *((f"perfhooks{options}", stall(train, ours(folder, settings))) for options, settings in OURS.items()),
            ("the floor: stop, one plain trace.json, free", stall(train, theirs(folder, save_and_free))),
        )
    title = "step() at the end of a window: 5 steps of ResNet-50, shapes and stacks"
    return [Comparison(title=title, unit="ms", rows=rows)]


# the option comes with the worker; before that all files are made in the loop
OURS: dict[str, dict[str, Any]] = {": the same and a step table": {}}
if "background" in DEFAULTS:
    OURS[": the same, background=False"] = {"background": False}


def training() -> Callable[[], None]:
    """A step of ResNet-50 on small images; what the recorder sees does not depend on their size."""
    model = resnet50(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(2, 3, 32, 32), torch.zeros(2, dtype=torch.long)

    def step() -> None:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
        optimizer.zero_grad()

    return step


def stall(train: Callable[[], None], prof: Any) -> float:
    """Milliseconds of the step() that ends a window, at best."""
    say(f"the end of a window, {type(prof).__module__}")
    times = []
    cycle = sum(FIELDS.values())
    with prof:
        for step in range(1, WINDOWS * cycle + 1):
            train()
            taken = seconds(prof.step)
            if step % cycle == 0:
                times.append(taken)
    return min(times) * 1e3


def theirs(folder: Path, handler: Callable[[Path, Any], None]) -> Any:
    """torch's own profiler; its stacks are empty without ``verbose``."""
    options = dict(RECORDING)
    if handler is everything:
        options["experimental_config"] = torch._C._profiler._ExperimentalConfig(verbose=True)  # noqa: SLF001 -- no public way
    schedule = torch.profiler.schedule(**FIELDS)
    return profile(schedule=schedule, on_trace_ready=functools.partial(handler, folder), **options)


def everything(folder: Path, prof: Any) -> None:
    """What torch's documentation shows one by one."""
    table = prof.key_averages(group_by_input_shape=False).table(row_limit=-1)
    (folder / "operators.txt").write_text(table, encoding="utf-8")
    prof.export_stacks(str(folder / "stacks.txt"))
    prof.export_chrome_trace(str(folder / "trace.json.gz"))


def save_and_free(folder: Path, prof: Any) -> None:
    """The least that keeps what was recorded."""
    prof.export_chrome_trace(str(folder / "trace.json"))
    vars(prof.profiler).clear()


def ours(folder: Path, settings: dict[str, Any]) -> Any:
    """All that is made by default."""
    schedule = perfhooks.Schedule(**FIELDS)
    return perfhooks.Profiler(schedule=schedule, out=folder, keep_results=False, **RECORDING, **settings)
