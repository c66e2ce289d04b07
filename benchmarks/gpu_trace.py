"""A generated trace with the mix of a GPU recording, and what reading it and making everything of it takes.

No machine with a GPU is needed. Events have the mix and the size of the largest public recording of an H100 that was
found (TraceLens, owlv2: 132,152 events in 55.6 MB, with shapes, stacks and memory): 400 bytes each, as it was indented
anew by whoever published it, a line for every number of a shape; Kineto writes 270 for the same. Of 100 events 42 are
Python frames, 16 operators, 10 allocations, 10 calls of the runtime, 5 work of the device on two streams, 17 ends of
flows, which no table counts as slices; forward and backward have a thread and a stack of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from comparison import Comparison, say

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENTS: Final = (132_000, 1_000_000, 2_100_000)
"""As many as a window of an H100 recording that others published, and as one of the largest that were seen."""
ROUNDS: Final = {132_000: 3}
LAYERS: Final = 48
DEPTH: Final = 12
"""Python frames around an operator."""
FORWARD, BACKWARD = 100, 200
"""Threads."""
KERNELS: Final = {
    "product": (
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x256_32x3_tn_align8>("
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x256_32x3_tn_align8::Params)"
    ),
    "sum": (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
        "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
    ),
    "collective": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
"""Names are a large part of such a file."""
TAKES: Final = {"product": 9.0, "sum": 4.0, "collective": 200.0}
"""Microseconds."""

# wall time, as a person waits for it; everything that the page and its tables need
PROBE: Final = r"""
import json, re, sys, time
import numpy, polars
from perfhooks import trace as traces
from perfhooks.report.page import window_data
from perfhooks.run.capture import Capture
from perfhooks.trace.nesting import device, host
from perfhooks.trace.tables import device_time
kilobytes = lambda: int(re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1])
before, began = kilobytes(), time.perf_counter()
trace = traces.read(sys.argv[1])
read = time.perf_counter() - began
capture = Capture(last=0)
tables = capture.tables(trace)
trace.launches, device.busy(trace), host.tree(trace)
began_idle = time.process_time()
device_time.work(trace), device_time.idle(trace)
idle = time.process_time() - began_idle
own = ("steps", "kernels", "categories", "collectives", "copies", "synchronisations", "gaps", "modules", "checks")
for name in own:
    getattr(tables, name)
tables.operators(), tables.operators(("shapes", "stack", "module"))
for by in ("host", "device", "bytes"):
    tables.stacks(by)
