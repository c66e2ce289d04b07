from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.core import words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import peaks
from perfhooks.trace.names import device_work, runtime_calls
from perfhooks.trace.nesting import device, intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Intervals

STAGED_BYTES: Final = 64 * 1024
"""Maximum pageable copy to the device that returns at once (CUDA's "API synchronization behavior")."""


_PIN_BUFFER: Final = (
    "Copy into pinned memory that is allocated once, with non_blocking=True, and read it after the next launches. "
    "Copies from or to unpinned memory go through a buffer, so the host waits for them. This affects batches, and "
    "results that are read with cpu() or numpy(). If the device is idle during the call, the call allocates or touches "
    "memory first: reuse the buffer."
)


_PIN_BATCHES: Final = (
    "Use pinned memory in the loader, and copy batches with non_blocking=True. The device then copies at full "
    "speed, and the host continues. To hide the copy, copy the next batch on a second stream during the current "
    "step. Copy tensors that never change once, before the loop."
)
_PIN_OTHERS: Final = (
    "The loader pins its batches. So these are copies of other tensors, or of batches whose class has no "
    "pin_memory() method. Add this method, pin the tensors that the loop creates, and copy them with "
    "non_blocking=True. Copy tensors that never change once, before the loop."
)


def only_copies(window: Evidence) -> Iterator[Finding]:
    """The trace has copies, but no kernels and no launches of kernels.

    Source: the records of the copies, and the bus of the device by its datasheet (`perfhooks.trace.limits`). If no copy
    crosses the bus, the limit is the memory, which a copy both reads and writes.

    Not measured.
    """
    trace = window.trace
    is_alone = not len(trace.rows(Kind.KERNEL)) and not len(device.launch_calls(trace))
    copies = window.copies.filter(pl.col("bytes") > 0, pl.col("duration_ms") > 0)
    if not is_alone or not copies.height or not len(window.work):
        return
    bus_copies = copies.filter(pl.col("kind").ne_missing(device_work.WITHIN_DEVICE))
    table, device_peaks = (bus_copies if bus_copies.height else copies), peaks.of_trace(trace)
    bus = (device_peaks.bus_gb_per_s if bus_copies.height else device_peaks.gb_per_s / 2) if device_peaks else None
    link = "bus" if bus_copies.height else "memory"
    time_ms, size = float(table["duration_ms"].sum()) / window.count, int(table["bytes"].sum()) / window.count
    least = size / bus * 1e-6 if bus else 0.0
    rate = f"{size / time_ms * 1e-6:.3g} GB/s" + (f", {words.share(least / time_ms)} of its {link}" if bus else "")
    gain = min(time_ms - least, window.device_limit_ms) if bus else 0.0
    yield from window.finding(
        "only-copies",
        gain if window.is_worth(gain) else None,
        title=f"The device only copies: {words.size(size)} in a {window.unit} at {rate}.",
        estimate=f"The copy time above that of the {link} at full speed, and at most the time the host waits for it.",
        evidence=[
            *_direction_lines(table),
            f"the {link} carries {bus:g} GB/s: {device_peaks.source}" if device_peaks and bus else _BUSES,
        ],
        advice=(
            "Copy from and to pinned memory, in few large pieces. Copy in both directions at once on two streams. "
            "If the rate is near the limit, copy less: use smaller types, or keep tensors on the device."
        ),
        code="buffer = torch.empty(shape, pin_memory=True)   # once\nbuffer.copy_(result, non_blocking=True)",
    )


_BUSES: Final = "PCI Express with 16 lanes carries 16, 32 and 64 GB/s per direction in versions 3, 4 and 5"


def _direction_lines(table: pl.DataFrame) -> list[str]:
    kinds = table.group_by("kind", "source", "target").agg(pl.len(), pl.col("bytes", "duration_ms").sum())
    return [
        f"{words.count(row['len'], f'copy {name}', f'copies {name}')}: {words.size(row['bytes'])} in "
        f"{words.ms(row['duration_ms'])}, {row['bytes'] / row['duration_ms'] * 1e-6:.3g} GB/s"
        for row in kinds.sort("duration_ms", descending=True).iter_rows(named=True)
        for name in [f"{row['kind']} ({row['source'] or '?'} -> {row['target'] or '?'})"]
    ]


def blocking_copies(window: Evidence) -> Iterator[Finding]:
    """Copies of more than 64 KB from unpinned memory take 1% of the step or more while no kernel runs.

    Source: `STAGED_BYTES` and `evidence.NOTABLE`. ROCm traces do not distinguish pinned from pageable memory. There,
    copies count if their call waits for them.

    Not measured.
    """
    rows, trace = _unpinned(window), window.trace
    kernels = intervals.of_slices(trace, trace.rows(Kind.KERNEL))
    without_kernels = intervals.subtract(intervals.of_slices(trace, rows), kernels)
    gain = min(window.per_step(without_kernels), window.mean("exposed_copy_ms"))
    if not window.is_worth(gain):
        return
    yield from window.finding(
        "blocking-copies",
        gain,
        title=f"Copies from unpinned memory delay the kernels by {words.ms(gain)} in a {window.unit}.",
        estimate=(
            "The time of these copies without kernels, if each copy runs earlier on its own stream. Pinned memory "
            "alone makes the copies faster and removes the wait of the host."
        ),
        evidence=_unpinned_lines(window, rows),
        advice=_PIN_OTHERS
        if window.circumstances.loader is not None and window.circumstances.loader.pin_memory
        else _PIN_BATCHES,
        code=window.code_for("pinned batches"),
    )


