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

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
"""How many windows each profiler records, in turn; the shortest stall counts."""
FIELDS = {"wait": 1, "warmup": 1, "active": 5, "repeat": 1}
RECORDING: dict[str, Any] = {"activities": [ProfilerActivity.CPU], "record_shapes": True, "with_stack": True}
RECORDERS = {
    "perfhooks: Kineto records the device": ["cpu", "cuda"],
    "perfhooks: torch's new recorder cuspy does": ["cpu", "cuda:cuspy"],
}


def measure() -> list[Comparison]:
    """The stall at the end of five steps of ResNet-50, recorded with shapes and stacks."""
    train = training()
    makers: dict[str, Callable[[Path], Any]] = {
        "torch.profiler: table, stacks, trace.json.gz": functools.partial(theirs, everything),
        "perfhooks: the same and more tables": ours,
        "perfhooks: likewise, background=False": functools.partial(ours, background=False),
        "the floor: stop, one plain trace.json, free": functools.partial(theirs, save_and_free),
    }
    title = "step() at the end of a window: 5 steps of ResNet-50, shapes and stacks"
    return [compared(title, train, makers), *(on_device() if torch.cuda.is_available() else ())]


def on_device(device: str = "cuda") -> list[Comparison]:
    """The same where a device is recorded, by each of torch's recorders."""
    title = f"step() at the end of a window: 5 steps of ResNet-50 on {device}, shapes and stacks"
    makers = {name: functools.partial(ours, activities=activities) for name, activities in RECORDERS.items()}
    return [compared(title, training(device), makers)]


def compared(title: str, train: Callable[[], None], makers: dict[str, Callable[[Path], Any]]) -> Comparison:
    """The shortest stall of each."""
    times: dict[str, list[float]] = {name: [] for name in makers}
    for count in range(ROUNDS):
        say(f"the end of a window, {count + 1} of {ROUNDS}")
        for name, make in makers.items():
            with tempfile.TemporaryDirectory() as folder:
                times[name].append(stall(train, make(Path(folder))))
    return Comparison(title=title, unit="ms", rows=tuple((name, min(each) * 1e3) for name, each in times.items()))


def training(device: str = "cpu") -> Callable[[], None]:
    """A step of ResNet-50 on small images; what the recorder sees does not depend on their size."""
    model = resnet50(num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(2, 3, 32, 32, device=device), torch.zeros(2, dtype=torch.long, device=device)

    def step() -> None:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
        optimizer.zero_grad()

    return step


def stall(train: Callable[[], None], prof: Any) -> float:
    """Seconds of the step() that ends the window."""
    with prof:
        for _ in range(sum(FIELDS.values()) - FIELDS["repeat"]):
            train()
            taken = seconds(prof.step)
    if isinstance(prof, perfhooks.Profiler):
        prof.wait()
    return taken


def theirs(handler: Callable[[Path, Any], None], folder: Path) -> Any:
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


def ours(folder: Path, **settings: Any) -> Any:
    """All that is made by default."""
    schedule = perfhooks.Schedule(**FIELDS)
    return perfhooks.Profiler(schedule=schedule, out=folder, keep_results=False, **{**RECORDING, **settings})
