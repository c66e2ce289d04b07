"""Names of modules, variables and tools of each kind of device, for the fixes of findings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.trace.kinds import Kind

if TYPE_CHECKING:
    from perfhooks.trace.model import Trace

_AMD: Final = re.compile("AMD|Radeon|Instinct")
_INTEL: Final = re.compile("Intel")


class Device(NamedTuple):
    """Names and texts for one kind of device, for the fixes of findings. Missing texts are empty."""

    type: str
    module: str
    allocator: str = "PYTORCH_ALLOC_CONF"
    """Variable with the options of torch's allocator."""
    uncached: str = ""
    """Text about the variable that disables the cache of torch's allocator."""
    other_waits: str = ""
    convolutions: str = ""
    """Library of convolutions that ``torch.backends.cudnn`` enables."""
    graph: str = ""
    """Name of a group of launches that the device replays, for example CUDA graph."""
    compiler: str = "torch.compile fuses small kernels if it has a backend for the device; "
    """Text about torch.compile; empty if the device needs another backend."""
    layout: str = ""
    """Text about settings that channels-last convolutions also need."""
    sharing: str = ""
    processes: str = ""
    state: str = ""


def _other_waits(module: str) -> str:
    return f' To find other waits, use {module}.set_sync_debug_mode("warn").'


def _compiler(graph: str) -> str:
    return f"torch.compile fuses small kernels, and in mode reduce-overhead replays them as one {graph}; "


def _uncached(variable: str) -> str:
    return f", or if {variable} disables the cache"


def _processes(command: str) -> str:
    return f"{command}   # processes on each device"


def _state(command: str) -> str:
    return f"{command}   # during the run: the reason for the lower clock"


NVIDIA: Final = Device(
    type="cuda",
    module="torch.cuda",
    allocator="PYTORCH_CUDA_ALLOC_CONF",
    uncached=_uncached("PYTORCH_NO_CUDA_MEMORY_CACHING"),
    other_waits=_other_waits("torch.cuda"),
    convolutions="cuDNN",
    graph="CUDA graph",
    compiler=_compiler("CUDA graph"),
    sharing=", or let them share it with NVIDIA MPS instead of taking turns",
    processes=_processes("nvidia-smi pmon -c 1"),
    state=_state("nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE"),
)
ROCM: Final = Device(
    type="cuda",
    module="torch.cuda",
    allocator="PYTORCH_HIP_ALLOC_CONF",
    uncached=_uncached("PYTORCH_NO_HIP_MEMORY_CACHING"),
    other_waits=_other_waits("torch.cuda"),
    convolutions="MIOpen",
    graph="HIP graph",
    compiler=_compiler("HIP graph"),
    layout=" Also set PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment.",
    processes=_processes("rocm-smi --showpids"),
    state=_state("rocm-smi --showclocks --showpower --showtemp"),
)
"""AMD devices, for which PyTorch also uses the module name ``torch.cuda``."""
ASCEND: Final = Device(
    type="npu",
    module="torch.npu",
    allocator="PYTORCH_NPU_ALLOC_CONF",
    uncached=_uncached("PYTORCH_NO_NPU_MEMORY_CACHING"),
    other_waits=_other_waits("torch.npu"),
    processes=_processes("npu-smi info"),
    state=_state("npu-smi info"),
    compiler="",
)
"""Ascend NPUs, on which the default backend of torch.compile needs triton-ascend, and fails for many backward passes.
"""
XPU: Final = Device(
    type="xpu", module="torch.xpu", processes=_processes("xpu-smi ps"), state=_state("xpu-smi stats -d 0")
)
OTHER: Final = Device(type="", module="torch.accelerator")


def of_trace(trace: Trace) -> Device:
    """Return the texts for the traced device; NVIDIA's if the kind of device is unknown."""
    if trace.is_npu:
        return ASCEND
    properties = trace.metadata.get("deviceProperties")
    devices = properties if isinstance(properties, list) else []
    names = [str(device.get("name")) for device in devices if isinstance(device, dict)]
    if any(category.startswith("xpu") for category in trace.categories) or any(map(_INTEL.search, names)):
        return XPU
    if not trace.has_cuda:
        return OTHER
    return ROCM if any(map(_AMD.search, names)) or len(trace.named(Kind.RUNTIME, prefix="hip")) else NVIDIA
