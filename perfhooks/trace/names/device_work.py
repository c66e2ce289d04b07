"""Work of devices by its name: kernels of torch and its libraries, copies. Regular expressions, to be searched for."""

from __future__ import annotations

import re
from typing import Final

# Kernels of cuBLAS and cuDNN that multiply float32 on plain cores, and words of those that use tensor cores.
_PLAIN_CORES: Final = r"sgemm|scudnn|simt_s|_f32f32_f32f32_f32|(?:dgrad|wgrad)\w*<float|implicit_convolve"
_TENSOR_CORES: Final = r"tf32|tensorop|wmma|tensor\d|[sh](?:884|1688|16816|161616)|[hsi]mma|bf16|_f16|half|fp16|16f"
FLOAT32_GEMM: Final = rf"^(?!.*(?:{_TENSOR_CORES})).*(?:{_PLAIN_CORES})"
"""A product or a convolution of float32 on plain cores."""
OF_TORCH: Final = r"\bat::native\b"
"""torch's own kernels."""
TF32: Final = r"tf32|tensorop_s1688|xf32|_S_MX_"
"""One of float32 on tensor cores, or on AMD's matrix cores, which round it."""
HALF: Final = r"b?f16|fp16|half|[sh](?:16816|161616)|h(?:884|1688)"
"""A GEMM on tensor cores of numbers of two bytes."""
UNALIGNED: Final = rf"^(?!.*(?:simt|d884)).*(?:(?:{HALF}).*align[124]\b|(?:s1688|tf32).*align[12]\b)"
"""A GEMM on tensor cores that loads fewer numbers at once than are 16 bytes; double precision has no other kernels."""
GEMV: Final = r"(?i)gemv|mat_?vec"
"""A product of a matrix and a vector."""
LAYOUT: Final = r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|^batched_transpose_\d+x\d+"
"""Turns images between channels first and channels last, in cuDNN and MIOpen."""
_OWN_NAME: Final = re.compile(r"(?:void )?([^<(]+?)(?:_\d+)*(?=[<(]|$)")
NUMBERED: Final = re.compile(r"^(?=trans_|hc(?:om|cl)_)\w*?(?=(?:_\d+){1,2}$)")
"""Constant part of a name in which an NPU counts calls: ``trans_TransData_12``, ``hcom_allReduce__586_0_1``."""
COPY: Final = re.compile(r"\b([HDAP]to[HDAP])\b(?:.*\((\w+) -> (\w+)\))?")
"""``Memcpy HtoD (Pageable -> Device)``; the kinds are those of CUPTI's and ROCm's activity records."""
WITHIN_DEVICE: Final = "DtoD"
"""A kind of copy that crosses no link."""
BETWEEN_HOSTS: Final = "HtoH"
"""A kind that torch's next recorder writes as CUPTI's number, 9: it has words for the others alone."""
TO_DEVICE: Final = re.compile(r"HtoD|HostToDevice")
PAGEABLE: Final = r"\bHtoD\b.*\(Pageable -> "
UNPINNED: Final = r"\bHtoD\b.*\((?:Pageable|Host) -> "
"""To the device, from memory that is not pinned, or may not be: ROCm tells pinned memory from pageable only by the call
that copies, hipMemcpyWithStream, which waits."""


def family(name: str) -> str:
    """Return what kernels of one template, or with one name and different numbers, have in common."""
    match = _OWN_NAME.match(name.replace("(anonymous namespace)::", ""))
    return match[1] if match else name
