"""Files of Kineto's as torch_npu would have written them, had the same training run on an NPU.

Python              [ operator [Enqueue] ]                            all labels are operators
the queue's thread               [ Dequeue@... [ Node@launch ] ]
Ascend Hardware                                                  [ kernel ]
HCCL                                                             [ hcom_allReduce__... ]
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from decimal import Decimal
from typing import Any

QUEUE = 4155
"""The thread that empties the queue."""
NODE = "autograd::engine::evaluate_function: "
LAUNCHES = ("cudaLaunchKernel", "cudaMemcpyAsync")
PROCESS_OF_WORK = {True: "HCCL", False: "Ascend Hardware"}
"""By whether it is a collective."""
SORT = {"Python": 0, "Python GC": 1, "CANN": 7, "Ascend Hardware": 13, "HCCL": 15, "HBM": 17, "Overlap Analysis": 23}


@dataclasses.dataclass(frozen=True)
class Spelling:
    """What differs between versions and levels of torch_npu's profiler."""

    level: int = 1
    """0 has no calls of CANN, 2 has those of its runtime as well."""
    is_of_2024: bool = False
    """Decimal process numbers, no `Node@launch`, and kernels are told by their names alone."""
    is_relative: bool = False
    """Times are numbers relative to a base, and links have small numbers."""
    communication: str = "HCCL"
    """The process of collectives."""
    device: int = 0


