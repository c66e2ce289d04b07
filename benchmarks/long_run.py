"""What finishing one more window takes, page included, however many windows the run has had."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import run_folders
from comparison import Comparison

from perfhooks import testing
from perfhooks.report.finishing.finish import finish
from perfhooks.run.capture import Capture, Place
from perfhooks.run.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNTS = (100, 1000, 10_000)
ROUNDS = 15
_EVENTS = list(run_folders.events(0))


def measure() -> Iterator[Comparison]:
    """Milliseconds of one core, the median."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name, "run")
        run.mkdir()
        Manifest(world_size=1).write(run)
        (run / "rank0.timeline.csv").write_text(run_folders.TIMELINE)
        finish(spooled(run, 0))
        rows = tuple((f"in a run of {count:,}", taken(run, count)) for count in COUNTS)
    yield Comparison(title="Finishing one more window", unit="ms", rows=rows)


def taken(run: Path, count: int) -> float:
    """Fill a run up with windows that are like the first, and finish some more."""
    first = place(run, 0)
    names = list(Manifest.read(run).windows)
    names += [copied(first, place(run, number), number) for number in range(len(names), count)]
    msgspec.structs.replace(Manifest.read(run), windows=tuple(names)).write(run)
    times = []
    for number in range(count, count + ROUNDS):
        waiting = spooled(run, number)
        began = time.process_time()
        finish(waiting)
        times.append(1e3 * (time.process_time() - began))
    return statistics.median(times)


def place(run: Path, number: int) -> Place:
    return Place(run / f"train-{20 * number:06d}-{20 * number + 2:06d}")


def spooled(run: Path, number: int) -> Place:
    """A window that was recorded and waits."""
    found, first = place(run, number), 20 * number
    handlers = tuple({"type": name} for name in run_folders.HANDLERS)
    facts = Capture(first=first, last=first + 2, reached=first + 2, state="spooled", token="t", handlers=handlers)
    found.save(replace(facts, time=1e9 + number))
    testing.write_trace(found.saved(facts), _EVENTS, distributedInfo={"rank": 0})
    return found


def copied(source: Place, target: Place, number: int) -> str:
    """A finished window like another."""
    shutil.copytree(source.folder, target.folder)
    target.save(replace(source.load(), first=20 * number, time=1e9 + number))
    return target.folder.name
