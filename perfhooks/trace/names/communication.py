from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.core.errors import OptionError
from perfhooks.trace.kinds import Kind
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Trace
    from perfhooks.trace.nesting.intervals import Flags


class Library(NamedTuple):
    name: str
    pattern: str
    """Case-insensitive regular expression for kernel names."""
    source: str
    operation: str | None = None
    """Collective operation of all matching kernels, if kernel names do not contain the operation."""


LIBRARIES: Final = (
    Library("nccl", r"(?<![a-z])nccl", "https://github.com/NVIDIA/nccl: src/device/generate.py, ncclDevKernel_*"),
    Library("rccl", r"(?<![a-z])rccl", "https://github.com/ROCm/rccl"),
    Library(
        "hccl",
        r"(?<![a-z])(?:hccl|hcom_)|(?:allreduce|allgather|reducescatter|alltoall|broadcast)\w*aicpukernel",
        "https://gitcode.com/Ascend/pytorch: hcom_allReduce__*, allreduceAicpuKernel in torch_npu/profiler",
    ),
    Library("xccl", r"(?<![a-z])xccl", "https://github.com/intel/torch-xpu-ops: src/xccl"),
    Library("oneccl", r"(?<![a-z])(?:oneccl|ccl::)", "https://github.com/uxlfoundation/oneCCL: src/coll"),
    Library("cncl", r"(?<![a-z])cncl", "https://github.com/Cambricon/torch_mlu"),
    Library("mccl", r"(?<![a-z])mccl", "https://github.com/MooreThreads/torch_musa"),
    Library("eccl", r"(?<![a-z])eccl", "https://github.com/DeepLink-org/deeplink.framework: dicp, dipu"),
    Library("msccl", r"(?<![a-z])msccl", "https://github.com/microsoft/mscclpp, https://github.com/Azure/msccl"),
    Library(
        "deep_ep",
        r"^[^<(]*(?<!\w)(?:(?:deep_)?ep::(?!.*layout)|hybrid_ep::\w*(?:dispatch|combine|sync))|^_ZN(?:\d+\w+?)?7deep_ep(?!6layout)",
        "https://github.com/deepseek-ai/DeepEP: csrc/kernels; its traces, which name it ``dpsk::ep``, in "
        "https://github.com/deepseek-ai/profile-data",
        "all_to_all",
    ),
    Library(
        "moe_all_to_all",
        r"moe(?:A2A(?:Dispatch|Combine)|AllToAll)Kernel",
        "https://github.com/NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/communicationKernels/moeAlltoAllKernels.cu, "
        "fusedMoeCommKernels.cu; the same in https://github.com/flashinfer-ai/flashinfer",
        "all_to_all",
    ),
    Library(
        "mori",
        r"\bEp(?:Dispatch|Combine)(?:Intra|Inter)Node",
        "https://github.com/ROCm/mori: src/ops/dispatch_combine",
        "all_to_all",
    ),
    Library(
        "custom_all_reduce",
        r"cross_device_reduce_",
        "https://github.com/vllm-project/vllm: csrc/custom_all_reduce.cuh; the same in sgl-project/sglang: "
        "sgl-kernel/csrc/allreduce, and in ROCm/aiter: csrc/include/custom_all_reduce.cuh",
        "all_reduce",
    ),
    Library(
        "quickreduce",
        r"quickreduce::|allreduce_prototype_(?:one|two)shot",
        "https://github.com/vllm-project/vllm: csrc/quickreduce; https://github.com/mk1-project/quickreduce",
        "all_reduce",
    ),
    Library(
        "allreduce_fusion",
        r"allreduce_fusion",
        "https://github.com/NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/communicationKernels; "
        "https://github.com/flashinfer-ai/flashinfer: include/flashinfer/comm/trtllm_allreduce_fusion.cuh",
        "all_reduce",
    ),
    Library(
        "symmetric_memory",
        r"multimem_|(?:one|two)_shot_all_reduce",
        "https://github.com/pytorch/pytorch: torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu",
    ),
    Library(
        "one_two_shot",
        r"(?:one|two)shotall_?reduce",
        "https://github.com/NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/customAllReduceKernels.cu, mnnvl_allreduce; "
        "https://github.com/kvcache-ai/Mooncake",
        "all_reduce",
    ),
    Library("nvshmem", r"(?<![a-z])nvshmem", "https://github.com/NVIDIA/nvshmem: src/device, nvshmemi_*"),
    Library(
        "userbuffers",
        r"userbuffers_",
        "https://github.com/NVIDIA/TransformerEngine: transformer_engine/common/comm_gemm_overlap/userbuffers",
    ),
)

RECORD: Final = "record_param_comms"
"""Operator in which torch's own backends record the arguments of a collective."""
_BACKENDS: Final = "nccl|rccl|hccl|xccl|cncl|mccl|eccl|oneccl|msccl|gloo|mpi|ucc"
LABEL: Final = re.compile(rf"({_BACKENDS}):(\w+)$")
"""Range that torch's backends write around a collective. The recorded inputs of the range are the tensors of the
collective.
"""
ON_HOST: Final = ("gloo:", "mpi:", "ucc:")
"""Prefixes of ranges that run the collective on the host."""
_CALLING: Final = rf"{RECORD}$|(?:{_BACKENDS}):|c10d::"
OPERATORS: Final = rf"^(?:{_CALLING}|_?c10d_functional|symm_mem::)"
ON_THREAD: Final = re.compile(rf"^(?:{_CALLING}|_c10d_functional::wait)")
"""Operators that block their thread for a collective. Functional collectives block only in ``wait``."""


@functools.cache
def _searches() -> list[tuple[Library, re.Pattern[str]]]:
    return [(library, re.compile(library.pattern, re.IGNORECASE)) for library in LIBRARIES]


@functools.lru_cache(maxsize=4096)
def library(kernel: str) -> Library | None:
    return next((candidate for candidate, pattern in _searches() if pattern.search(kernel)), None)


def texts(communication: str | None) -> list[str]:
    """Split the option ``communication`` into parts of kernel names; raises OptionError for an empty part.

    Regular expressions are not supported, because the option may come from the run folder of an untrusted source.
    """
    if communication is None:
        return []
    parts = [part.strip() for part in communication.split("|")] if isinstance(communication, str) else []
    if not all(parts) or not parts:
        raise OptionError(f"communication must be parts of kernel names, as 'mine|other', got {communication!r}")
    return parts


@cached_per_trace
def named(trace: Trace) -> Flags:
    user_texts = texts(trace.communication)
    communicates = np.zeros(len(trace.names) + 1, np.bool_)
    for number in trace.names_of(Kind.KERNEL):
        name = trace.names[number]
        communicates[number] = library(name) is not None or any(text in name for text in user_texts)
    return communicates
