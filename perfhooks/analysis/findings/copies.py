from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import peaks
from perfhooks.trace.names import device_work, runtime_calls
from perfhooks.trace.nesting import device, intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.analysis.findings.texts import EvidenceLine, FindingText
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Intervals

STAGED_BYTES: Final = 64 * 1024
"""Maximum bytes of a host-to-device copy from pageable memory whose call does not wait for the copy (CUDA's "API
synchronization behavior").
"""


def only_copies(window: Evidence) -> Iterator[Finding]:
    """Report a trace with copies, but without kernels and launches of kernels.

    The gain is the copy time minus the time at the bus bandwidth of the device's datasheet. For copies within the
    device, half of the memory bandwidth is the limit, because a copy both reads and writes. For copies between devices,
    the gain is unknown.
    """
    trace = window.trace
    is_alone = not len(trace.rows(Kind.KERNEL)) and not len(device.launch_calls(trace))
    copies = window.copies.filter(pl.col("bytes") > 0, pl.col("duration_ms") > 0)
    if not is_alone or not copies.height or not len(window.work):
        return
    bus_copies = copies.filter(pl.col("kind").is_in(device_work.ACROSS_BUS))
    table, device_peaks = (bus_copies if bus_copies.height else copies), peaks.of_trace(trace)
    bus = None
    if device_peaks and bus_copies.height:
        bus = device_peaks.bus_gb_per_s
    elif device_peaks and copies["kind"].eq_missing(device_work.WITHIN_DEVICE).all():
        bus = device_peaks.gb_per_s / 2
    time_ms, size = float(table["duration_ms"].sum()) / window.count, int(table["bytes"].sum()) / window.count
    least = size / bus * 1e-6 if bus else 0.0
    gain = min(time_ms - least, window.device_limit_ms) if bus else 0.0
    text = window.texts(
        "only-copies",
        "known-limit" if bus else "",
        bytes=size,
        rate=_rate(size, time_ms),
        link="bus" if bus_copies.height else "memory",
        of_limit=least / time_ms,
    )
    limit = text("limit", bus=bus, source=device_peaks.source) if device_peaks and bus else text("unknown-limit")
    evidence = [*_direction_lines(text, table), limit]
    yield from window.finding(text, gain if window.is_worth(gain) else None, evidence=evidence)


def _rate(size: float, time_ms: float) -> float:
    return size / time_ms * 1e-6


def _direction_lines(text: FindingText, table: pl.DataFrame) -> list[EvidenceLine]:
    kinds = table.group_by("kind", "source", "target").agg(pl.len(), pl.col("bytes", "duration_ms").sum())
    return [
        text(
            "direction",
            copies=row["len"],
            kind=row["kind"] or "",
            source=row["source"] or "?",
            target=row["target"] or "?",
            bytes=row["bytes"],
            time_ms=row["duration_ms"],
            rate=_rate(row["bytes"], row["duration_ms"]),
        )
        for row in kinds.sort("duration_ms", descending=True).iter_rows(named=True)
    ]


def blocking_copies(window: Evidence) -> Iterator[Finding]:
    """Report copies from unpinned memory without a concurrent kernel for at least 1% of the step (`evidence.NOTABLE`).

    Only copies of more than 64 KB (`STAGED_BYTES`) count. ROCm traces do not distinguish pinned from pageable memory:
    in ROCm traces, a copy counts if its call waits for the copy.
    """
    rows, trace = _unpinned(window), window.trace
    if not len(trace.rows(Kind.KERNEL)):
        return
    kernels = intervals.of_slices(trace, trace.rows(Kind.KERNEL))
    without_kernels = intervals.subtract(intervals.of_slices(trace, rows), kernels)
    delay_ms = min(window.per_step(without_kernels), window.mean("exposed_copy_ms"))
    if not window.is_worth(delay_ms):
        return
    loader = window.circumstances.loader
    text = window.texts(
        "blocking-copies", "pinned-batches" if loader is not None and loader.pin_memory else "", delay_ms=delay_ms
    )
    calls = window.launch_of(rows)
    waits_ms = window.per_step(intervals.joined(without_kernels, window.spans(calls[calls >= 0])))
    idle_ms = max(window.unprofiled_ms - window.mean("busy_ms"), 0.0)
    gain = min(max(waits_ms, delay_ms), delay_ms + idle_ms, window.unprofiled_ms)
    yield from window.finding(text, gain, evidence=_unpinned_lines(text, window, rows))


def held_by_copies(window: Evidence) -> Iterator[Finding]:
    """Report copy calls that block the host for at least 1% of the step (`evidence.NOTABLE`) while no kernel runs.

    Only calls longer than `device.BLOCKED_NS` count, on threads that launch kernels. The time of other device work, of
    gaps up to `device.LATENCY_NS` after this work, and of `blocking_copies` does not count.
    `machine.shared_device` reports calls that wait for earlier, delayed work.
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
    text = window.texts("held-by-copies", blocked_ms=blocked_ms)
    evidence = [
        text("count", count=window.count_per_step(calls), together_ms=window.per_step(window.spans(calls))),
        text("idle", idle_ms=idle_ms),
        *_copied_lines(text, window, calls),
        *(window.by_line(calls) or window.by_name(calls)),
    ]
    yield from window.finding(text, blocked_ms, evidence=evidence, of=blocked)


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


def _copied_lines(text: FindingText, window: Evidence, calls: Ints) -> list[EvidenceLine]:
    trace = window.trace
    work = trace.device_rows[np.isin(trace.launches, calls)]
    sizes = trace.argument("nbytes")
    names = [text("copy", name=trace.names[trace.name[row]], bytes=sizes[row]) for row in work.tolist()]
    return top_lines(list(zip(names, window.lengths(window.launch_of(work)), strict=True)), 2)


def _unpinned(window: Evidence) -> Ints:
    trace = window.trace
    rows = window.work_named(device_work.UNPINNED, Kind.COPY)
    pageable = window.work_named(device_work.PAGEABLE, Kind.COPY)
    waiting = window.matching(runtime_calls.WAITING_COPY, Kind.RUNTIME)
    rows = rows[[row in pageable or call in waiting for row, call in zip(rows, window.launch_of(rows), strict=True)]]
    size = trace.argument("nbytes")[rows]
    return rows[(size > STAGED_BYTES) | (size < 0)]


def _unpinned_lines(text: FindingText, window: Evidence, rows: Ints) -> list[EvidenceLine]:
    trace = window.trace
    size, span = trace.argument("nbytes")[rows], (trace.end - trace.start)[rows]
    evidence = [text("count", count=window.count_per_step(rows), together_ms=window.device_ms(rows))]
    if (size >= 0).all() and span.sum():
        evidence.append(text("speed", bytes=size.sum() / window.count, speed=size.sum() / span.sum()))
    calls = window.launch_of(rows)
    lines = zip(window.lines_of(calls[calls >= 0]), window.lengths(rows[calls >= 0]), strict=True)
    return evidence + top_lines([(line, time) for line, time in lines if line])
