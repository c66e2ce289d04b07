"""The host keeps the device waiting: it cannot launch fast enough, waits for results, or computes itself."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks import labels, words
from perfhooks.findings.data import data_ranges
from perfhooks.findings.evidence import most
from perfhooks.findings.start import spent_in
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import ranges
from perfhooks.trace.nesting import captures, device, host, intervals, starts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Intervals

STARVED: Final = 0.2
"""Of the step: the device idles so long because nothing was launched. Small gaps are everywhere; from a fifth on, fewer
or cheaper launches are what helps."""
MANY_LAUNCHES: Final = 50
"""In a step. With fewer, launching is not what takes the time."""
LONG_CALL_NS: Final = 1_000_000
"""A call of the runtime that lasts longer than a millisecond is no launch but something else (allocation, loading of a
module, a wait), and its time is not counted as launching."""
PAUSE_NS: Final = 5_000_000
"""The device idling longer than this at once is no slow launching: between two launches lie some microseconds to some
hundreds of them. Then the host did something else, and the advice would be wrong (the two sampled ranks of a 128-rank
job pause for 10 to 70 ms at a time)."""
NUMPY: Final = 0.05
"""Of the step: what is spent outside of torch after a tensor became an array."""
COMPILING: Final = 0.01
"""Of the step; compiling takes seconds, so whatever is there is far above."""

_PARTS: Final = labels.pattern(labels.VALIDATION, labels.CHECKPOINT)
_NUMPY: Final = r"^<built-in method numpy of Tensor"
_SLACK_NS: Final = 5_000  # clocks of host and device agree to some microseconds


def host_bound(seen: Evidence) -> Iterator[Finding]:
    """The device idles for a fifth of the step or more because the host has not launched its next work yet.

    Source: `STARVED`, `MANY_LAUNCHES`. Gaps between works of the device, up to `PAUSE_NS` long, whose next work was
    launched only after the gap had begun (HolisticTraceAnalysis: "host wait"), less the moments in which the host
    waited for data or the device, validated, saved, or was in a long call (`LONG_CALL_NS`); less what recording itself
    added, where that is known. Silent where a graph is being captured: that is what it would advise.

    Measured: never; on such devices the advice is worth trying.
    """
    launches = seen.mean("launches")
    if not seen.trace.is_device_traced or launches < MANY_LAUNCHES or captures.by_thread(seen.trace):
        return
    starved = seen.per_step(intervals.subtract(_starved(seen), explained(seen)))
    gain = min(starved - seen.recording_ms, seen.host_limit_ms)
    if seen.share(gain) < STARVED:
        return
    wall, busy, kernels = (seen.mean(column) for column in ("wall_ms", "busy_ms", "kernels"))
    yield from seen.finding(
        "host-bound",
        gain,
        is_wait=True,
        title=f"The device idles for {words.ms(gain)} of a {seen.unit} because the host launches too slowly.",
        estimate=(
            "All the time in which the device had nothing queued and the host neither waited nor loaded data: the most "
            "that CUDA graphs can win."
        ),
        evidence=[
            f"{launches:.0f} launches in {words.ms(wall)}, one every {words.ms(wall / launches)}",
            f"{kernels:.0f} kernels of {words.ms(busy / max(kernels, 1))} on average: {words.ms(busy)} of work",
            *most(_host_operators(seen)),
        ],
        advice=(
            "Make fewer and larger launches. torch.compile fuses small kernels, and in mode reduce-overhead replays "
            "them as one CUDA graph; a fused optimizer updates all parameters in a few kernels; a larger batch gives "
            "each launch more to do. If Python itself is slow, the flame graph shows where."
        ),
        code='model = torch.compile(model, mode="reduce-overhead")\noptimizer = torch.optim.AdamW(params, fused=True)',
    )


def synchronisation(seen: Evidence) -> Iterator[Finding]:
    """The host waits for the device, which then idles until the host has launched again, for 1% of the step or more.

    Source: `evidence.NOTABLE`. What counts is the time from the end of the device's work to its next, for each wait; it
    is no more than the wait itself, and than the device idles: without it the host would run ahead by so much.

    Measured: never; on such devices the advice is worth trying.
    """
    trace = seen.trace
    waits = seen.synchronisations.filter(pl.col("host_ms") > 0)
    if not waits.height or not trace.is_device_traced:
        return
    origin = int(trace.start.min())
    ends = origin + np.rint((waits["start_ms"] + waits["host_ms"]).to_numpy() * 1e6).astype(np.int64)
    held = waits["host_ms"].to_numpy() / seen.count
    gaps = np.minimum(_gaps_after(seen, ends) * 1e-6 / seen.count, held)
    gain = min(float(gaps.sum()), seen.device_limit_ms, seen.host_limit_ms)
    if not seen.is_worth(gain):
        return
    names = list(itertools.starmap(_wait, waits.select("call", "operator", "line", "bytes").iter_rows()))
    sources = most(list(zip(names, gaps.tolist(), strict=True)), 5)
    yield from seen.finding(
        "synchronisation",
        gain,
        is_wait=True,
        title=f"The device idles for {words.ms(gain)} of a {seen.unit} after the host has waited for it.",
        estimate=(
            "The time for which the device idles after each wait, no more than that wait itself took: without it the "
            "host would have launched the next work meanwhile."
        ),
        evidence=[
            f"{seen.often(waits)} waits in a {seen.unit}, {words.ms(float(held.sum()))} together; idle after:",
            *sources,
        ],
        advice=(
            "Reading a value on the host (item(), cpu(), nonzero(), a condition on a tensor, printing a loss) makes it "
            "wait until the device has done everything before. Keep such values on the device, add them up there, and "
            "read them once every many steps; make masks with torch.where instead of indices. To find the rest, "
            'torch.cuda.set_sync_debug_mode("warn").'
        ),
        code="total += loss.detach()   # stays on the device\nif step % 100 == 0:\n    print(total.item() / 100)",
    )


def numpy_on_the_host(seen: Evidence) -> Iterator[Finding]:
    """After a tensor became a NumPy array, the host works outside of torch for 5% of the step or more.

    Source: `NUMPY`; the time from each ``Tensor.numpy()`` to the next operator of the same thread, the function that
    asked for it at most. Needs stacks. The loading of data does not count.

    Measured: on a CPU with one thread it did not help: ``examples/bad/numpy_on_the_host.py`` took 79 and 49 ms a step
    with NumPy, 86 and 86 ms with torch. With more threads or on a device it was not measured; it is worth trying.
    """
    moments, calls = _outside_torch(seen)
    spent = seen.per_step(moments)
    gain = min(spent, seen.host_limit_ms)
    if seen.share(gain) < NUMPY:
        return
    lines = [(line or "?", spent / len(calls)) for line in seen.where(calls)]
    yield from seen.finding(
        "numpy-on-the-host",
        gain,
        title=f"The host computes in NumPy for {words.ms(spent)} of a {seen.unit}.",
        estimate="All of that time, if torch takes none for it: on several cores, or on a device where there is one.",
        evidence=[f"tensors that become arrays in a {seen.unit}: {seen.often(calls)}", *most(lines)],
        advice=(
            "Between numpy() and the next operator of torch one core computes while everything else waits. Write that "
            "part in torch: it runs on all cores or on the device, and autograd can follow it."
        ),
        code="values = torch.exp(x) * torch.sin(x)   # not: np.exp(x.numpy()) * np.sin(x.numpy())",
        of=moments,
    )


def recompilation(seen: Evidence) -> Iterator[Finding]:
    """torch.compile compiles inside of recorded steps, for 1% of their time or more.

    Source: `COMPILING`; the ranges that TorchDynamo opens around its phases (``... (dynamo_timed)``). The first
    compilation alone is a start (`start.recorded_start`).

    Measured: on a CPU, where shapes that stay the same took a step of ``examples/bad/recompilation.py`` from 366 and
    377 ms to 64 and 66 ms; 231 ms were promised. On a device it was not measured, so there it is worth trying.
    """
    rows = seen.named(ranges.COMPILING, Kind.OP, Kind.ANNOTATION)
    spent = seen.per_step(seen.spans(rows))
    gain = min(spent, seen.host_limit_ms)
    if seen.share(gain) < COMPILING or not len(rows) or starts.COMPILING in spent_in(seen):
        return
    outer = seen.outermost(rows)
    lines = [(line, spent / len(outer)) for line in seen.where(outer) if line]
    yield from seen.finding(
        "recompilation",
        gain,
        is_measured=not seen.trace.is_device_traced,
        title=f"torch.compile compiles again for {words.ms(spent)} in a {seen.unit}.",
        estimate="All the time of compiling; gone once shapes no longer change, or the warm-up is longer.",
        evidence=[f"{len(outer)} compilations in {seen.numbers}", *most(lines)],
        advice=(
            "Something that the compiled code depends on changes from step to step, mostly the shape of a batch: the "
            "last one is smaller, or sequences differ in length. Drop the odd batch, pad to a few lengths, or mark "
            "the dimension as dynamic. TORCH_LOGS=recompiles names the guard that failed. If it is only the first "
            "compilation, start recording later."
        ),
        code="torch._dynamo.mark_dynamic(batch, 0)   # or: DataLoader(..., drop_last=True)",
        of=seen.spans(rows),
    )


def _wait(call: str, operator: str | None, line: str | None, size: int | None) -> str:
    """Where the host waited, and for how much data if it was for a copy."""
    where = line or operator or call
    return where if size is None else f"{where}, copying {words.size(size)}"


def _starved(seen: Evidence) -> Intervals:
    """The moments of the steps in which the device idled and its next work had not been launched when that began."""
    trace = seen.trace
    idle = intervals.subtract(seen.windows, seen.busy)
    start = trace.start[trace.device_rows]
    order = np.argsort(start, kind="stable")
    launched = device.launch_times(trace)[order]
    following = np.searchsorted(start[order], idle[:, 1], "left")
    # at the end of a step the next work may only come in the next one
    known = following < len(order)
    late = np.append(launched, np.iinfo(np.int64).max)[np.where(known, following, -1)] > idle[:, 0]
    return idle[late & (idle[:, 1] - idle[:, 0] <= PAUSE_NS)]


def explained(seen: Evidence) -> Intervals:
    """The moments in which the host did something that has a name: it waited, loaded, validated or saved."""
    trace = seen.trace
    calls = trace.rows(Kind.RUNTIME)
    long = calls[(trace.end - trace.start)[calls] > LONG_CALL_NS]
    rows = (data_ranges(seen), device.wait_calls(trace), long, seen.named(_PARTS, Kind.ANNOTATION))
    return intervals.joined(*(seen.spans(each) for each in rows))


def _host_operators(seen: Evidence) -> list[tuple[str, float]]:
    rows = seen.operators.filter(pl.col("kind") == "op").select("name", "self_cpu_ms").iter_rows()
    return [(f"{name}, self", time / seen.count) for name, time in rows]


def _gaps_after(seen: Evidence, ends: Ints) -> np.ndarray:
    """How long the device idles after each wait, in nanoseconds; a gap counts for the first wait that ends in it."""
    busy = intervals.joined(seen.busy)
    following = np.searchsorted(busy[:, 0], ends, "right")
    inner = (following > 0) & (following < len(busy))
    before, after = busy[np.maximum(following - 1, 0), 1], busy[np.minimum(following, len(busy) - 1), 0]
    _, first = np.unique(following, return_index=True)
    is_first = np.isin(np.arange(len(ends)), first)
    counts = inner & is_first & (before <= ends + _SLACK_NS)
    return np.where(counts, after - before, 0)


def _outside_torch(seen: Evidence) -> tuple[Intervals, Ints]:
    """From each ``Tensor.numpy()`` to the next operator on its thread or the end of its caller; and these calls."""
    trace, tree = seen.trace, host.tree(seen.trace)
    calls = seen.named(_NUMPY, Kind.PYTHON)
    loading = seen.spans(data_ranges(seen))
    calls = calls[intervals.within(loading, trace.start[calls], trace.end[calls]) == 0]
    if not len(calls):
        return intervals.nothing(), calls
    parent = tree.nesting.parent[tree.entry[calls]]
    until = np.where(parent >= 0, tree.nesting.end[parent], trace.end[calls])
    return seen.clipped(intervals.union(trace.end[calls], np.minimum(until, _next_operator(seen, calls)))), calls


def _next_operator(seen: Evidence, calls: Ints) -> Ints:
    """When the next operator or label begins on the thread of each call, after it."""
    trace = seen.trace
    ops = trace.rows(Kind.OP, Kind.ANNOTATION)
    found = np.full(len(calls), np.iinfo(np.int64).max)
    for thread in intervals.distinct(trace.thread[calls]).tolist():
        here = trace.thread[calls] == thread
        begun = np.append(trace.start[ops[trace.thread[ops] == thread]], np.iinfo(np.int64).max)
        found[here] = begun[np.searchsorted(begun, trace.end[calls[here]])]
    return found