class _Writer:
    def __init__(self, file: dict[str, Any], spelling: Spelling) -> None:
        self.spelling = spelling
        self.base = file.get("baseTimeNanoseconds", 0)
        self.host = next(event["pid"] for event in file["traceEvents"] if event.get("cat") == "cpu_op")
        self.slices = [event for event in file["traceEvents"] if event["ph"] == "X"]
        self.links = [event for event in file["traceEvents"] if event.get("cat") == "fwdbwd"]
        self.work = {
            event["args"]["correlation"]: event for event in self.slices if event["cat"] in ("kernel", "gpu_memcpy")
        }
        self.operators: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        for event in self.slices:
            if event["cat"] == "cpu_op":
                self.operators[event["tid"]].append(span(event))
        self.events: list[dict[str, Any]] = []

    def time(self, nanos: int) -> Any:
        if self.spelling.is_relative:
            return Decimal(nanos) / 1000
        nanos += self.base
        return f"{nanos // 1000}.{nanos % 1000:03d}"

    def pid(self, process: str) -> int:
        if process == "Python":
            return self.host
        sort, device = SORT[process], self.spelling.device
        if self.spelling.is_of_2024:
            return int(f"{'' if process == 'Ascend Hardware' else self.host}{sort}{device:02d}")
        return (self.host << 10) | (sort << 5) | device

    def write(self, process: str, tid: Any, name: str, span: tuple[int, int], **more: Any) -> None:
        begin, end = span
        event = {"name": name, "pid": self.pid(process), "tid": tid, "ts": self.time(begin)}
        self.events.append({"ph": "X", **event, "dur": Decimal(end - begin) / 1000, "args": {}, **more})

    def flow(self, category: str, number: Any, ends: tuple[tuple[str, Any, int], tuple[str, Any, int]]) -> None:
        for phase, (process, tid, at) in zip("sf", ends, strict=True):
            event = {"ph": phase, "bp": "e", "name": category, "id": number, "cat": category}
            self.events.append(event | {"pid": self.pid(process), "tid": tid, "ts": self.time(at)})

    def write_host(self, event: dict[str, Any]) -> None:
        args = event["args"]
        if event["cat"] == "python_function":
            self.write("Python", event["tid"], event["name"], span(event), cat="python_function", args=args)
            return
        is_node = "Fwd thread id" in args
        told = {"Sequence number": -1 if is_node else args.get("Sequence number", -1), "Fwd thread id": int(is_node)}
        if "Input Dims" in args:
            told["Input Dims"] = ";\r\n".join(",".join(map(str, shape)) for shape in args["Input Dims"])
            told["Input type"] = ";\r\n".join(args["Input type"])
        self.write("Python", event["tid"], event["name"], span(event), cat="cpu_op", args=told)

    def write_call(self, event: dict[str, Any]) -> None:
        number, tid, (begin, end) = event["args"]["correlation"], event["tid"], span(event)
        if event["name"] not in LAUNCHES:
            if self.spelling.level:
                name = "AscendCL@aclrtSynchronizeDevice" if "Synchronize" in event["name"] else "AscendCL@aclrtOther"
                self.write("CANN", tid, name, (begin, end), args={"connection_id": 1_000_000 + number})
            return
        work = self.work[number]
        is_copy, is_collective = work["cat"] == "gpu_memcpy", "nccl" in work["name"]
        task = "acl_memcpy_host_to_device" if is_copy else "HcclAllreduce" if is_collective else "aclnnMm"
        queue = {"correlation_id": number}
        self.write("Python", tid, "Enqueue", (begin, end), cat="enqueue", args=queue)
        self.write("Python", QUEUE, f"Dequeue@{task}", (end + 100, end + 1900), cat="dequeue", args=queue)
        ends = (("Python", tid, begin), ("Python", QUEUE, end + 100))
        self.flow("async_task_queue", number, ends)
        self.write_launch(number, (end + 300, end + 1500), is_copy=is_copy)
        place = (PROCESS_OF_WORK[is_collective], 0 if is_collective else work["tid"], span(work)[0])
        key = number if self.spelling.is_relative else str((number + 1 << 32) - 1)
        self.flow("HostToDevice", key, (("CANN", QUEUE, end + 700), place))
        asked = max(first for first, last in self.operators[tid] if first <= begin and end <= last)
        key = number if self.spelling.is_relative else self.base + place[2]
        self.flow("async_npu", key, (("Python", tid, asked), place))
        self.write_collective(work, number) if is_collective else self.write_work(work, number, is_copy=is_copy)

    def write_launch(self, number: int, moment: tuple[int, int], *, is_copy: bool) -> None:
        if not self.spelling.level:
            return
        if self.spelling.is_of_2024:  # kernels have numbers that no call has
            self.write("CANN", QUEUE, "AscendCL@aclnnMm", moment, args={"connection_id": 500_000 + number})
            return
        name = "AscendCL@aclrtMemcpyAsync" if is_copy else "Node@launch"
        self.write("CANN", QUEUE, name, moment, args={"connection_id": number})
        if self.spelling.level > 1:
            inner = (moment[0] + 100, moment[1] - 100)
            self.write(
                "CANN", QUEUE, "Runtime@KernelLaunchWithHandle", inner, args={"connection_id": 2_000_000 + number}
            )

    def write_work(self, work: dict[str, Any], number: int, *, is_copy: bool) -> None:
        kind = "Other" if self.spelling.is_of_2024 else "PCIE_DMA_SQE" if is_copy else "AI_CORE"
        stream = "Stream Id" if self.spelling.is_of_2024 else "Physic Stream Id"
        args = {"Task Type": kind, stream: work["tid"], "Task Id": number, "connection_id": number}
        self.write("Ascend Hardware", work["tid"], "MEMCPY_ASYNC" if is_copy else work["name"], span(work), args=args)
        for mark in ("EVENT_RECORD", "EVENT_WAIT"):  # neither is work, and the stream waits for long
            args = {"Task Type": kind if self.spelling.is_of_2024 else f"{mark}_SQE", "connection_id": -1}
            begin = span(work)[1]
            self.write("Ascend Hardware", work["tid"], mark, (begin, begin + 5_000_000), args=args)

    def write_collective(self, work: dict[str, Any], number: int) -> None:
        begin, end = span(work)
        facts = {"connection_id": number, "data_type": "FP32", "alg_type": "MESH-RING", "count": 1000}
        self.write("HCCL", 0, f"hcom_allReduce__586_{number}_1", (begin, end), args=facts)
        for task in ("Notify Wait", "SDMA", "Write Value"):
            args = {"Task Type": task, "Physic Stream Id": 40, "connection_id": number}
            self.write("Ascend Hardware", 40, task, (begin, end), args=args)
            self.write("HCCL", 1, task.replace(" ", "_"), (begin, end), args={"task type": task, "size(Byte)": 4})

    def write_rest(self) -> None:
        """Derived lanes, counters, and the names of processes, which come last."""
        first, last = min(span(each)[0] for each in self.slices), max(span(each)[1] for each in self.slices)
        self.write("Overlap Analysis", 0, "Computing", (first, last))
        self.write("Python GC", self.host, "GC", (first, first + 10), cat="GC")
        for at in (first, last):
            event = {"ph": "C", "name": "HBM 0/Read", "pid": self.pid("HBM"), "tid": 0, "ts": self.time(at)}
            self.events.append(event | {"args": {"Read(MB/s)": 12.5}})
        for process, sort in SORT.items():
            name = self.spelling.communication if process == "HCCL" else process
            if process == "CANN" and not self.spelling.level:
                continue
            label = "CPU" if process in ("Python", "Python GC", "CANN") else "NPU"
            for key, value in (("name", name), ("labels", label), ("sort_index", sort)):
                args = {"sort_index" if key == "sort_index" else key: value}
                self.events.append(
                    {"ph": "M", "name": f"process_{key}", "pid": self.pid(process), "tid": 0, "args": args}
                )
        for tid, name in ((0, "Group 0 Communication"), (1, "Plane 0")):
            self.events.append(
                {"ph": "M", "name": "thread_name", "pid": self.pid("HCCL"), "tid": tid, "args": {"name": name}}
            )


def by_torch_npu(file: dict[str, Any], spelling: Spelling = Spelling()) -> Any:
    """Return a file as torch_npu writes it: a list, or with times that are relative to a base, an object."""
    writer = _Writer(file, spelling)
    for event in writer.slices:
        if event["cat"] in ("cpu_op", "user_annotation", "python_function") and not event["name"].startswith("nccl:"):
            writer.write_host(event)
        elif event["cat"].startswith("cuda_"):
            writer.write_call(event)
    for event in writer.links:
        at = writer.time(int(event["ts"] * 1000))
        writer.events.append(event | {"pid": writer.host, "ts": at})
    writer.write_rest()
    if spelling.is_relative:
        return {"baseTimeNanoseconds": writer.base, "traceEvents": writer.events}
    return writer.events


def span(event: dict[str, Any]) -> tuple[int, int]:
    """Start and end in nanoseconds."""
    begin = int(event["ts"] * 1000)
    return begin, begin + int(event["dur"] * 1000)
