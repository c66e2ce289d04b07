"""Regular expressions for names of kernels of torch and its libraries, and of copies."""

from __future__ import annotations

import re
from typing import Final

# kernels of cuBLAS and cuDNN: float32 without tensor cores, and kernels with tensor cores
_PLAIN_CORES: Final = r"sgemm|scudnn|simt_s|_f32f32_f32f32_f32|(?:dgrad|wgrad)\w*<float|implicit_convolve"
_TENSOR_CORES: Final = r"tf32|tensorop|wmma|tensor\d|[sh](?:884|1688|16816|161616)|[hsi]mma|bf16|_f16|half|fp16|16f"
FLOAT32_GEMM: Final = rf"^(?!.*(?:{_TENSOR_CORES})).*(?:{_PLAIN_CORES})"
OF_TORCH: Final = r"\bat::native\b"
TF32: Final = r"(?i:tf32)|tensorop_s1688(?!gemm_b?f16)|xf32|_S_MX_"
"""GEMMs of float32 inputs as TF32, on tensor cores or on AMD's matrix cores."""
HALF: Final = r"b?f16|fp16|half|[sh](?:16816|161616)|h(?:884|1688)"
UNALIGNED: Final = rf"^(?!.*(?:simt|d884)).*(?:(?:{HALF}).*align[124]\b|(?:s1688|tf32).*align[12]\b)"
"""GEMMs on tensor cores that load fewer than 16 bytes at once. Kernels for float64 always load fewer bytes and are
excluded.
"""
GEMV: Final = r"(?i)^(?:[^<(]|\(anonymous namespace\))*(?:gemv|mat_?vec)|\bkernel::gemv"
"""Kernel names of GEMVs, not parameter types such as cuBLAS's ``cublasGemvTensorStridedBatched``."""
LAYOUT: Final = r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|^batched_transpose_\d+x\d+"
"""Kernels of cuDNN and MIOpen that convert between channels first and channels last."""
_OWN_NAME: Final = re.compile(r"(?:void )?([^<(]+?)(?:_\d+)*(?=[<(]|$)")
NUMBERED: Final = re.compile(r"^(?=trans_|hc(?:om|cl)_)\w*?(?=(?:_\d+){1,2}$)")
"""Kernel name without the call number that NPUs add, as in ``trans_TransData_12``."""
COPY: Final = re.compile(r"\b([HDAP]to[HDAP])\b(?:.*\((\w+) -> (\w+)\))?")
"""Direction and memory kinds in the name of a copy, for example ``Memcpy HtoD (Pageable -> Device)``."""
LONG_COPY: Final = re.compile(r"Copy([HD])(?:ost|evice)To([HD])(?:ost|evice)")
"""Name of a copy in old ROCm traces: ``CopyHostToDevice``."""
WITHIN_DEVICE: Final = "DtoD"
ACROSS_BUS: Final = ("HtoD", "DtoH")
WITHIN_HOST: Final = "HtoH"
"""Direction of copies within host memory. cuspy, the second recorder of torch, writes CUPTI's number 9 instead of the
direction.
"""
TO_DEVICE: Final = re.compile(r"HtoD|HostToDevice")
PAGEABLE: Final = r"\bHtoD\b.*\(Pageable -> "
UNPINNED: Final = r"\bHtoD\b.*\((?:Pageable|Host) -> "
"""Copies from memory that may be pageable. On ROCm, names of copies do not separate pageable from pinned memory."""


def family(name: str) -> str:
    """Return a kernel name without template arguments, parameters and numbers at the end."""
    match = _OWN_NAME.match(name.replace("(anonymous namespace)::", ""))
    return match[1] if match else name