made = window_data.reduce(capture, trace)
whole = time.perf_counter() - began
print(json.dumps([whole, read, (kilobytes() - before) / 1024, idle, made.get("problems", [])]))
"""


class Recording:
    """Writes the events of a training on a GPU as Kineto does; times are microseconds."""

    def __init__(self, file: Any) -> None:
        self.written = 0
        self._file = file
        self._number = 0
        self._allocated = 955420672
        self._free = {7: 0.0, 20: 0.0}
        """When each stream is."""

    def step(self, number: int, begin: float) -> float:
        """One training step; its end."""
        at = self.optimizer(self.backward(self.forward(begin + 40)))
        self.slice("cpu_op", "aten::item", FORWARD, (at, 90), {"External id": self.next()})
        self.call("cudaStreamSynchronize", FORWARD, (at + 5, 80))
        self.slice("user_annotation", f"ProfilerStep#{number}", FORWARD, (begin, at + 100 - begin), {})
        return at + 100

    def forward(self, at: float) -> float:
        """Operators within modules."""
        for layer in range(LAYERS):
            begin, at = at, at + 1
            for place in range(4):
                at = self.operator(f"aten::linear_{place}", FORWARD, at, f"model.py({layer})")
            self.slice(
                "python_function", f"nn.Module: Block_{layer}", FORWARD, (begin, at - begin), {"Python id": layer}
            )
            at += 2
        return at

    def backward(self, at: float) -> float:
        """Nodes of autograd on a thread of their own, and a bucket of gradients now and then."""
        begin = at
        for layer in range(LAYERS):
            node = at
            at = self.operator("aten::mm", BACKWARD, at + 2)
            at = self.operator("aten::add_", BACKWARD, at, kernel="sum")
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            self.slice("cpu_op", name, BACKWARD, (node, at - node), {"External id": self.next(), "Fwd thread id": 1})
            at += 2
            if layer % 8 == 0:
                at = self.collective(at)
        self.slice("python_function", "<built-in method run_backward>", FORWARD, (begin, at - begin), {"Python id": 7})
        return at

    def optimizer(self, at: float) -> float:
        """A few large kernels."""
        begin, at = at, at + 1
        for _ in range(8):
            at = self.operator("aten::_foreach_addcdiv_", FORWARD, at, "adamw.py(1)", kernel="sum")
        self.slice("user_annotation", "Optimizer.step#AdamW.step", FORWARD, (begin, at - begin), {})
        return at + 2

    def operator(self, name: str, tid: int, at: float, line: str = "", kernel: str = "product") -> float:
        """An operator within another, its launch and kernel, its memory, and the Python frames around it; its end."""
        outer, inner, view = self.next(), self.next(), self.next()
        for depth in range(DEPTH if line else 0):
            where = f"/usr/local/lib/python3.12/dist-packages/transformers/models/vision/{line}: call_{depth}"
            about = {"Python parent id": outer + depth - 1, "Python id": outer + depth, "Ev Idx": self.written}
            self.slice("python_function", where, tid, (at + 0.1 * depth, 16 - 0.2 * depth), about)
        said = {"Record function id": 0, "Concrete Inputs": ["", ""], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
        said |= {"Input Strides": [[5309440, 1024, 1], [4096, 1]], "Input Dims": [[64, 5185, 1024], [1024, 4096]]}
        self.slice("cpu_op", name, tid, (at + 1, 13), {"External id": outer, "Sequence number": outer} | said)
        self.slice("cpu_op", f"{name}_out", tid, (at + 2, 11), {"External id": inner} | said)
        self.slice("cpu_op", "aten::view", tid, (at + 2.5, 1), {"External id": view} | said)
        self.memory(tid, at + 3, 20992)
        self.call("cudaStreamIsCapturing", tid, (at + 3.5, 0.5), inner)
        self.launch(kernel, tid, at + 5, {"External id": inner})
        self.memory(tid, at + 12, -20992)
        if line:
            self.flow("fwdbwd", outer, (1, tid, at + 1), (1, BACKWARD, at + 2000))
        return at + 17

    def collective(self, at: float) -> float:
        """A bucket of gradients on a stream of its own."""
        said = {
            "Collective name": "allreduce",
            "In msg nelems": 1 << 20,
            "Out msg nelems": 1 << 20,
            "dtype": "BFloat16",
        }
        said |= {"Group size": 8, "Process Group Name": "0", "External id": self.next()}
        self.slice("cpu_op", "record_param_comms", BACKWARD, (at, 6), said)
        self.launch("collective", BACKWARD, at + 1, said)
        return at + 8

    def launch(self, kernel: str, tid: int, at: float, said: dict[str, Any]) -> None:
        """A call, the flow from it, and the kernel."""
        number = self.call("cudaLaunchKernel", tid, (at, 3), said["External id"])
        stream = 20 if kernel == "collective" else 7
        begin = max(self._free[stream], at + 5)
        self._free[stream] = begin + TAKES[kernel]
        args = {"queued": 0, "device": 0, "context": 1, "stream": stream, "correlation": number, "shared memory": 49152}
        args |= {"registers per thread": 128, "blocks per SM": 3.878788, "warps per SM": 31.030304, "grid": [128, 4, 1]}
        args |= {"block": [256, 1, 1], "est. achieved occupancy %": 25}
        place = {"pid": 0, "tid": stream, "ts": round(begin, 3), "dur": TAKES[kernel]}
        self.event({"ph": "X", "cat": "kernel", "name": KERNELS[kernel], **place, "args": said | args})
        self.flow("ac2g", number, (1, tid, at), (0, stream, begin))

    def memory(self, tid: int, at: float, size: int) -> None:
        """An allocation of device memory, or a release."""
        self._allocated += size
        said = {"Total Reserved": 3600809984, "Total Allocated": self._allocated, "Bytes": size}
        said |= {"Addr": 137278998388736 + tid, "Device Id": 0, "Device Type": 1, "Ev Idx": self.written}
        place = {"pid": 1, "tid": tid, "ts": round(at, 3)}
        self.event({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", **place, "args": said})

    def call(self, name: str, tid: int, when: tuple[float, float], external: int = 0) -> int:
        """A call into the runtime; its correlation id."""
        number = self.next()
        self.slice("cuda_runtime", name, tid, when, {"cbid": 211, "correlation": number, "External id": external})
        return number

    def slice(self, category: str, name: str, tid: int, when: tuple[float, float], args: dict[str, Any]) -> None:
        """A slice of the host, by its start and its duration."""
        place = {"pid": 1, "tid": tid, "ts": round(when[0], 3), "dur": round(when[1], 3)}
        self.event({"ph": "X", "cat": category, "name": name, **place, "args": args})

    def flow(self, kind: str, number: int, *ends: tuple[int, int, float]) -> None:
        """A link; each end by process, thread and time."""
        for phase, (pid, tid, at) in zip("sf", ends, strict=True):
            place = {"pid": pid, "tid": tid, "ts": round(at, 3)}
            self.event({"ph": phase, "id": number, "cat": kind, "name": kind, **place, "bp": "e"})

    def event(self, event: dict[str, Any]) -> None:
        """Any event."""
        text = json.dumps(event, indent=2).replace("\n", "\n    ")
        self._file.write((",\n    " if self.written else "\n    ") + text)
        self.written += 1

    def next(self) -> int:
        """A number that nothing else has."""
        self._number += 1
        return self._number


def write(path: Path, count: int) -> int:
    """Write a trace of so many events, or some thousand more; how many they are."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{\n  "schemaVersion": 1,\n  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},\n')
        file.write('  "baseTimeNanoseconds": 1711964646000000000,\n  "traceEvents": [')
        recording, at, number = Recording(file), 1000.0, 0
        while recording.written < count:
            at = recording.step(number, at)
            number += 1
        file.write('\n  ],\n  "traceName": "benchmark"\n}\n')
    return recording.written


