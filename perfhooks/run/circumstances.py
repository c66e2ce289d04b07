from __future__ import annotations

import contextlib
import functools
import itertools
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perfhooks.core import words
from perfhooks.run.loader.workers import LoaderWorker  # noqa: TC001 -- msgspec reads the annotation of a dataclass, too

BUSY: Final = 0.05
"""Minimum run-queue wait to report, as a fraction of the time. The wait is below 1% on an idle host, and below 4% with
one busy program on two CPUs.
"""


_CGROUPS: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class Loader:
    num_workers: int | None = None
    batch_size: int | None = None
    """Batch size; None with a custom batch sampler."""
    pin_memory: bool | None = None
    """Whether batches are copied to pinned memory; False without a device."""
    persistent_workers: bool | None = None
    prefetch_factor: int | None = None
    batch_sampler: str = ""
    """Class of the batch sampler; empty if it is torch's."""
    line: str = ""
    """Line that iterates over the loader: ``train (train.py:20)``."""

    @classmethod
    def of(cls, iterator: Any) -> Loader:
        """Read the settings of the loader from its iterator."""
        sampler = getattr(iterator, "_index_sampler", None)
        own = type(sampler).__module__.startswith("torch.")
        return cls(
            num_workers=_if_is(int, getattr(iterator, "_num_workers", None)),
            batch_size=_if_is(int, getattr(sampler, "batch_size", None)),
            pin_memory=_if_is(bool, getattr(iterator, "_pin_memory", None)),
            persistent_workers=_if_is(bool, getattr(iterator, "_persistent_workers", None)),
            prefetch_factor=_if_is(int, getattr(iterator, "_prefetch_factor", None)),
            batch_sampler="" if sampler is None or own else type(sampler).__name__,
            line=getattr(getattr(iterator, "perfhooks_pass", None), "line", ""),
        )


@dataclass(frozen=True)
class PowerLimit:
    watts: float
    default_watts: float

    @property
    def is_lowered(self) -> bool:
        return self.watts < self.default_watts

    def __str__(self) -> str:
        """Return for example ``500 W, 700 W by default``."""
        return f"{self.watts:g} W, {self.default_watts:g} W by default"


def _if_is(kind: type, value: Any) -> Any:
    return value if isinstance(value, kind) else None


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    cores: int | None = None
    ranks: int = 1
    """Number of processes of the job on these CPUs."""
    threads: int | None = None
    onednn: bool | None = None
    cudnn: bool | None = None
    memory_bytes: int | None = None
    """Free memory in bytes, within the limit of the container."""
    queued: float | None = None
    """Run-queue wait of the stepping thread since the last window, as a fraction of its time."""
    loader: Loader | None = None
    workers: tuple[LoaderWorker, ...] = ()
    """Counts and stack samples of each loader worker since the last window."""
    unseen_workers: int = 0
    framework: str = ""
    """Name of the framework for messages: ``the Trainer``; empty for a plain loop."""
    power: PowerLimit | None = None
    """Power limit at the time when the window was finished."""
    is_launched: bool = False
    """Whether ``perfhooks run`` began the recording."""

    @classmethod
    def current(cls, **facts: Any) -> Circumstances:
        """Return the resources of this process, without an import of torch."""
        torch: Any = sys.modules.get("torch")
        settings: dict[str, Any] = {}
        if torch is not None:
            with contextlib.suppress(Exception):  # torch may be built without oneDNN or cuDNN
                settings["threads"] = torch.get_num_threads()
                for name, backend in (("onednn", torch.backends.mkldnn), ("cudnn", torch.backends.cudnn)):
                    settings[name] = bool(backend.is_available() and backend.enabled)
        return cls(cores=cores(), ranks=_ranks(), memory_bytes=_free_memory(), **settings, **facts)

    @property
    def is_busy(self) -> bool:
        """Whether the training waited for CPUs, so its times are too high."""
        return self.queued is not None and self.queued >= BUSY

    @property
    def processors(self) -> float | None:
        """Number of CPUs per rank."""
        return None if self.cores is None else self.cores / self.ranks


def processor(threads: int) -> str:
    """Return the CPU model and torch's number of threads as text, the key of the measured peak rates."""
    return f"{cpu_model() or platform.machine() or 'processor'}, {words.count(threads, 'thread')}"


@functools.cache
def cpu_model() -> str:
    """Return the name of the CPU on Linux; empty elsewhere, and on CPUs without a name."""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as listed:
        for line in itertools.islice(listed, 30):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


def cores() -> int | None:
    """Return the number of CPUs within affinity and container limits."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _quota()
    return cores if cores is None or quota is None else max(min(cores, int(quota)), 1)


@functools.cache
def _quota() -> float | None:
    limits = []
    for group in _groups():
        with contextlib.suppress(OSError, ValueError):
            limits.append(_ratio((group / "cpu.max").read_text(encoding="utf-8")))
    with contextlib.suppress(OSError, ValueError):
        first = _CGROUPS / "cpu"
        limits.append(
            _ratio(" ".join((first / f"cpu.cfs_{limit}_us").read_text("utf-8") for limit in ("quota", "period")))
        )
    return min(limits, default=None)


def _groups() -> list[Path]:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own = _CGROUPS / next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
        return [group for group in (own, *own.parents) if group == _CGROUPS or _CGROUPS in group.parents]
    return []


def _free_memory() -> int | None:
    """Return the bytes that this process may still allocate.

    Source: ``MemAvailable`` of ``/proc/meminfo``; ``memory.max`` minus ``memory.current`` of each control group.
    ``inactive_file`` counts as free.
    """
    free = []
    with contextlib.suppress(OSError, KeyError, ValueError):
        free.append(1024 * _listed(Path("/proc/meminfo"), "MemAvailable:"))
    for group in _groups():
        with contextlib.suppress(OSError, KeyError, ValueError):
            most, now = (int((group / f"memory.{name}").read_text(encoding="utf-8")) for name in ("max", "current"))
            free.append(max(most - now + _listed(group / "memory.stat", "inactive_file"), 0))
    return min(free, default=None)


def _listed(file: Path, name: str) -> int:
    rows = (line.split() for line in file.read_text(encoding="utf-8").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}[name]


def _ratio(text: str) -> float:
    quota, period = map(float, text.split())
    if quota <= 0 or period <= 0:
        raise ValueError(text)
    return quota / period


def _ranks() -> int:
    local_ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(int(local_ranks), 1) if local_ranks.isdigit() else 1
