"""Calls of devices' runtimes and drivers, as CUDA, ROCm and others name them: regular expressions to search for."""

from __future__ import annotations

import re
from typing import Final

RUNTIME: Final = r"(?:cuda|hip|cu|hsa_|ze|musa|mu|cnrt|acl|rt)[A-Z_]\w*$"
"""Any call, as a whole name: ``cudaLaunchKernel``, ``hsa_amd_memory_async_copy``."""
LAUNCH: Final = re.compile(r"^(?!(?:AscendCL|Hccl|Runtime)@).*launch(?!hostfunc)", re.IGNORECASE)
"""Asks for a kernel or a graph; a function of the host that is launched is neither. CANN reports each launch as
``Node@launch``, and the calls around it and in it too."""
GRAPH: Final = re.compile(r"GraphLaunch", re.IGNORECASE)
"""Asks for a graph: one launch for all of its nodes."""
CAPTURE: Final = re.compile(r"Stream(Begin|End)Capture", re.IGNORECASE)
"""Begins or ends the recording of a graph: ``cudaStreamBeginCapture_v10000``, ``cuStreamBeginCaptureToGraph``, ..."""

OUTER_WAIT: Final = re.compile(r"LaunchHostFunc|StreamAddCallback|StreamWaitValue|BatchMemOp|WaitExternal|^HostNode")
"""Has a stream wait for a function of the host, or for a value that another process may write."""
COPY: Final = r"^(?:cuda|hip|cu)Memcpy"
WAITING_COPY: Final = r"^(?:cuda|hip)Memcpy(?:WithStream)?$"
"""A copy that waits for the device: plain ``cudaMemcpy``, and what ROCm's torch calls for ``item()``."""
ASYNCHRONOUS: Final = re.compile(r"^(?:AscendCL|Runtime|Node|Hccl)@(?!aclrtMemcpy$)", re.IGNORECASE)
"""Calls of CANN that return before the device has done the work."""
WAIT: Final = re.compile(rf"synchronize|{WAITING_COPY}", re.IGNORECASE)
"""The host waits for the device."""
TIMED: Final = re.compile(r"^(?:cuda|hip)Event(?:Synchronize|ElapsedTime)")
"""Reads how long work took, as libraries do that try out several kernels."""

MODULES: Final = re.compile(r"^(?:cu|hip|cuda)(?:Module|Library)(?:Load|Get|Enumerate)")
"""Loads kernels."""
FULL_QUEUE: Final = "Command Buffer Full"
"""The overhead record of a launch that waited for room in the queue of the device; CUPTI counts it as overhead."""
LOADING: Final = re.compile(r"Module Loading|Function Loading|Driver Compiler")
"""Overhead records of the driver: it loads or compiles kernels, with a recorder or without one."""
MEMORY: Final = re.compile(r"^(?:cuda|hip|cu)(?:Mem)?(?:Malloc|Free|Alloc|Create|Map|Unmap|Release)", re.IGNORECASE)
"""Takes or gives back memory of any sort, pools and pinned memory among them."""
RELEASE: Final = r"^(?:cuda|hip)Free$|^(?:cu|hip)Mem(?:Unmap|Release)$"
ALLOCATOR: Final = rf"^(?:cuda|hip)Malloc$|^(?:cu|hip)Mem(?:Create|Map)$|{RELEASE}"
"""Of these, the calls by which torch's allocator takes and gives back memory of a device."""
