"""For tests: small traces from a list of events, and a test that fails when a training became slower.

All times of events are nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from perfhooks.core.errors import PerfhooksError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perfhooks.analysis.comparison.comparison import Comparison

Event: TypeAlias = "dict[str, Any]"

PID = 100

__all__ = [
    "PID",
    "annotation",
    "assert_not_slower",
    "flow",
    "kernel",
    "launch",
    "memory",
    "op",
    "python_frame",
    "slice_event",
    "step_mark",
    "write_trace",
]


def slice_event(
    category: str, name: str, start: int, end: int, *, pid: int | str = PID, tid: int | str = PID, **args: Any
) -> Event:
    """Return a complete event of any category of Kineto. Underscores in the names of ``args`` stand for spaces."""
    event: Event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
    event |= {"ts": start / 1000, "dur": (end - start) / 1000}
    return event | ({"args": {key.replace("_", " "): value for key, value in args.items()}} if args else {})


def op(name: str, start: int, end: int, *, tid: int = PID, external: int = 0, **args: Any) -> Event:
    """Return an operator on the host. ``external`` links the operator to device work."""
    return slice_event("cpu_op", name, start, end, tid=tid, **_external(external), **args)


def annotation(name: str, start: int, end: int, *, tid: int = PID, external: int = 0, **args: Any) -> Event:
    """Return the trace event that ``record_function`` writes for a label."""
    return slice_event("user_annotation", name, start, end, tid=tid, **_external(external), **args)


def step_mark(number: int, start: int, end: int, *, tid: int = PID) -> Event:
    return annotation(f"ProfilerStep#{number}", start, end, tid=tid)


def python_frame(name: str, start: int, end: int, *, tid: int = PID, **args: Any) -> Event:
    """Return a Python frame, as ``with_stack=True`` records it."""
    return slice_event("python_function", name, start, end, tid=tid, **args)


def launch(
    correlation: int, start: int, end: int, *, name: str = "cudaLaunchKernel", tid: int = PID, external: int = 0
) -> Event:
    """Return a runtime call; ``correlation`` links it to the work that it launches."""
    return slice_event("cuda_runtime", name, start, end, tid=tid, correlation=correlation, **_external(external))


def kernel(
    correlation: int,
    start: int,
    end: int,
    *,
    name: str = "gemm",
    category: str = "kernel",
    device: int = 0,
    stream: int = 7,
    external: int = 0,
    **args: Any,
) -> Event:
    """Return device work: a kernel, copy or memset, by its category."""
    place: dict[str, Any] = {"device": device, "stream": stream, "correlation": correlation}
    return slice_event(category, name, start, end, pid=device, tid=stream, **_external(external), **place, **args)


def memory(time: int, size: int, *, allocated: int = -1, device: int = -1, tid: int = PID) -> Event:
    """Return an allocation of ``size`` bytes, or a release if negative; device -1 is the host."""
    args = {"Addr": 4096, "Bytes": size, "Total Allocated": allocated, "Total Reserved": 0}
    args |= {"Device Type": int(device >= 0), "Device Id": device}
    event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": PID, "tid": tid}
    return event | {"ts": time / 1000, "args": args}


def flow(number: int, forward: Event, backward: Event) -> list[Event]:
    """Return the link from a forward operator to its autograd node."""
    ends = []
    for phase, event in (("s", forward), ("f", backward)):
        where = {key: event[key] for key in ("pid", "tid", "ts")}
        ends.append({"ph": phase, "id": number, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e", **where})
    return ends


def write_trace(path: str | os.PathLike[str], events: Iterable[Event], **metadata: object) -> Path:
    """Write events as a trace in the layout of Kineto's own files; packed if the name ends in ``.gz``.

    ``metadata`` contains keys beside ``traceEvents``; ``distributedInfo={"rank": 3}`` makes it a trace of rank 3.
    """
    head = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": 1711964646000000000, **metadata}
    text = "{\n" + "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    text += '  "traceEvents": [\n' + _joined(list(events)) + '\n  ],\n  "traceName": "test"\n}\n'
    data = text.encode()
    path = Path(path)
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


def _joined(events: Sequence[Event]) -> str:
    return ",\n".join("  {\n    " + json.dumps(event)[1:-1] + "\n  }" for event in events)


def _external(number: int) -> dict[str, Any]:
    return {"External_id": number} if number else {}


def assert_not_slower(
    base: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    new: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    by: float = 0.02,
) -> Comparison:
    """Fail a test if a training became slower: ``assert_not_slower("base.json", "perf/latest", by=0.05)``.

    Each side is a run folder, a baseline of ``perfhooks compare --save``, or several runs. ``by`` is the tolerated
    ratio: 0.05 is 5%. The returned ``verdict.outcome`` is ``"undecided"`` if more steps or runs are needed.

    Raises:
        AssertionError: The training is slower; the message contains the verdict and the main reasons.
        PerfhooksError: A run does not exist, or has fewer than 20 unprofiled steps.
    """
    from perfhooks.analysis.comparison import comparison, sources
    from perfhooks.report.comparison import written

    sides = [[each] if isinstance(each, str | os.PathLike) else list(each) for each in (base, new)]
    made = comparison.compare(*sources.read([[Path(run) for run in side] for side in sides]), tolerance=by)
    if made.verdict is None:
        raise PerfhooksError(made.sentence + "".join(f"; {note}" for note in made.notes))
    if made.verdict.outcome == "slower":
        raise AssertionError(written.text(made))
    return made
