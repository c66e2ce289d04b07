"""Twins of recorded traces, written by a small simulated machine: what differs between recorders, and nobody's data.

Each has the dialect of a recording that was met: which events there are, their numbers, and how times are written.

    main      [ mark of the step                                                  ]
              [ loader ][ Conv2d [ op [call] ] ] ...   wait   [ optimizer ] [ sync ]
    autograd                                       [ node [ op [call] ] ]
    stream 7             [ kernel ] ...                [ kernel ]   [ kernel ]
    stream 40                                              [ all-reduce ]
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAIN, AUTOGRAD = 4100, 4177
STREAM, OTHER_STREAM = 7, 40
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
NODE = "autograd::engine::evaluate_function: "
BASE_NS = 1711964646000000000
GPU = {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 42297524224, "computeMajor": 8, "computeMinor": 0}
GPU |= {"numSms": 108, "warpSize": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048}
COUNTS = "INFO:2024 CuptiActivityProfiler.cpp:341] Record counts: Out-of-range = 4181, CUPTI stopped early? = 0"


CONVOLUTIONS = (("aten::conv2d", "void implicit_convolve_sgemm<float, 128>", 90), ("aten::relu", "vectorized_relu", 20))
TRANSFORMER = (("aten::linear", "sm90_xmma_gemm_bf16", 70), ("aten::add", "void elementwise_kernel<add>", 9))
ATTENTION = ("aten::scaled_dot_product_attention", "flash_fwd_kernel", 30)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """What one recorder writes, and of what program."""

    steps: tuple[int | None, ...] = (None,)
    """Numbers of the marks; None is a step without one."""
    begin: int = 4_458_676_416_788_066
    """When it starts, in ticks: nanoseconds, or where times are whole, microseconds."""
    whole: bool = False
    """Times are whole microseconds."""
    base: bool = True
    """Times are relative to `baseTimeNanoseconds`."""
    runtime: str = "cuda"
    """Of the device; without one, none was recorded."""
    old_ids: bool = False
    """Calls and work bear their own correlation as External id, as with torch before 2.1."""
    ops: bool = True
    stacks: bool = False
    memory: bool = False
    flows: bool = True
    trains: bool = False
    reduces: str = ""
    """The name of the kernel that sums over ranks."""
    names: bool = True
    """Names of threads, and the span of the recorder."""
    kernels: tuple[tuple[str, str, int], ...] = CONVOLUTIONS
    """Operators of the forward pass, with the names of their kernels and how long these take."""
    slowness: int = 100
    """Of the device, in ticks; from some 300 on it never waits for the host."""
    layers: int = 6
    first: int = 0
    """Ticks of a call that a program makes once, before the first kernel."""
    driver: bool = False
    """Some kernels are launched by the driver, and bear no number of an operator."""
    syncs: bool = False
    """Waits are written on the device as well."""
    threads: tuple[str, ...] = ()
    """Labels on threads of their own."""
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


class Machine:
    """A host with two threads, a device with two streams, and the recorder that looks on."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.now = dialect.begin
        self.free = dict.fromkeys((STREAM, OTHER_STREAM), dialect.begin)
        self.events: list[dict[str, Any]] = []
        self.count = 0
        self.frame: int | None = None
        self.op = 0
        self.thread = MAIN
        # the weights were there before
        self.allocated = {False: 1 << 20, True: 0}
        self.made: list[tuple[int, int]] = []

    def time(self, ticks: int) -> int | Decimal:
        return ticks if self.dialect.whole else Decimal(ticks) / 1000

    def number(self) -> int:
        self.count += 1
        return self.count

    def write(
        self, category: str, name: str, start: int, end: int, *, pid: Any = MAIN, tid: Any = None, **args: Any
    ) -> None:
        tid = self.thread if tid is None else tid
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": self.time(start)}
        self.events.append(event | {"dur": self.time(end - start), "args": args})

    def flow(self, category: str, number: int, phase: str, at: int, place: tuple[int, int]) -> None:
        event = {"ph": phase, "id": number, "ts": self.time(at), "cat": category}
        event |= {"name": category, "pid": place[0], "tid": place[1]}
        self.events.append(event | ({"bp": "e"} if phase == "f" else {}))

    @contextlib.contextmanager
    def label(self, name: str, category: str = "user_annotation", **args: Any) -> Iterator[None]:
        """A label or an operator around what is done inside."""
        start, number, outer = self.now, self.number(), self.op
        self.op = number
        self.now += 1003
        yield
        self.now += 507
        self.op = outer
        if self.dialect.ops:
            self.write(category, name, start, self.now, **{"External id": number, "Ev Idx": number}, **args)
        self.now += 101

    def ran(self, name: str, kernel: str, ticks: int, **args: Any) -> None:
        """An operator with another one in it that launches a kernel."""
        if self.dialect.stacks:
            args |= {"Input Dims": [[8, 64], [64, 64]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
        with self.label(name, "cpu_op", **args), self.label(f"{name}_out", "cpu_op"):
            self.allocate(512)
            self.work(kernel, ticks)
            self.allocate(-512)

    @contextlib.contextmanager
    def python(self, name: str) -> Iterator[None]:
        """A Python frame or a module."""
        start, number, outer = self.now, self.number(), self.frame
        self.frame = number
        self.now += 211
        yield
        self.now += 109
        self.frame = outer
        if self.dialect.stacks:
            ids = {"Python parent id": outer, "Python id": number}
            self.write(
                "python_function", name, start, self.now, **ids, **{"Python module id": 0} if "Module" in name else {}
            )

    def allocate(self, size: int, *, on_host: bool = False) -> None:
        if self.dialect.memory:
            self.allocated[on_host] += size
            args = {"Total Allocated": self.allocated[on_host], "Total Reserved": 1 << 21, "Bytes": size, "Addr": 4096}
            device = {"Device Id": 0, "Device Type": 1 if self.dialect.runtime == "cuda" else 6}
            args |= {"Device Id": -1, "Device Type": 0} if on_host else device
            event = {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": MAIN,
                "tid": self.thread,
            }
            self.events.append(event | {"ts": self.time(self.now), "args": args})

    def call(self, name: str, ticks: int, *, is_launch: bool = False) -> int:
        """A call of the runtime; its correlation."""
        start, number = self.now, 100_000 + self.number()
        self.now += ticks
        if self.dialect.runtime:
            bare = name.startswith("cuL")
            owner = {} if bare else {"External id": number if self.dialect.old_ids else self.op}
            category = "cuda_driver" if bare else "cuda_runtime"
            self.write(
                category, name.replace("cuda", self.dialect.runtime), start, self.now, **owner, correlation=number
            )
            if self.dialect.flows:
                self.flow(
                    "ac2g", number, "s" if is_launch else "f", start, (MAIN, self.thread)
                )  # an end without a start
        return number

    def work(self, name: str, ticks: int, *, stream: int = STREAM, kind: str = "kernel", call: str = "") -> None:
        """A call, and what it launches."""
        call = call or {"gpu_memcpy": "cudaMemcpyAsync", "gpu_memset": "cudaMemsetAsync"}.get(kind, "cudaLaunchKernel")
        number = self.call(call, 5003, is_launch=True)
        if not self.dialect.runtime:
            return
        start = max(self.free[stream], self.now + 2011)
        self.free[stream] = end = start + self.dialect.slowness * ticks + 7
        owner = {} if call.startswith("cuL") else {"External id": number if self.dialect.old_ids else self.op}
        place = {"device": 0, "context": 1, "stream": stream, "correlation": number}
        size = {"grid": [64, 1, 1], "block": [256, 1, 1]} if kind == "kernel" else {"bytes": 4096}
        self.write(kind, name, start, end, pid=0, tid=stream, **owner, **place, **size)
        if self.dialect.flows:
            self.flow("ac2g", number, "f", start, (0, stream))

    def wait(self) -> None:
        """A wait of the host for both streams."""
        start = self.now
        self.now = max(self.now, *self.free.values())
        spent, self.now = self.now - start + 3001, start
        number = self.call("cudaDeviceSynchronize", spent)
        if self.dialect.syncs:
            args = {"cuda_sync_kind": "Context Sync", "stream": -1, "correlation": number, "device": 0, "context": 1}
            self.write("cuda_sync", "Context Sync", start + 900, self.now, pid=0, tid=-1, **args)

    # --- the program ---

    def forward(self) -> None:
        for layer in range(self.dialect.layers):
            with self.python(f"nn.Module: Layer_{layer}"), self.python("model.py(12): forward"):
                for name, kernel, ticks in self.dialect.kernels:
                    sequence = self.number()
                    self.made.append((sequence, self.now))
                    self.ran(name, kernel, ticks, **{"Sequence number": sequence} if self.dialect.trains else {})

    def backward(self) -> None:
        self.thread = AUTOGRAD
        for sequence, forward in reversed(self.made):
            if self.dialect.flows:
                self.flow("fwdbwd", sequence, "s", forward, (MAIN, MAIN))
                self.flow("fwdbwd", sequence, "f", self.now, (MAIN, AUTOGRAD))
            node = {"Sequence number": sequence, "Fwd thread id": 1}
            with (
                self.label(f"{NODE}ConvolutionBackward0", "cpu_op", **node),
                self.label("ConvolutionBackward0", "cpu_op", **node),
            ):
                self.ran("aten::convolution_backward", "void dgrad_engine<float>", 150)
        if self.dialect.reduces:
            args = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float"}
            args |= {"Group size": 2, "Process Group Name": "0", "Input Dims": [[1000]], "Input type": ["float"]}
            with self.label("c10d::allreduce_", "cpu_op", **args), self.label("nccl:all_reduce", **args):
                self.work(self.dialect.reduces, 400, stream=OTHER_STREAM)
        self.thread = MAIN

    def step(self, mark: int | None) -> None:
        self.made = []
        with contextlib.ExitStack() as inside:
            if mark is not None:
                inside.enter_context(self.label(f"ProfilerStep#{mark}"))
            inside.enter_context(self.python("train.py(3): main"))
            with self.label(LOADER):
                self.allocate(256, on_host=True)
                self.now += 40_009
                self.allocate(-256, on_host=True)
            with self.label("aten::copy_", "cpu_op"):
                self.work("Memcpy HtoD (Pageable -> Device)", 12, kind="gpu_memcpy")
            if self.dialect.first:
                self.call("cudaStreamIsCapturing", self.dialect.first)
            self.forward()
            if self.dialect.driver:
                self.write("overhead", "Activity Buffer Request", self.now, self.now + 8_000, pid=-1, tid=0)
                self.work("_copy_page_indices_kernel", 2, call="cuLaunchKernelEx")
            if self.dialect.trains:
                self.backward()
                with self.label("Optimizer.step#SGD.step"):
                    self.ran("aten::_foreach_add_", "multi_tensor_apply_kernel", 30)
            self.wait()

    def whole(self) -> dict[str, Any]:
        """The file."""
        dialect, first = self.dialect, self.now
        for mark in dialect.steps:
            self.step(mark)
        for tid, name in enumerate(dialect.threads, 4200):
            self.write("user_annotation", name, first, first + 30_000, tid=tid, **{"External id": self.number()})
        for tid in (MAIN, AUTOGRAD) if dialect.names else ():
            where = {"ph": "M", "pid": MAIN, "tid": tid, "ts": self.time(first)}
            self.events.append(where | {"name": "thread_name", "args": {"name": f"thread {tid} (python3)"}})
        if dialect.names:
            span = {"pid": "Spans", "tid": "PyTorch Profiler", "Op count": 0}
            self.write("Trace", "PyTorch Profiler (0)", first - 900, self.now + 900, **span)
        base = {"baseTimeNanoseconds": BASE_NS} if dialect.base else {}
        return {"schemaVersion": 1, **dialect.facts, **base, "displayTimeUnit": "ms", "traceEvents": self.events}


SINCE_1970 = {"base": False, "begin": 1_712_195_495_502_094_047}
WHOLE = {"whole": True, "base": False, "begin": 1_682_725_898_079_292}
JOB = {
    **WHOLE,
    "steps": (551, 552),
    "old_ids": True,
    "flows": False,
    "trains": True,
    "reduces": "ncclKernel_AllReduce_RING",
}
ROCM = {"facts": {"deviceProperties": [GPU | {"name": "AMD Instinct MI300X"}], "record_shapes": 1}, "runtime": "hip"}
BERT = {"steps": (6,), "stacks": True, "memory": True, "kernels": (*TRANSFORMER, ATTENTION)}


def info(rank: int, world: int, **more: Any) -> dict[str, Any]:
    """What stands beside the events in a job of several ranks."""
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}, **more}


