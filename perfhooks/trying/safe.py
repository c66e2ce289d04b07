"""Trying leaves no trace: what it sets is set back, and it takes no more memory than it may."""

from __future__ import annotations

import gc
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch

from perfhooks.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.run.circumstances import Circumstances

SHARE: Final = 0.5
"""Of the memory that is free, for what is tried, unless said otherwise."""
_FLAGS: Final = (
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cudnn, "enabled"),
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.mkldnn, "enabled"),
)


@contextmanager
def restored() -> Iterator[None]:
    """Give back the state of random numbers, flags, threads, and memory that was taken meanwhile."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    threads = torch.get_num_threads()
    flags = [(owner, name, getattr(owner, name)) for owner, name in _FLAGS]
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            for owner, name, value in flags:
                if getattr(owner, name) != value:
                    setattr(owner, name, value)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            gc.collect()
            if devices:
                torch.cuda.empty_cache()


def has_onednn() -> bool:
    """Whether this torch has oneDNN."""
    backend: Any = torch.backends.mkldnn
    return bool(backend.is_available())


def is_onednn_on() -> bool:
    """Whether torch may use it now."""
    backend: Any = torch.backends.mkldnn
    return bool(backend.enabled)


@contextmanager
def onednn(*, on: bool) -> Iterator[None]:
    """Switch oneDNN on or off, and back; torch's own ``flags`` would set how it rounds as well."""
    backend: Any = torch.backends.mkldnn
    before = backend.enabled
    backend.enabled = on
    try:
        yield
    finally:
        backend.enabled = before


@contextmanager
def as_recorded(said: Circumstances) -> Iterator[None]:
    """Have torch use the libraries and threads that the training used, as far as it said."""
    switched: Any = nullcontext()
    if said.onednn is not None and has_onednn():
        switched = onednn(on=said.onednn)
    if said.cudnn is not None:
        torch.backends.cudnn.enabled = said.cudnn
    if said.threads is not None and 0 < said.threads <= (said.cores or said.threads):
        torch.set_num_threads(said.threads)
    with switched:
        yield


def free_bytes(device: torch.device) -> int:
    """The memory that nobody uses; a large number where that cannot be told."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 -- no file that anybody made
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return 8 << 30


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
        sentence = f"is not here: {_first_sentence(error)}."
        if name:
            raise OptionError(f"device {wanted!r} {sentence} Give --device cpu") from error
        raise OptionError(
            f"device {wanted!r}, where this was recorded, {sentence} "
            "--device cpu runs its operators on this processor, which says little of the device"
        ) from error
    return device


def _first_sentence(error: Exception) -> str:
    """What torch says, without the advice about drivers and back ends that follows."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line.partition(". ")[0].rstrip(".")
