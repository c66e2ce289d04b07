"""What is set in torch and set back, where calls may run, and what memory they may take there."""

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

SHARE: Final = 0.5
"""Of the memory that is free, for what is tried, unless said otherwise."""
GIB: Final = 1 << 30
_OWN: Final = 160 << 20
"""Bytes for what is no tensor: Python, libraries that are loaded meanwhile, and what they keep."""
_STACK: Final = 8 << 20
"""Bytes that a thread of torch reserves; hardly any of it is used."""
_NO_MEMORY: Final = re.compile(r"can't allocate memory|not enough memory|out of memory|std::bad_alloc")


class _Threads:
    """How many threads torch uses, as an attribute like torch's flags."""

    @property
    def number(self) -> int:
        return torch.get_num_threads()

    @number.setter
    def number(self, wanted: int) -> None:
        torch.set_num_threads(wanted)


class Flag(NamedTuple):
    """Something that is set in torch for the whole process."""

    owner: Any
    name: str

    @property
    def value(self) -> Any:
        """What it is now."""
        return getattr(self.owner, self.name)


CUDNN: Final = Flag(torch.backends.cudnn, "enabled")
SEARCHING: Final = Flag(torch.backends.cudnn, "benchmark")
TF32: Final = (Flag(torch.backends.cuda.matmul, "allow_tf32"), Flag(torch.backends.cudnn, "allow_tf32"))
ONEDNN: Final = Flag(torch.backends.mkldnn, "enabled")
THREADS: Final = Flag(_Threads(), "number")
_FLAGS: Final = (CUDNN, SEARCHING, *TF32, ONEDNN, THREADS, Flag(torch.backends.cudnn, "deterministic"))
"""All that may be set while something is tried."""


@contextmanager
def switched(wanted: Mapping[Flag, Any]) -> Iterator[None]:
    """Set some flags, and set them back."""
    before = {flag: flag.value for flag in wanted}
    try:
        _set(wanted)
        yield
    finally:
        _set(before)


def _set(wanted: Mapping[Flag, Any]) -> None:
    for flag, value in wanted.items():
        if flag.value != value:
            setattr(*flag, value)


@contextmanager
def restored() -> Iterator[None]:
    """Give back the state of random numbers, flags, threads, and memory that was taken meanwhile."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        try:
            with switched({flag: flag.value for flag in _FLAGS}):
                yield
        finally:
            gc.collect()
            if devices:
                torch.cuda.empty_cache()


def has_onednn() -> bool:
    """Whether this torch has oneDNN."""
    backend: Any = torch.backends.mkldnn
    return bool(backend.is_available())


def as_recorded(told: Circumstances) -> AbstractContextManager[None]:
    """Have torch use the libraries and threads that the training used, as far as it told."""
    threads = told.threads if 0 < (told.threads or 0) <= (told.cores or told.threads or 0) else None
    wanted = {ONEDNN: told.onednn if has_onednn() else None, CUDNN: told.cudnn, THREADS: threads}
    return switched({flag: value for flag, value in wanted.items() if value is not None})


def bind(memory: float, device: torch.device) -> None:
    """Have this process, which may be ended, take no more memory than it may, and leave none on the disk if it dies.

    Args:
        memory: GiB beyond what it has now.
        device: Whose memory is meant.
    """
    own = psutil.Process()
    if hasattr(own, "rlimit"):  # on Linux
        own.rlimit(psutil.RLIMIT_CORE, (0, own.rlimit(psutil.RLIMIT_CORE)[1]))
    if memory == math.inf:
        return
    if device.type == "cuda":  # it reserves addresses without end, so that the host's cannot be bounded as well
        share = memory * GIB / torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0), device)
    elif hasattr(own, "rlimit"):
        # the whole address space would count what glibc reserves for each thread, 64 MiB that nobody uses
        limit = own.memory_info().data + memory * GIB + _OWN + _STACK * (os.cpu_count() or 1)
        own.rlimit(psutil.RLIMIT_DATA, (int(min(limit, 1 << 62)), own.rlimit(psutil.RLIMIT_DATA)[1]))


def is_of_memory(error: Exception) -> bool:
    """Whether an error says that there is no more memory."""
    return isinstance(error, MemoryError) or bool(_NO_MEMORY.search(str(error)))


def free_bytes(device: torch.device) -> int:
    """The memory that nobody uses."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def device_of(name: str | None, *, on_device: bool) -> torch.device:
    """Where to run calls that were recorded on a device, or on the host.

    Args:
        name: What the user said.
        on_device: Whether a device did the work when it was recorded.

    Raises:
        OptionError: That device is not here.
    """
    wanted = name or ("cuda" if on_device else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise OptionError(f"device must be one that torch knows, as cpu, cuda or cuda:1; got {wanted!r}") from error
    if device.type == "meta":
        raise OptionError("device 'meta' computes nothing, so nothing can be timed on it. Give --device cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        # without the advice about drivers and back ends that follows
        sentence = f"is not here: {said(error).partition('. ')[0].rstrip('.')}."
        if name:
            raise OptionError(f"device {wanted!r} {sentence} Give --device cpu") from error
        raise OptionError(
            f"device {wanted!r}, where this was recorded, {sentence} "
            "--device cpu runs its operators on this processor, which says little of the device"
        ) from error
    return device
