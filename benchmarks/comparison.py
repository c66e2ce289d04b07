"""What all benchmarks share: the table they print, and how a short call is timed."""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROUNDS = 5
"""How often a loop is timed; the best one counts, as everything that disturbs makes it slower."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Some numbers for the same work; all are compared with the first."""

    title: str
    unit: str
    rows: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        peer = self.rows[0][1]
        width = max(len(name) for name, _ in self.rows)
        lines = [self.title, f"  {'':{width}}  {self.unit:>8}   times less"]
        for name, value in self.rows:
            less = "" if value in {peer, 0} else f"{digits(peer / value):>10}"
            lines.append(f"  {name:{width}}  {digits(value):>8}   {less}".rstrip())
        return "\n".join(lines)


def digits(value: float) -> str:
    """A number as far as it means something."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def machine() -> str:
    """What the numbers were measured on."""
    import torch

    import perfhooks

    versions = f"Python {platform.python_version()}, torch {torch.__version__}, perfhooks {perfhooks.__version__}"
    return f"{_cpu()}, {os.cpu_count()} cores; {versions}"


def _cpu() -> str:
    """The model of the CPU; Python itself knows only its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def seconds(work: Callable[[], object]) -> float:
    """The time a piece of work takes once."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def per_pass(passes: Callable[[], Iterable[object]], calls: int, each: Callable[[], object] | None = None) -> float:
    """Microseconds that one pass of a loop costs more than one of ``for _ in repeat(None, calls): pass``."""

    def loop() -> None:
        if each is None:
            for _ in passes():
                pass
        else:
            for _ in passes():
                each()

    def empty() -> None:
        for _ in repeat(None, calls):
            pass

    best, nothing = (min(seconds(work) for _ in range(ROUNDS)) for work in (loop, empty))
    return (best - nothing) / calls * 1e6


def say(what: str) -> None:
    """Progress, where nobody takes it for a result."""
    print(f"... {what}", file=sys.stderr, flush=True)