def probe(path: Path) -> tuple[float, float, float, float]:
    """Wall seconds of everything and of reading, MiB above the interpreter, seconds for the device's time by cause."""
    done = subprocess.run([sys.executable, "-c", PROBE, path], capture_output=True, text=True, check=True)
    whole, read, memory, idle, problems = json.loads(done.stdout)
    if problems:
        raise RuntimeError(f"the page lacks a part: {problems}")
    return whole, read, memory, idle


def measure() -> Iterator[Comparison]:
    """Wall time and memory, and what an event costs as traces grow; each in a process of its own."""
    seconds, megabytes, each, partition = [], [], [], []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "gpu.json"
        for count in EVENTS:
            say(f"a GPU recording of {count} events")
            events = write(path, count)
            whole, read, memory, idle = min(probe(path) for _ in range(ROUNDS.get(count, 1)))
            size = f"{path.stat().st_size / 1e6:.0f} MB, {events} events"
            seconds += [(f"{size}: read", read), (f"{size}: with all tables and the page's data", whole)]
            megabytes += [(size, memory)]
            each += [(size, whole / events * 1e6)]
            partition += [(size, idle / events * 1e6)]
    title = "A generated GPU recording with shapes, stacks and flows"
    yield Comparison(title=f"{title}, wall time", unit="s", rows=tuple(seconds))
    yield Comparison(
        title="Memory for all of it, above the interpreter and its libraries", unit="MB", rows=tuple(megabytes)
    )
    yield Comparison(title="All of it, for an event, as traces grow", unit="us", rows=tuple(each))
    yield Comparison(
        title="The device's time by cause, for an event, in processor time", unit="us", rows=tuple(partition)
    )
