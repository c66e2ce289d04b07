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
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import npu_twins

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
    is_old: bool = False
    """Torch 1.9 wrote it."""
    is_next: bool = False
    """Torch's new recorder cuspy wrote it, with what it writes of CUDA graphs: a function of the host, and a moment."""
    npu: npu_twins.Spelling | None = None
    """How torch_npu wrote it; None for other recorders."""
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
        self.op = number if category == "cpu_op" else outer  # Kineto's numbers name no label
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
            if self.dialect.is_next:
                node = {"device": 0, "context": 1, "stream": STREAM, "correlation": 0, "graph node id": 7}
                self.now += 5_000_000
                self.write(
                    "graph_host_node", "HostNode: log", self.now - 5_000_000, self.now, pid=0, tid=STREAM, **node
                )
                self.write("graph_event_node", "EventRecord", self.now, self.now, pid=0, tid=STREAM, **node)
            if self.dialect.first and mark == self.dialect.steps[0]:
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

    def whole(self) -> Any:
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
        file = {"schemaVersion": 1, **dialect.facts, **base, "displayTimeUnit": "ms", "traceEvents": self.events}
        if dialect.npu:
            return npu_twins.by_torch_npu(file, dialect.npu)
        return by_next_recorder(file) if dialect.is_next else by_torch_1_9(file) if dialect.is_old else file


RUNTIME = ("cuda_runtime", "cuda_driver", "hip_runtime")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
MEMORIES = {"unknown": 0, "pageable": 1, "pinned": 2, "device": 3, "array": 4, "managed": 5}
COPIED = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")


def by_next_recorder(file: dict[str, Any]) -> dict[str, Any]:
    """A file of Kineto's as torch's new recorder cuspy (torch 2.15) would have written it, by its ``_cuspy/trace.py``.

    Calls bear their correlation and nothing else; work bears no number of an operator, no occupancy and nothing of
    collectives; copies and memsets say in arguments what they are.
    """
    return file | {"traceEvents": [_by_next_recorder(event) for event in file["traceEvents"]]}


def _by_next_recorder(event: dict[str, Any]) -> dict[str, Any]:
    category, args = event.get("cat"), event.get("args", {})
    if event.get("ph") != "X" or category not in (*RUNTIME, *WORK):
        return event
    if category in RUNTIME:
        return event | {"args": {"cbid": 1, **_only(args, "correlation")}}
    kept = _only(args, "device", "context", "stream", "correlation", "bytes", "grid", "block", "graph node id")
    name = event["name"]
    if category == "gpu_memcpy" and (parts := COPIED.match(name)):
        kind, source, target = parts.groups()
        kept |= {"copy kind": 9 if kind == "HtoH" else kind, "src kind": source.lower(), "dst kind": target.lower()}
        name = "Memcpy"
    elif category == "gpu_memset" and name.endswith(")"):
        kept |= {"value": 0, "memory kind": MEMORIES[name.rpartition("(")[2][:-1].lower()]}
        name = "Memset"
    return event | {"name": name, "args": kept}


def _only(args: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: args[name] for name in names if name in args}


OLD = {"cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel"}
OLD |= {"gpu_memcpy": "Memcpy", "gpu_memset": "Memset"}


def by_torch_1_9(file: dict[str, Any]) -> dict[str, Any]:
    """A file as torch 1.9 would have written it, by Kineto's own samples of that time.

    Labels are operators, a node of autograd has the bare name of its class, and nothing links it to what made it.
    """
    # since torch 1.10 a node is two: its call, and the operator in it
    kept = [event for event in file["traceEvents"] if event.get("cat") != "fwdbwd" and not _is_inner(event)]
    return {"schemaVersion": 1, "traceEvents": [_by_torch_1_9(event) for event in kept]}


def _is_inner(event: dict[str, Any]) -> bool:
    return "Fwd thread id" in event.get("args", {}) and not event["name"].startswith(NODE)


def _by_torch_1_9(event: dict[str, Any]) -> dict[str, Any]:
    if event.get("ph") != "X":
        return event
    args = {key: value for key, value in event["args"].items() if key not in ("Sequence number", "Fwd thread id")}
    if event["cat"] in (*RUNTIME, *WORK) and "External id" in args:
        args["external id"] = args.pop("External id")
    tid = f"stream {event['tid']}" if event["cat"] in WORK else event["tid"]
    name = event["name"].removeprefix(NODE).rstrip("0") if event["name"].startswith(NODE) else event["name"]
    return event | {"cat": OLD.get(event["cat"], event["cat"]), "name": name, "tid": tid, "args": args}


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
    "v100-torch-1.9": Dialect(
        **WHOLE, steps=(5, 6, 7), is_old=True, trains=True, kernels=(("aten::convolution", "sgemm", 90),)
    ),
    "b200-next-recorder": Dialect(
        steps=(7, 8),
        is_next=True,
        stacks=True,
        trains=True,
        reduces="ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        facts=info(0, 8, deviceProperties=[GPU]),
    ),
    "npu-ddp2-train": Dialect(
        steps=(50, 51), stacks=True, trains=True, reduces="ncclDevKernel_AllReduce", npu=npu_twins.Spelling()
    ),
    "cpu-only-rank34": Dialect(
        steps=(551,), runtime="", threads=("gloo:all_reduce",) * 5, facts=info(34, 300, deviceProperties=[])
    ),
    "odd-no-distributed-info": Dialect(
        **WHOLE, steps=(1009,), runtime="", names=False, trains=True, facts={"deviceProperties": [GPU]}
    ),
}
TRACES = sorted(name for name, dialect in DIALECTS.items() if not dialect.is_old and not dialect.npu)
"""Those that `plain_reader` knows how to read; test_dialects.py and test_ascend.py compare the others with these."""


def write(folder: Path) -> None:
    """All of them, into a folder."""
    encode = msgspec.json.Encoder(decimal_format="number").encode
    for name, dialect in DIALECTS.items():
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(encode(Machine(dialect).whole()), 1))