def held_by_copies(window: Evidence) -> Iterator[Finding]:
    """Copy calls block the host for 1% of the step or more, while no kernel runs and the host waits for none.

    Source: `evidence.NOTABLE`; calls longer than `device.BLOCKED_NS` on threads that launch kernels. Moments with
    kernels or other work, the gaps between them (`device.LATENCY_NS`) and those of `blocking_copies` do not count.
    There are two causes. A copy from or to unpinned memory makes the call wait. A call that allocates or touches memory
    first delays the copy, so no device works. Calls that wait for earlier work that has not begun belong to
    `machine.shared_device`.

    Not measured.
    """
    trace = window.trace
    if not window.is_device_traced:
        return
    calls = _slow_calls(window)
    other_work = trace.device_rows[(trace.kind[trace.device_rows] == Kind.KERNEL) | ~np.isin(trace.launches, calls)]
    busy = intervals.union(trace.start[other_work], trace.end[other_work] + device.LATENCY_NS)
    blocked = intervals.subtract(window.spans(calls), intervals.joined(busy, window.spans(_unpinned(window))))
    blocked = intervals.subtract(blocked, _queued(window, calls))
    blocked_ms, idle_ms = window.per_step(blocked), window.per_step(intervals.subtract(blocked, window.busy))
    yield from window.finding(
        "held-by-copies",
        blocked_ms,
        title=f"Copy calls block the host for {words.ms(blocked_ms)} of a {window.unit} while no kernel runs.",
        estimate="The time of these calls without kernels.",
        evidence=[
            (
                f"{window.count_per_step(calls)} such calls in a {window.unit}, "
                f"{words.ms(window.per_step(window.spans(calls)))} together"
            ),
            f"during {words.ms(idle_ms)} of it the device was idle, even without a copy",
            *_copied_lines(window, calls),
            *(window.by_line(calls) or window.by_name(calls)),
        ],
        advice=_PIN_BUFFER,
        code="buffer = torch.empty(shape, pin_memory=True)   # once\nbuffer.copy_(result, non_blocking=True)",
        of=blocked,
    )


def _queued(window: Evidence, calls: Ints) -> Intervals:
    trace = window.trace
    launched, end = device.launch_times(trace), trace.end[trace.device_rows]
    order = np.argsort(launched, kind="stable")
    done_ns = np.append(0, np.maximum.accumulate(end[order]) if len(order) else end)
    free_ns = done_ns[np.searchsorted(launched[order], trace.start[calls], "left")]
    return window.clipped(intervals.union(trace.start[calls], np.clip(free_ns, trace.start[calls], trace.end[calls])))


def _slow_calls(window: Evidence) -> Ints:
    trace = window.trace
    calls = window.matching(runtime_calls.COPY, Kind.RUNTIME)
    launches = trace.launches[trace.kind[trace.device_rows] == Kind.KERNEL]
    calls = calls[np.isin(trace.thread[calls], trace.thread[launches[launches >= 0]])]
    return calls[(trace.end - trace.start)[calls] > device.BLOCKED_NS]


def _copied_lines(window: Evidence, calls: Ints) -> list[str]:
    trace = window.trace
    work = trace.device_rows[np.isin(trace.launches, calls)]
    names = [f"{trace.names[trace.name[row]]}, {words.size(trace.argument('nbytes')[row])}" for row in work.tolist()]
    return top_lines(list(zip(names, window.lengths(window.launch_of(work)), strict=True)), 2)


def _unpinned(window: Evidence) -> Ints:
    trace = window.trace
    rows = window.work_named(device_work.UNPINNED, Kind.COPY)
    pageable = window.work_named(device_work.PAGEABLE, Kind.COPY)
    waiting = window.matching(runtime_calls.WAITING_COPY, Kind.RUNTIME)
    rows = rows[[row in pageable or call in waiting for row, call in zip(rows, window.launch_of(rows), strict=True)]]
    size = trace.argument("nbytes")[rows]
    return rows[(size > STAGED_BYTES) | (size < 0)]


def _unpinned_lines(window: Evidence, rows: Ints) -> list[str]:
    trace = window.trace
    size, span = trace.argument("nbytes")[rows], (trace.end - trace.start)[rows]
    evidence = [
        f"{window.count_per_step(rows)} such copies in a {window.unit}, {words.ms(window.device_ms(rows))} together"
    ]
    if (size >= 0).all() and span.sum():
        volume, speed = size.sum() / window.count, size.sum() / span.sum()
        evidence.append(f"{words.size(volume)} in a {window.unit} at {speed:.3g} GB/s")
    calls = window.launch_of(rows)
    lines = zip(window.lines_of(calls[calls >= 0]), window.lengths(rows[calls >= 0]), strict=True)
    return evidence + top_lines([(line, time) for line, time in lines if line])