DIALECTS = {
    "a100-ddp2-train": Dialect(
        steps=(4, 5, 6),
        trains=True,
        reduces="ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)",
        facts=info(0, 2, deviceProperties=[GPU], INFO=[COUNTS]),
    ),
    "v100-resnet-train": Dialect(
        **SINCE_1970, steps=(101, 102), slowness=1000, trains=True, facts=info(0, 1, deviceProperties=[GPU])
    ),
    "b200-eager-stacks-shapes": Dialect(
        stacks=True, names=False, driver=True, kernels=TRANSFORMER, facts=info(0, 8, deviceProperties=[GPU])
    ),
    "h100-bert-small": Dialect(**BERT, facts={"deviceProperties": [GPU], "with_stack": 1, "profile_memory": 1}),
    "mi300-bert-small": Dialect(**BERT, **ROCM),
    "mi250-minitoy-train": Dialect(**ROCM, steps=(1, 2), trains=True, first=90_000_000),
    "mi210-gpu-only": Dialect(**ROCM, ops=False),
    "triton-compile": Dialect(**ROCM, kernels=(("Torch-Compiled Region: 0/0", "triton_poi_fused_add_0", 40),)),
    "alexnet-cuda-sync": Dialect(
        **WHOLE, old_ids=True, syncs=True, first=40_000_000, facts={"deviceProperties": [GPU]}
    ),
    "sampled-128ranks-rank0": Dialect(**JOB, facts=info(0, 128)),
    "sampled-128ranks-rank1": Dialect(**JOB | {"begin": JOB["begin"] + 400}, facts=info(1, 128)),
    "cpu-only-rank34": Dialect(
        steps=(551,), runtime="", threads=("gloo:all_reduce",) * 5, facts=info(34, 300, deviceProperties=[])
    ),
    "odd-no-distributed-info": Dialect(
        **WHOLE, steps=(1009,), runtime="", names=False, trains=True, facts={"deviceProperties": [GPU]}
    ),
}
TRACES = sorted(DIALECTS)


def write(folder: Path) -> None:
    """All of them, into a folder."""
    encode = msgspec.json.Encoder(decimal_format="number").encode
    for name, dialect in DIALECTS.items():
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(encode(Machine(dialect).whole()), 1))
