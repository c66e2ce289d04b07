"""How much power a device of this machine may take, as NVIDIA's management library says where Python can ask it."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from typing import Any

from perfhooks.run.circumstances import PowerLimit


def limit_of(name: str) -> PowerLimit | None:
    """The limit of a device of this machine, which takes some milliseconds: nothing for the thread of a training.

    Which of several alike a process uses is nowhere said: those that are to be told apart have none.

    Args:
        name: as ``torch.cuda.get_device_name()`` writes it; of a part, as MIG makes them, the whole is asked.

    Returns:
        The limit; None without the package ``nvidia-ml-py``, for the devices of other makers, and where devices of that
        name have different limits.
    """
    whole = name.partition(" MIG ")[0]
    with contextlib.suppress(Exception):  # of the package, of the driver: then nobody knows
        found = {limit for called, limit in _every() if called == whole}
        return found.pop() if len(found) == 1 else None
    return None


def _every() -> list[tuple[str, PowerLimit]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an old package of this name asks for the new one
        nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(place) for place in range(nvml.nvmlDeviceGetCount())]
        return [(_text(nvml.nvmlDeviceGetName(each)), _limit(nvml, each)) for each in handles]
    finally:
        nvml.nvmlShutdown()


def _limit(nvml: Any, handle: object) -> PowerLimit:
    enforced = nvml.nvmlDeviceGetEnforcedPowerLimit(handle)
    return PowerLimit(enforced / 1000, nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
