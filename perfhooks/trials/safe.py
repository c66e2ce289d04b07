from __future__ import annotations

import gc
import math
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil
import torch

from perfhooks.core.errors import OptionError
from perfhooks.run.reading import said

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from perfhooks.run.circumstances import Circumstances

_NO_MEMORY: Final = re.compile(r"can't allocate memory|not enough memory|out of memory|std::bad_alloc")


class _Threads:
    @property
    def number(self) -> int:
        return torch.get_num_threads()

    @number.setter
    def number(self, number_of_threads: int) -> None:
        torch.set_num_threads(number_of_threads)


class Flag(NamedTuple):
    owner: Any
    name: str

    @property
    def value(self) -> Any:
        return getattr(self.owner, self.name)


CUDNN: Final = Flag(torch.backends.cudnn, "enabled")
SEARCHING: Final = Flag(torch.backends.cudnn, "benchmark")
TF32: Final = (Flag(torch.backends.cuda.matmul, "allow_tf32"), Flag(torch.backends.cudnn, "allow_tf32"))
ONEDNN: Final = Flag(torch.backends.mkldnn, "enabled")
THREADS: Final = Flag(_Threads(), "number")
_FLAGS: Final = (CUDNN, SEARCHING, *TF32, ONEDNN, THREADS, Flag(torch.backends.cudnn, "deterministic"))


@contextmanager
def override_flags(values: Mapping[Flag, Any]) -> Iterator[None]:
    before = {flag: flag.value for flag in values}
    try:
        _set(values)
        yield
    finally:
        _set(before)


def _set(values: Mapping[Flag, Any]) -> None:
    for flag, value in values.items():
        if flag.value != value:
            setattr(*flag, value)


@contextmanager
def preserve_state() -> Iterator[None]:
    """Restore random numbers, flags and threads, and free cached memory."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        try:
            with override_flags({flag: flag.value for flag in _FLAGS}):
                yield
        finally:
            gc.collect()
            if devices:
                torch.cuda.empty_cache()


def has_onednn() -> bool:
    backend: Any = torch.backends.mkldnn
    return bool(backend.is_available())


def recorded_settings(training: Circumstances) -> AbstractContextManager[None]:
    limit = training.cores or training.threads or 0
    threads = training.threads if 0 < (training.threads or 0) <= limit else None
    flags = {ONEDNN: training.onednn if has_onednn() else None, CUDNN: training.cudnn, THREADS: threads}
    return override_flags({flag: value for flag, value in flags.items() if value is not None})


def limit_memory(memory: float, device: torch.device) -> None:
    """Limit this process to ``memory`` GiB in addition to the memory in use, and disable core dumps."""
    own = psutil.Process()
    if hasattr(own, "rlimit"):
        own.rlimit(psutil.RLIMIT_CORE, (0, own.rlimit(psutil.RLIMIT_CORE)[1]))
    if memory == math.inf:
        return
    if device.type == "cuda":  # CUDA reserves a huge address space, so host memory cannot be limited
        share = memory * 2**30 / torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0), device)
    elif hasattr(own, "rlimit"):
        # RLIMIT_AS would include the 64 MiB that glibc reserves for each thread
        # add 160 MiB for libraries loaded later and their caches, and 8 MiB of stack per thread of torch
        limit = own.memory_info().data + memory * 2**30 + (160 << 20) + (8 << 20) * (os.cpu_count() or 1)
        own.rlimit(psutil.RLIMIT_DATA, (int(min(limit, 1 << 62)), own.rlimit(psutil.RLIMIT_DATA)[1]))


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or bool(_NO_MEMORY.search(str(error)))


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def select_device(name: str | None, *, on_device: bool) -> torch.device:
    """Return the user's device, else ``cuda`` or ``cpu``. Raise an OptionError if the device is not available."""
    device_name = name or ("cuda" if on_device else "cpu")
    try:
        device = torch.device(device_name)
    except RuntimeError as error:
        raise OptionError(
            f"device must be a device of torch, for example cpu or cuda:1, got {device_name!r}"
        ) from error
    if device.type == "meta":
        raise OptionError("device 'meta' computes nothing and cannot be timed. Use --device cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        sentence = f"is not available: {said(error).partition('. ')[0].rstrip('.')}."
        if name:
            raise OptionError(f"device {device_name!r} {sentence} Use --device cpu") from error
        raise OptionError(
            f"the recorded device {device_name!r} {sentence} "
            "--device cpu runs the operators on this CPU, with little meaning for the device"
        ) from error
    return device
