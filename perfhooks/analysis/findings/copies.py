"""Copies for which the host or the device waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.analysis.findings.evidence import most
from perfhooks.core import words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import peaks
from perfhooks.trace.names import device_work, runtime_calls
from perfhooks.trace.nesting import device, intervals
from perfhooks.trace.tables import device_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Intervals

STAGED_BYTES: Final = 64 * 1024
"""A pageable copy to the device of up to 64 KB returns before it is done (CUDA's "API synchronization behavior"):
nothing waits for it."""

SLOW_NS: Final = 50_000
"""A call that asks for a copy and returns takes 5 to 15 us; HolisticTraceAnalysis calls one above 50 us an outlier."""


_WAITS_FOR_ITSELF: Final = (
    "A copy from or to memory that is not pinned goes through a buffer, and the host waits for it. That is so for "
    "results that are read with cpu() or numpy(), and for batches. Copy into pinned memory that is allocated once, "
    "without waiting, and read it after the next launches. If no device works behind the call, it allocates or touches "
    "memory first: keep the buffer."
)


_OF_BATCHES: Final = (
    "Have the loader put batches into pinned memory, and copy them without waiting: the device then reads them at full "
    "speed while the host goes on. To hide the copy, copy the next batch on a second stream while the device computes "
    "this one. Copy tensors that never change once, before the loop."
)
_OF_OTHERS: Final = (
    "The loader pins its batches, so these are copies of something else, or of batches of a class that has no "
    "pin_memory() of its own: give that class one, pin what is made in the loop, and copy it without waiting. Tensors "
    "that never change belong on the device once, before the loop."
)


def only_copies(window: Evidence) -> Iterator[Finding]:
    """The trace has copies and no kernel, neither run nor launched.

    Source: the records of the copies, and the bus of the device by its datasheet (`perfhooks.trace.limits`). If no copy
    crosses the bus, the limit is memory, which a copy reads and writes.

    Measured: never; the gain is an upper bound.
    """
    trace = window.trace
    is_alone = not len(trace.rows(Kind.KERNEL)) and not len(device.launch_calls(trace))
    every = window.copies.filter(pl.col("bytes") > 0, pl.col("duration_ms") > 0)
    if not is_alone or not every.height or not len(window.work):
        return
    across = every.filter(pl.col("kind").ne_missing(device_work.WITHIN_DEVICE))
    table, known = (across if across.height else every), peaks.of_trace(trace)
    bus = (known.bus_gb_per_s if across.height else known.gb_per_s / 2) if known else None
    link = "bus" if across.height else "memory"
    spent, size = float(table["duration_ms"].sum()) / window.count, int(table["bytes"].sum()) / window.count
    least = size / bus * 1e-6 if bus else 0.0
    rate = f"{size / spent * 1e-6:.3g} GB/s" + (f", {words.share(least / spent)} of its {link}" if bus else "")
    gain = min(spent - least, window.device_limit_ms) if bus else 0.0
    yield from window.finding(
        "only-copies",
        gain if window.is_worth(gain) else None,
        title=f"The device only copies: {words.size(size)} of a {window.unit} at {rate}.",
        estimate=f"The time of these copies beyond that of the {link} at full speed, as far as the host waits for it.",
        evidence=[
            *_directions(table),
            f"the {link} carries {bus:g} GB/s: {known.source}" if known and bus else _BUSES,
        ],
        advice=(
            "Copy from and to pinned memory, in few large pieces, and both ways at once on two streams. If the rate is "
            "near the limit, copy less: smaller types, or tensors that stay on the device."
        ),
        code="buffer = torch.empty(shape, pin_memory=True)   # once\nbuffer.copy_(result, non_blocking=True)",
    )


_BUSES: Final = "PCI Express with 16 lanes carries 16, 32 and 64 GB/s each way in its versions 3, 4 and 5"


def _directions(table: pl.DataFrame) -> list[str]:
    """The copies of each direction and kind of memory, with their rate, most time first."""
    kinds = table.group_by("kind", "source", "target").agg(pl.len(), pl.col("bytes", "duration_ms").sum())
    return [
        f"{words.count(row['len'], f'copy {name}', f'copies {name}')}: {words.size(row['bytes'])} in "
        f"{words.ms(row['duration_ms'])}, {row['bytes'] / row['duration_ms'] * 1e-6:.3g} GB/s"
        for row in kinds.sort("duration_ms", descending=True).iter_rows(named=True)
        for name in [f"{row['kind']} ({row['source'] or '?'} -> {row['target'] or '?'})"]
    ]


def blocking_copies(window: Evidence) -> Iterator[Finding]:
    """Copies of more than 64 KB from memory that is not pinned take 1% of the step or more, while no kernel runs.

    Source: `STAGED_BYTES` and `evidence.NOTABLE`. Where the recorder does not tell pinned memory from pageable (ROCm),
    copies whose call waits for them.

    Measured: never; the gain is an upper bound.
    """
    rows, trace = _unpinned(window), window.trace
    kernels = intervals.of_slices(trace, trace.rows(Kind.KERNEL))
    alone = intervals.subtract(intervals.of_slices(trace, rows), kernels)
    gain = min(window.per_step(alone), window.mean("exposed_copy_ms"))
    if not window.is_worth(gain):
        return
    yield from window.finding(
        "blocking-copies",
        gain,
        title=f"Copies from memory that is not pinned keep the device waiting for {words.ms(gain)} in a {window.unit}.",
        estimate=(
            "The time of these copies in which no kernel ran: gone if each is made ahead, on a stream of its own; "
            "pinning alone makes them faster and spares the host the wait."
        ),
        evidence=_evidence(window, rows),
        advice=_OF_OTHERS
        if window.circumstances.loader is not None and window.circumstances.loader.pin_memory
        else _OF_BATCHES,
        code=window.code_for("pinned batches"),
    )


def held_by_copies(window: Evidence) -> Iterator[Finding]:
    """Calls that copy hold the host for 1% of the step or more, while no kernel runs and none is waited for.

    Source: `evidence.NOTABLE`; calls longer than `SLOW_NS` on threads that launch kernels, less the moments in which a
    kernel or other work ran, the gaps between these (`device_time.LATENCY_NS`) and those of `blocking_copies`. Two
    things do that: a copy from or to memory that is not pinned, for which the call waits; and a call behind which no
    device works at all, because it allocates or touches memory first. A call that waits for earlier work that has not
    begun does not count: see `machine.shared_device`.

    Measured: never; the gain is an upper bound.
    """
    trace = window.trace
    if not window.is_device_traced:
        return
    calls = _slow_calls(window)
    others = trace.device_rows[(trace.kind[trace.device_rows] == Kind.KERNEL) | ~np.isin(trace.launches, calls)]
    working = intervals.union(trace.start[others], trace.end[others] + device_time.LATENCY_NS)
    held = intervals.subtract(window.spans(calls), intervals.joined(working, window.spans(_unpinned(window))))
    held = intervals.subtract(held, _queued(window, calls))
    spent, idle = window.per_step(held), window.per_step(intervals.subtract(held, window.busy))
    yield from window.finding(
        "held-by-copies",
        spent,
        title=f"Calls that copy hold the host for {words.ms(spent)} of a {window.unit} while no kernel runs.",
        estimate="The time for which these calls took and no kernel ran.",
        evidence=[
            (
                f"{window.count_per_step(calls)} such calls in a {window.unit}, "
                f"{words.ms(window.per_step(window.spans(calls)))} together"
            ),
            f"for {words.ms(idle)} of it no work of a device was recorded, not even the copy",
            *_what_was_copied(window, calls),
            *(window.by_line(calls) or window.by_name(calls)),
        ],
        advice=_WAITS_FOR_ITSELF,
        code="buffer = torch.empty(shape, pin_memory=True)   # once\nbuffer.copy_(result, non_blocking=True)",
        of=held,
    )


def _queued(window: Evidence, calls: Ints) -> Intervals:
    """The time of some calls until all is done that was launched before them."""
    trace = window.trace
    launched, end = device.launch_times(trace), trace.end[trace.device_rows]
    order = np.argsort(launched, kind="stable")
    done = np.append(0, np.maximum.accumulate(end[order]) if len(order) else end)
    free = done[np.searchsorted(launched[order], trace.start[calls], "left")]
    return window.clipped(intervals.union(trace.start[calls], np.clip(free, trace.start[calls], trace.end[calls])))


def _slow_calls(window: Evidence) -> Ints:
    """The long calls that copy, on threads that launch kernels."""
    trace = window.trace
    calls = window.named(runtime_calls.COPY, Kind.RUNTIME)
    launches = trace.launches[trace.kind[trace.device_rows] == Kind.KERNEL]
    calls = calls[np.isin(trace.thread[calls], trace.thread[launches[launches >= 0]])]
    return calls[(trace.end - trace.start)[calls] > SLOW_NS]


def _what_was_copied(window: Evidence, calls: Ints) -> list[str]:
    """The copies that some calls asked for, by name and size, the longest calls first."""
    trace = window.trace
    work = trace.device_rows[np.isin(trace.launches, calls)]
    names = [f"{trace.names[trace.name[row]]}, {words.size(trace.argument('nbytes')[row])}" for row in work.tolist()]
    return most(list(zip(names, window.lengths(window.launch_of(work)), strict=True)), 2)


def _unpinned(window: Evidence) -> Ints:
    """The copies to the device from memory that is not pinned, large enough that the host waits for them; slices."""
    trace = window.trace
    rows = window.work_named(device_work.UNPINNED, Kind.COPY)
    pageable = window.work_named(device_work.PAGEABLE, Kind.COPY)
    waiting = window.named(runtime_calls.WAITING_COPY, Kind.RUNTIME)
    rows = rows[[row in pageable or call in waiting for row, call in zip(rows, window.launch_of(rows), strict=True)]]
    size = trace.argument("nbytes")[rows]
    return rows[(size > STAGED_BYTES) | (size < 0)]


def _evidence(window: Evidence, rows: Ints) -> list[str]:
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
    return evidence + most([(line, time) for line, time in lines if line])
