from __future__ import annotations

import contextlib
import datetime as dt
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.cli.actions import output
from perfhooks.core.errors import PerfhooksError
from perfhooks.report.finishing.power import limit_of
from perfhooks.run.circumstances import processor
from perfhooks.trace.limits import peaks
from perfhooks.trace.limits.datasheets import Peaks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BEST_OF: Final = 5
_LONG_S: Final = 0.05
"""Minimum duration of a measured matrix product in s, of which kernel launches and clock changes take less than 1%."""
_SMALLEST, _LARGEST = 256, 16384
"""Range of matrix sizes in rows. GEMMs of most devices reach their peak at a third of the largest."""
_COPIED: Final = {"cpu": 1 << 28, "cuda": 1 << 30}
_TYPES: Final = ("float64", "float32", "tf32", "float16", "bfloat16")
"""Data types for which torch multiplies matrices with a single call."""


def measure() -> Iterator[str]:
    try:
        import torch
    except ImportError as error:
        raise PerfhooksError("torch is needed to measure the peaks of this device") from error
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = _name(torch, device)
    tflops = {}
    for kind in _TYPES:
        speed = _product(torch, device, kind)
        if speed is None:
            continue
        tflops[kind] = speed
        yield f"{kind}: {speed:.4g} TFLOP/s"
    copied = _copy(torch, device)
    yield f"copy: {copied:.4g} GB/s"
    source = f"measured {dt.datetime.now(dt.timezone.utc):%Y-%m-%d}{_capped(torch, device)}"
    path = peaks.file()
    stored = peaks.read(path) | {name: Peaks(tflops=tflops, gb_per_s=copied, source=source)}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    output.write(path, msgspec.json.format(msgspec.json.encode(stored), indent=2) + b"\n")
    yield f"stored for {name} in {path}"


def _name(torch: Any, device: str) -> str:
    if device == "cpu":
        return processor(torch.get_num_threads())
    units = torch.cuda.get_device_properties(0).multi_processor_count
    return peaks.measured_as(torch.cuda.get_device_name(0), units)


def _capped(torch: Any, device: str) -> str:
    limit = None if device == "cpu" else limit_of(torch.cuda.get_device_name(0))
    return "" if limit is None or not limit.is_lowered else f", power limited to {limit}"


def _product(torch: Any, device: str, kind: str) -> float | None:
    is_tf32 = kind == "tf32"
    if is_tf32 and (device == "cpu" or torch.cuda.get_device_capability(0) < (8, 0) or torch.version.hip):
        return None
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = is_tf32
    dtype = getattr(torch, "float32" if is_tf32 else kind)
    try:
        rows, took = _SMALLEST, _multiplied(torch, device, dtype, _SMALLEST, of=1)
        while took < _LONG_S and rows < _LARGEST:
            rows *= 2
            took = _multiplied(torch, device, dtype, rows, of=1)
        return 2 * rows**3 / _multiplied(torch, device, dtype, rows) / 1e12
    except RuntimeError:
        return None
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _multiplied(torch: Any, device: str, dtype: object, rows: int, of: int = _BEST_OF) -> float:
    a = torch.ones(rows, rows, dtype=dtype, device=device)
    b, out = a / 2, torch.empty_like(a)
    return _best(torch, device, lambda: torch.mm(a, b, out=out), of)


def _copy(torch: Any, device: str) -> float:
    source = torch.ones(_COPIED[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * _COPIED[device] / _best(torch, device, lambda: target.copy_(source)) / 1e9


def _best(torch: Any, device: str, act: Callable[[], object], of: int = _BEST_OF) -> float:
    def once() -> float:
        started = time.perf_counter()
        act()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    once()
    return min(once() for _ in range(of))
