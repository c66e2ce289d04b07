from __future__ import annotations

import contextlib
import importlib
import warnings
from typing import Any

from perfhooks.run.circumstances import PowerLimit


def limit_of(name: str) -> PowerLimit | None:
    """Return the power limit of the device with this name in torch.

    The query takes milliseconds, too long for the training thread.

    A MIG instance has the limit of its GPU. The limit is None without ``nvidia-ml-py``, for other vendors, and for
    devices with unequal limits.
    """
    gpu = name.partition(" MIG ")[0]
    with contextlib.suppress(Exception):
        limits = {limit for device, limit in _list_limits() if device == gpu}
        return limits.pop() if len(limits) == 1 else None
    return None


def _list_limits() -> list[tuple[str, PowerLimit]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an old package of this name warns about its successor
        nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(place) for place in range(nvml.nvmlDeviceGetCount())]
        return [(_text(nvml.nvmlDeviceGetName(handle)), _limit(nvml, handle)) for handle in handles]
    finally:
        nvml.nvmlShutdown()


def _limit(nvml: Any, handle: object) -> PowerLimit:
    enforced = nvml.nvmlDeviceGetEnforcedPowerLimit(handle)
    return PowerLimit(enforced / 1000, nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
