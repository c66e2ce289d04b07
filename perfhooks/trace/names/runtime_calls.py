"""Regular expressions for names of runtime and driver calls, of CUDA, ROCm and others."""

from __future__ import annotations

import re
from typing import Final

RUNTIME: Final = r"(?:cuda|hip|cu|hsa_|ze|musa|mu|cnrt|acl|rt)[A-Z_]\w*$"
"""Any call by its full name: ``cudaLaunchKernel``, ``hsa_amd_memory_async_copy``."""
LAUNCH: Final = re.compile(r"^(?!(?:AscendCL|Hccl|Runtime)@).*launch(?!hostfunc)", re.IGNORECASE)
"""Launch of a kernel or a graph, but not of a host function. CANN also reports calls around each launch, which do not
count."""
GRAPH: Final = re.compile(r"GraphLaunch", re.IGNORECASE)
"""One launch for all nodes of a graph."""
CAPTURE: Final = re.compile(r"Stream(Begin|End)Capture", re.IGNORECASE)
"""Start or end of a graph capture: ``cudaStreamBeginCapture_v10000``, ``cuStreamBeginCaptureToGraph``, ..."""

OUTER_WAIT: Final = re.compile(r"LaunchHostFunc|StreamAddCallback|StreamWaitValue|BatchMemOp|WaitExternal|^HostNode")
"""Calls that make a stream wait for a host function, or for a value that another process may write."""
COPY: Final = r"^(?:cuda|hip|cu)Memcpy"
WAITING_COPY: Final = r"^(?:cuda|hip)Memcpy(?:WithStream)?$"
"""Copy that waits for the device: plain ``cudaMemcpy``, and the call of torch on ROCm for ``item()``."""
ASYNCHRONOUS: Final = re.compile(r"^(?:AscendCL|Runtime|Node|Hccl)@(?!aclrtMemcpy$)", re.IGNORECASE)
"""Calls of CANN that return before the device has done the work."""
WAIT: Final = re.compile(rf"synchronize|{WAITING_COPY}", re.IGNORECASE)
"""Calls in which the host waits for the device."""
TIMED: Final = re.compile(r"^(?:cuda|hip)Event(?:Synchronize|ElapsedTime)")
"""Calls that measure device work. Libraries use them to select a kernel."""

MODULES: Final = re.compile(r"^(?:cu|hip|cuda)(?:Module|Library)(?:Load|Get|Enumerate)")
"""Calls that load kernels."""
FULL_QUEUE: Final = "Command Buffer Full"
"""Overhead record of CUPTI for a launch that waited for space in the queue of the device."""
LOADING: Final = re.compile(r"Module Loading|Function Loading|Driver Compiler")
"""Overhead records of the driver when it loads or compiles kernels, also without a profiler."""
MEMORY: Final = re.compile(r"^(?:cuda|hip|cu)(?:Mem)?(?:Malloc|Free|Alloc|Create|Map|Unmap|Release)", re.IGNORECASE)
"""Allocation or release of memory of any kind, including pools and pinned memory."""
RELEASE: Final = r"^(?:cuda|hip)Free$|^(?:cu|hip)Mem(?:Unmap|Release)$"
ALLOCATOR: Final = rf"^(?:cuda|hip)Malloc$|^(?:cu|hip)Mem(?:Create|Map)$|{RELEASE}"
"""Calls of torch's allocator that allocate and release device memory."""
