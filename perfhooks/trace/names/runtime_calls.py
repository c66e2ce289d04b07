from __future__ import annotations

import re
from typing import Final

RUNTIME: Final = r"(?:cuda|hip|cu|hsa_|ze|musa|mu|cnrt|acl|rt)[A-Z_]\w*$"
LAUNCH: Final = re.compile(r"^(?!(?:AscendCL|Hccl|Runtime)@).*launch(?!hostfunc)", re.IGNORECASE)
"""Calls that launch device work, without host functions, and without the calls that CANN reports around each launch."""
GRAPH: Final = re.compile(r"GraphLaunch", re.IGNORECASE)
"""Calls that launch all nodes of a CUDA graph at once."""
CAPTURE: Final = re.compile(r"Stream(Begin|End)Capture", re.IGNORECASE)

OUTER_WAIT: Final = re.compile(r"LaunchHostFunc|StreamAddCallback|StreamWaitValue|BatchMemOp|WaitExternal|^HostNode")
"""Calls that make a stream wait for a host function or another process."""
COPY: Final = r"^(?:cuda|hip|cu)Memcpy"
WAITING_COPY: Final = r"^(?:cuda|hip)Memcpy(?:WithStream)?$"
"""Calls that wait for the end of the copy: ``cudaMemcpy``, and the call for ``item()`` in torch on ROCm."""
ASYNCHRONOUS: Final = re.compile(r"^(?:AscendCL|Runtime|Node|Hccl)@(?!aclrtMemcpy$)", re.IGNORECASE)
"""Calls of CANN that return before the device has done the work."""
WAIT: Final = re.compile(rf"synchronize|{WAITING_COPY}", re.IGNORECASE)
DEVICE_WAIT: Final = re.compile(r"DeviceSynchronize|SynchronizeDevice|CtxSynchronize", re.IGNORECASE)
"""Calls that return when the device has done all its work."""
TIMED: Final = re.compile(r"^(?:cuda|hip)Event(?:Synchronize|ElapsedTime)")
"""Calls by which libraries time kernels, to select the fastest one."""

MODULES: Final = re.compile(r"^(?:cu|hip|cuda)(?:Module|Library)(?:Load|Get|Enumerate)")
FULL_QUEUE: Final = "Command Buffer Full"
"""CUPTI's record for a launch that waited for space in the queue."""
LOADING: Final = re.compile(r"Module Loading|Function Loading|Driver Compiler")
"""Records of the driver about loading or compiling kernels, which also happens without a profiler."""
MEMORY: Final = re.compile(r"^(?:cuda|hip|cu)(?:Mem)?(?:Malloc|Free|Alloc|Create|Map|Unmap|Release)", re.IGNORECASE)
"""Calls that allocate or free memory, including pools and pinned memory."""
RELEASE: Final = r"^(?:cuda|hip)Free$|^(?:cu|hip)Mem(?:Unmap|Release)$"
ALLOCATOR: Final = rf"^(?:cuda|hip)Malloc$|^(?:cu|hip)Mem(?:Create|Map)$|{RELEASE}"
