from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.analysis.findings.finding import MAJOR
from perfhooks.core import labels
from perfhooks.run.circumstances import BUSY
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import device_work, runtime_calls
from perfhooks.trace.nesting import intervals, missing_work
from perfhooks.trace.tables import device_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding

_MIN_STEPS: Final = 3
"""Minimum steps to compute a median. The evidence names at most as many steps."""
LATE_NS: Final = 1_000_000
"""Minimum delay in ns from a launch to the start of the kernel on an idle device. Usual delays are microseconds, and
milliseconds on a device with several processes.
"""


def busy_machine(window: Evidence) -> Iterator[Finding]:
    """Report that the thread of the steps waited for a CPU for at least 5% of its time.

    The threshold is `perfhooks.run.circumstances.BUSY`, for Linux's run-queue wait (`perfhooks.record.watch.counters`).
    """
    circumstances, others = window.capture.circumstances, window.capture.cost.others
    if not window.is_busy:
        return
    version = "" if others is None else "alone" if others < BUSY else "beside-others"
    threads = max(1, (circumstances.cores or 8) // (2 * max(circumstances.ranks, 1)))
    text = window.texts("busy-machine", version, others=others, queued=circumstances.queued, threads=threads)
    evidence = [text("threshold", threshold=BUSY)]
    if circumstances.cores is not None:
        evidence.append(text("cpus", cpus=circumstances.cores, ranks=circumstances.ranks))
    if others is not None:
        evidence.append(text("others"))
    yield from window.finding(text, None, evidence=evidence, doubts_others=True)


def held_clocks(window: Evidence) -> Iterator[Finding]:
    """Report sampled hardware counters of the device, because CUPTI fixes the device clocks during sampling.

    The check ``clocks-locked`` of `perfhooks.trace.tables.checks` finds these counters.
    """
    sampled = window.tables.checks.filter(name=labels.CLOCKS_CHECK)
    if not sampled.height:
        return
    text = window.texts("held-clocks")
    counters = text("counters", count=sampled["count"].item(), example=sampled["first"].item())
    yield from window.finding(text, None, evidence=[counters], doubts_others=True)


def lowered_clock(window: Evidence) -> Iterator[Finding]:
    """Report steps at least 10% longer than the median, if the device clock is lower by the same ratio or more.

    At least half of the extra time must be device work, with no more kernels than in other steps, because a waiting
    device lowers its clock, too.
    """
    clocks = window.tables.counters.filter((pl.col("unit") == "MHz") & (pl.col("mean") > 0), pl.col("covered_ms") > 0)
    samples = clocks.drop_nulls("integral").join(window.steps.drop_nulls("step"), on="step")
    usual = {
        name: pl.col(name).median().over("counter", "device")
        for name in ("wall_ms", "mean", "device_busy_ms", "kernels")
    }
    extra = pl.col("wall_ms") - usual["wall_ms"]
    slow = samples.with_columns(
        extra.alias("extra"),
        *(of.alias(f"usual_{name}") for name, of in usual.items()),
        (pl.col("wall_ms") / usual["wall_ms"]).alias("longer"),
        (usual["mean"] / pl.col("mean")).alias("lower"),
    ).filter(
        pl.len().over("counter", "device") >= _MIN_STEPS,
        pl.col("longer") >= 1 + MAJOR,
        pl.col("lower") >= pl.col("longer"),
        2 * (pl.col("device_busy_ms") - pl.col("usual_device_busy_ms")) >= pl.col("extra"),
        pl.col("kernels") <= pl.col("usual_kernels"),
    )
    slow = slow.sort("lower", descending=True).unique("step", keep="first", maintain_order=True)
    if not slow.height:
        return
    extra_ms = float(slow["extra"].sum())
    text = window.texts(
        "lowered-clock",
        "several" if slow.height > 1 else "",
        step=slow["step"][0],
        slow=slow.height,
        profiled=window.count,
        longer_ms=extra_ms / slow.height,
    )
    evidence = [text("step", **row) for row in slow.head(3).iter_rows(named=True)]
    yield from window.finding(text, extra_ms / window.count, evidence=evidence)


def shared_device(window: Evidence) -> Iterator[Finding]:
    """Report kernels that begin at least 1 ms after their launch on an idle device.

    The thresholds are `LATE_NS`, and `evidence.NOTABLE` for idle time of the cause ``launched, not started``. Graph
    launches do not count, because a graph may need time to begin. There is no finding if the trace lacks kernels, or if
    host functions or unrecorded waits of an NPU may delay streams.
    """
    trace, gaps = window.trace, window.idle
    if not window.is_device_traced or _may_wait_unrecorded(window):
        return
    graphs = trace.chosen(runtime_calls.GRAPH.search, Kind.RUNTIME)
    pending = (gaps.cause == device_time.PENDING) & ~np.isin(np.append(trace.launches, -1)[gaps.work], graphs)
    delay = window.gaps.summed(np.where(pending, gaps.length, 0))
    late = pending & (delay >= LATE_NS)[window.gaps.of]
    if not late.any():
        return
    delay_ms, rows = (
        window.per_step(window.idle_for(device_time.PENDING, among=late)),
        trace.device_rows[gaps.work[late]],
    )
    kernels = [device_work.family(trace.names[name]) for name in trace.name[rows].tolist()]
    lengths = (gaps.length[late] * intervals.MS / max(window.count, 1)).tolist()
    text = window.texts("shared-device", delay_ms=delay_ms)
    late_text = text("late", late=window.count_per_step(np.unique(rows)), longest_ms=float(delay.max()) * intervals.MS)
    evidence = [late_text, text("idle"), *top_lines(list(zip(kernels, lengths, strict=True)))]
    yield from window.finding(text, delay_ms, is_wait=True, evidence=evidence)


def _may_wait_unrecorded(window: Evidence) -> bool:
    trace = window.trace
    is_npu = len(trace.chosen(runtime_calls.ASYNCHRONOUS.search, Kind.RUNTIME)) > 0
    return (
        is_npu
        or missing_work.is_sampled(trace)
        or len(trace.chosen(runtime_calls.OUTER_WAIT.search, Kind.RUNTIME, Kind.OTHER)) > 0
    )


def profiler_overhead(window: Evidence) -> Iterator[Finding]:
    """Report that the median profiled step takes at least 1.5 times (`LARGE`) as long as the median unprofiled step."""
    cost = window.capture.cost
    if not cost.is_large or window.capture.circumstances.is_busy:
        return
    options = [name for name in ("with_stack", "profile_memory", "record_shapes") if window.capture.options.get(name)]
    shown = [window.option(name) for name in options]
    off = ", ".join(f"{name}=False" for name in options)
    launched = options and window.circumstances.is_launched
    text = window.texts(
        "profiler-overhead",
        "options" if options else "",
        "launched" if launched else "",
        slowdown=cost.slowdown,
        off=off,
        flags=" ".join(shown),
    )
    evidence = [text("times", profiled_ms=cost.recorded_step_ms or 0.0, unprofiled_ms=cost.idle_step_ms or 0.0)]
    evidence += [text("options", options=", ".join(shown))] if options else []
    yield from window.finding(text, None, evidence=evidence)
