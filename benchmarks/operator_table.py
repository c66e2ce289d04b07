"""What the table of operators costs, per event of the capture."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import torch
from comparison import Comparison, say, seconds
from torch.profiler import ProfilerActivity, profile

from perfhooks.trace import read
from perfhooks.trace.tables import operators

EVENTS = 100_000
EVENTS_OF_A_STEP = 155
CAPTURES = 3


def measure() -> list[Comparison]:
    """The same captures, read by torch and by us."""
    return [
        comparison("no shapes, no stacks"),
        comparison("shapes and stacks", record_shapes=True, with_stack=True),
    ]


def comparison(what: str, **options: bool) -> Comparison:
    """One kind of capture, the best of a few for each."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = [compared(Path(folder) / f"{number}.json", **options) for number in range(CAPTURES)]
    theirs, ours = (min(times) for times in zip(*pairs, strict=True))
    rows = (
        ("torch.profiler: key_averages()", theirs),
        ("perfhooks: read the JSON, operators.table", ours),
    )
    return Comparison(title=f"Operator table of about {EVENTS} events, {what}", unit="us/event", rows=rows)


def compared(file: Path, **options: bool) -> tuple[float, float]:
    """Microseconds an event takes torch and us."""
    say(f"operator table {file.stem}")
    with profile(activities=[ProfilerActivity.CPU], **options) as prof:
        run_operators(EVENTS)
    prof.export_chrome_trace(str(file))
    theirs = seconds(prof.key_averages)
    events = len(prof.events())
    del prof
    gc.collect()
    ours = seconds(lambda: operators.table(read(file)))
    return theirs / events * 1e6, ours / events * 1e6


def run_operators(events: int) -> None:
    """Steps of a small network until the recorder must have seen so many events."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    batch = torch.randn(4, 8)
    for _ in range(events // EVENTS_OF_A_STEP):
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
