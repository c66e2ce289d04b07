from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

TYPES: Final = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8")
"""Data types with peaks. ``tf32`` is float32 on tensor cores; ``float8`` stands for all 8-bit float types."""


@dataclass(frozen=True, kw_only=True)
class Peaks:
    tflops: dict[str, float]
    """10^12 operations per second, for each type."""
    gb_per_s: float
    """Bandwidth of the device memory, reads and writes together."""
    source: str
    bus_gb_per_s: float | None = None
    """Bandwidth to the host in each direction: PCI Express with 16 lanes."""
    units: int | None = None
    """Multiprocessors of a whole device. A partition (for example MIG) has fewer multiprocessors."""


_PCIE: Final = {3: 16, 4: 32, 5: 64}
"""Bandwidth of 16 lanes in each direction in GB/s, for each generation of PCI Express."""

_H100: Final = "NVIDIA H100 Tensor Core GPU datasheet"
_A100: Final = "NVIDIA A100 Tensor Core GPU datasheet"
_V100: Final = "NVIDIA Tesla V100 GPU accelerator datasheet"
_MI300: Final = "AMD Instinct MI300X accelerator data sheet"
_MI200: Final = "AMD Instinct MI200 series data sheet, half of its values: each of the two dies is a device"
_AMPERE: Final = "NVIDIA Ampere GA102 GPU architecture whitepaper, its values with float32 accumulation"
_ADA: Final = "NVIDIA Ada GPU architecture whitepaper, its values with float32 accumulation"


def _tensor_cores(half: float, **tflops: float) -> dict[str, float]:
    return {"float16": half, "bfloat16": half, **tflops}


def _a100(gb_per_s: float) -> Peaks:
    peaks = _tensor_cores(312, tf32=156, float32=19.5, float64=19.5, int8=624)
    return Peaks(tflops=peaks, gb_per_s=gb_per_s, source=_A100, bus_gb_per_s=_PCIE[4], units=108)


def _v100(half: float, single: float, double: float) -> Peaks:
    peaks = {"float16": half, "float32": single, "float64": double}
    return Peaks(tflops=peaks, gb_per_s=900, source=_V100, bus_gb_per_s=_PCIE[3], units=80)


_SXM: Final = _tensor_cores(989.5, tf32=494.5, float32=67, float64=67, float8=1979, int8=1979)
_MI300X: Final = Peaks(
    tflops=_tensor_cores(1307.4, tf32=653.7, float32=163.4, float64=163.4, float8=2614.9, int8=2614.9),
    gb_per_s=5300,
    source=_MI300,
    bus_gb_per_s=_PCIE[5],
    units=304,
)

DATASHEETS: Final[Mapping[str, Peaks]] = {
    "NVIDIA B200": Peaks(
        tflops=_tensor_cores(2250, tf32=1125, float8=4500, int8=4500),
        gb_per_s=8000,
        source="NVIDIA DGX B200 datasheet, an eighth of its values for 8 GPUs",
        bus_gb_per_s=_PCIE[5],
        units=148,
    ),
    "NVIDIA H200": Peaks(
        tflops=_SXM, gb_per_s=4800, source="NVIDIA H200 Tensor Core GPU datasheet", bus_gb_per_s=_PCIE[5], units=132
    ),
    "NVIDIA H100 80GB HBM3": Peaks(tflops=_SXM, gb_per_s=3350, source=_H100, bus_gb_per_s=_PCIE[5], units=132),
    "NVIDIA H100 PCIe": Peaks(
        tflops=_tensor_cores(756.5, tf32=378, float32=51, float64=51, float8=1513, int8=1513),
        gb_per_s=2000,
        source=_H100,
        bus_gb_per_s=_PCIE[5],
        units=114,
    ),
    "NVIDIA H100 NVL": Peaks(
        tflops=_tensor_cores(835.5, tf32=417.5, float32=60, float64=60, float8=1670.5, int8=1670.5),
        gb_per_s=3900,
        source=_H100,
        bus_gb_per_s=_PCIE[5],
        units=132,
    ),
    **dict.fromkeys(("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"), _a100(1555)),
    "NVIDIA A100-SXM4-80GB": _a100(2039),
    "NVIDIA A100 80GB PCIe": _a100(1935),
    **dict.fromkeys(("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"), _v100(125, 15.7, 7.8)),
    **dict.fromkeys(("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"), _v100(112, 14, 7)),
    "NVIDIA L40S": Peaks(
        tflops=_tensor_cores(362, tf32=183, float32=91.6, float8=733, int8=733),
        gb_per_s=864,
        source="NVIDIA L40S GPU datasheet",
        bus_gb_per_s=_PCIE[4],
        units=142,
    ),
    "NVIDIA L4": Peaks(
        tflops=_tensor_cores(121, tf32=60, float32=30.3, float8=242.5, int8=242.5),
        gb_per_s=300,
        source="NVIDIA L4 Tensor Core GPU datasheet, half of its values with sparsity",
        bus_gb_per_s=_PCIE[4],
        units=58,
    ),
    "NVIDIA A10": Peaks(
        tflops=_tensor_cores(125, tf32=62.5, float32=31.2, int8=250),
        gb_per_s=600,
        source="NVIDIA A10 Tensor Core GPU datasheet",
        bus_gb_per_s=_PCIE[4],
        units=72,
    ),
    "Tesla T4": Peaks(
        tflops={"float16": 65, "float32": 8.1, "int8": 130},
        gb_per_s=320,
        source="NVIDIA T4 Tensor Core GPU datasheet",
        bus_gb_per_s=_PCIE[3],
        units=40,
    ),
    "NVIDIA GeForce RTX 3090": Peaks(
        tflops=_tensor_cores(71, tf32=35.6, float32=35.6), gb_per_s=936, source=_AMPERE, bus_gb_per_s=_PCIE[4], units=82
    ),
    "NVIDIA GeForce RTX 4090": Peaks(
        tflops=_tensor_cores(165.2, tf32=82.6, float32=82.6, float8=330.3),
        gb_per_s=1008,
        source=_ADA,
        bus_gb_per_s=_PCIE[4],
        units=128,
    ),
    **dict.fromkeys(("AMD Instinct MI300X", "AMD Instinct MI300X VF"), _MI300X),
    "AMD Instinct MI250X": Peaks(
        tflops=_tensor_cores(191.5, float32=47.9, float64=47.9, int8=191.5),
        gb_per_s=1638,
        source=_MI200,
        bus_gb_per_s=_PCIE[4],
        units=110,
    ),
}
"""Dense peaks, keyed by the exact name of ``torch.cuda.get_device_name()``, as of November 2026. NVIDIA's datasheets
advertise twice as much, for sparse matrices.
"""
