"""What reading a trace and making its tables cost: a usual window, a gigabyte, and how the cost grows."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from comparison import Comparison, say
from torch.profiler import ProfilerActivity, profile

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = 9
WINDOW_MB = 55
LARGE_MB = 1000
EVENTS = (10_000, 100_000, 1_000_000, 10_000_000)
BEST_OF = {10_000: 5, 100_000: 5, 1_000_000: 2}

# The interpreter and its libraries are there before the clock starts; one thread, as in the worker.
PROBE = """
import json, re, sys, time
import polars, numpy, numpy.ma
import msgspec
from perfhooks.trace import memory, read
from perfhooks.trace.reading.events import PlainEvent
from perfhooks.trace.window import Tables

class File(msgspec.Struct):
    traceEvents: list[PlainEvent]

# not getrusage, which in a child remembers its parent
kilobytes = lambda: int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
before, began = kilobytes(), time.process_time()
if sys.argv[2] == "json":
    with open(sys.argv[1]) as file:
        events = len(json.load(file)["traceEvents"])
elif sys.argv[2] == "msgspec":
    with open(sys.argv[1], "rb") as file:
        events = len(msgspec.json.decode(file.read(), type=File).traceEvents)
else:
    trace = read(sys.argv[1])
    events = len(trace) + len(trace.instants.time) + 2 * len(trace.flows.time)
if sys.argv[2] in ("operators", "all"):
    Tables(trace).operators()
if sys.argv[2] == "all":
    tables = Tables(trace)
    tables.operators(("shapes", "stack", "module"))
    tables.steps, tables.kernels, tables.collectives, tables.modules, tables.alive_at_peak, tables.checks
    for by in ("host", "device", "bytes"):
        tables.stacks(by)
    memory.thinned(tables.memory)
print(json.dumps([time.process_time() - began, (kilobytes() - before) / 1024, events]))
"""


def measure() -> Iterator[Comparison]:
    """Seconds of one core and megabytes, each from a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record(folder / "steps.json")
        events = json.loads((folder / "steps.json").read_bytes())["traceEvents"]
        yield from sized(events, folder / "window.json", WINDOW_MB, rounds=3)
        yield from sized(events, folder / "large.json", LARGE_MB, rounds=1)
        yield growth(events, folder / "grown.json")


def sized(events: list[dict[str, Any]], file: Path, megabytes: int, *, rounds: int) -> Iterator[Comparison]:
    """The tables of a file of a size; `json.load` only where it fits any machine."""
    say(f"a trace of {megabytes} MB")
    count = write(events, file, megabytes=megabytes)
    names = {"read": "perfhooks: read", "operators": "read, operators.table", "all": "read, all tables"}
    if megabytes == WINDOW_MB:
        names = {"msgspec": "msgspec: decode, no table", "json": "json.load, no table"} | names
    results = [min(probe(file, what) for _ in range(rounds)) for what in names]
    title = f"A trace of {megabytes} MB, {count} events with shapes, stacks and memory"
    labels = list(names.values())
    yield Comparison(title=title, unit="s", rows=tuple(zip(labels, [r[0] for r in results], strict=True)))
    title = "Memory for it, above the interpreter and its libraries"
    yield Comparison(title=title, unit="MB", rows=tuple(zip(labels, [r[1] for r in results], strict=True)))
    file.unlink()


def growth(events: list[dict[str, Any]], file: Path) -> Comparison:
    """What an event costs in traces of any length."""
    rows = []
    for count in EVENTS:
        say(f"{count} events")
        write(events, file, count=count)
        taken, _, read = min(probe(file, "operators") for _ in range(BEST_OF.get(count, 1)))
        rows.append((f"{count} events", taken / read * 1e6))
    return Comparison(title="Reading and the operator table, as traces grow", unit="us/event", rows=tuple(rows))


def probe(file: Path, what: str) -> list[float]:
    """Seconds, megabytes and events of one reading."""
    environment = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, file, what], capture_output=True, text=True, check=True, env=environment
    )
    found: list[float] = json.loads(done.stdout)
    return found


def record(file: Path) -> None:
    """Training steps of a small residual net, with everything recorded."""
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), *(block() for _ in range(12)), torch.nn.Flatten(), torch.nn.LazyLinear(10)
    )
    net(images := torch.randn(2, 3, 12, 12))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    options = {"record_shapes": True, "with_stack": True, "profile_memory": True}
    with profile(activities=[ProfilerActivity.CPU], **options) as prof:
        for _ in range(STEPS):
            net(images).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    prof.export_chrome_trace(str(file))


def block() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU())


def write(events: list[dict[str, Any]], file: Path, *, count: int = 0, megabytes: int = 0) -> int:
    """Write the events again and again, later each time, until they are so many, or fill so much; Kineto's layout."""
    times = [event["ts"] for event in events if event["ph"] == "X" and event["cat"] != "Trace"]
    period = max(times) - min(times) + 1e6
    written = 0
    with file.open("wb") as target:
        target.write(b'{\n  "schemaVersion": 1,\n  "traceEvents": [')
        while written < count or target.tell() < megabytes * 1_000_000:
            size = min(len(events), count - written) if count else len(events)
            shift = written // len(events)
            texts = [later(event, shift * period, shift << 32) for event in events[:size]]
            target.write((b"," if written else b"") + b",".join(texts))
            written += size
        target.write(b'\n  ],\n  "traceName": "benchmark"\n}\n')
    return written


def later(event: dict[str, Any], time: float, number: int) -> bytes:
    """One event, some microseconds later and with another number for its link, as Kineto writes it."""
    moved = event | {"ts": round(event["ts"] + time, 3)} if "ts" in event else event
    if "id" in event:
        moved["id"] = event["id"] + number
    text = msgspec.json.format(msgspec.json.encode(moved), indent=2)
    return b"\n  " + text.replace(b"\n", b"\n  ")
