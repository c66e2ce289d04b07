from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.analysis.findings.finding import MAJOR
from perfhooks.core import labels, words
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
"""Minimum steps for a median step, and maximum steps in the evidence."""
LATE_NS: Final = 1_000_000
"""Minimum delay of launched work on an idle device. Usual delays are microseconds, on a shared device milliseconds."""

_FEWER_OPTIONS: Final = (
    "Record fewer options at a time: stacks cost most, then shapes and memory. All host times of this window are "
    "too long, those of small operators most. Compare with a window without these options before you optimise host "
    "code."
)
_NO_OPTIONS: Final = (
    "Trust the times of unprofiled steps. All host times of this window are too long, those of small operators "
    "most, so use it only for the order of parts. No recorded option can be disabled."
)


def busy_machine(window: Evidence) -> Iterator[Finding]:
    """The thread of the steps waited for a CPU for 5% of its time or more.

    Source: `perfhooks.run.circumstances.BUSY`; the counters of Linux, see `perfhooks.record.watch.counters`.

    Not measured: the fix has no gain.
    """
    circumstances = window.capture.circumstances
    if not window.is_busy:
        return
    threads = max(1, (circumstances.cores or 8) // (2 * max(circumstances.ranks, 1)))
    yield from window.finding(
        "busy-machine",
        None,
        title=(
            f"This job waited for a CPU {words.share(circumstances.queued or 0.0)} of the time, so times are too high."
        ),
        estimate="No gain: the times of all other findings are too long.",
        evidence=[
            f"threshold of this finding: {words.share(BUSY)}; an idle host stays below 1%",
            *(
                []
                if circumstances.cores is None
                else [f"CPUs: {circumstances.cores}, processes of this job: {circumstances.ranks}"]
            ),
        ],
        advice=(
            "Record again when the host is idle. If this job causes the load, use fewer threads or workers. Other "
            "programs, or threads and workers of this job, need more CPUs than the host has. Trust counts (calls, "
            "shapes, types, launches) and the order of parts, but not milliseconds."
        ),
        doubts_others=True,
        code=f"torch.set_num_threads({threads})   # with the workers of the loader, fewer than CPUs",
    )


def held_clocks(window: Evidence) -> Iterator[Finding]:
    """Counters were sampled inside the device. CUPTI fixes the device clocks during sampling.

    Source: the check ``clocks-locked`` of `perfhooks.trace.tables.checks`.

    Not measured: the fix has no gain.
    """
    sampled = window.tables.checks.filter(name=labels.CLOCKS_CHECK)
    if not sampled.height:
        return
    yield from window.finding(
        "held-clocks",
        None,
        title="Counter sampling fixed the device clocks, so device times differ from those without sampling.",
        estimate="There is no gain. The times of all other findings were measured at fixed clocks.",
        evidence=[f"sampled counters: {sampled['count'].item()}, for example {sampled['first'].item()}"],
        advice=(
            "Record another window without sampling for times and comparisons. Trust the counts (calls, shapes, "
            "launches) and the counters of this window."
        ),
        doubts_others=True,
        code="torch.profiler.profile(...)   # without PerformanceMetricsConfig",
    )


def lowered_clock(window: Evidence) -> Iterator[Finding]:
    """A step took at least 10% longer than the median, and its device clock was lower by the same ratio or more.

    At least half of the extra time must be device work, with no more kernels than in other steps. A waiting device
    lowers its clock too, but the clock is not the cause.

    Source: the counters in MHz of `perfhooks.trace.tables.counters`, over steps with samples.

    Not measured.
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
    steps = f"{slow.height} of {window.count} profiled steps" if slow.height > 1 else f"Step {slow['step'].item()}"
    yield from window.finding(
        "lowered-clock",
        float(slow["extra"].sum()) / window.count,
        title=f"{steps} took {words.ms(float(slow['extra'].sum()) / slow.height)} longer at a lower device clock.",
        estimate="The excess of these steps over the median step.",
        evidence=[
            f"step {row['step']}: {words.ms(row['wall_ms'])} with {row['counter']} at {row['mean']:.4g}; the "
            f"median step takes {words.ms(row['usual_wall_ms'])} with {row['usual_mean']:.4g}"
            for row in slow.head(3).iter_rows(named=True)
        ],
        advice=(
            "Query the reason, then check the cooling, the power limit and other processes on the device. A device "
            "lowers its clock if it becomes too hot or reaches its power limit."
        ),
        code=window.device.state,
    )


def shared_device(window: Evidence) -> Iterator[Finding]:
    """Launched kernels begin milliseconds late on an idle device, for 1% of the step or more.

    Source: `LATE_NS`, `evidence.NOTABLE`; idle time after a launch has returned (``asked for, not begun``). Graphs do
    not count, because they may need time to begin. There is no finding if host functions or unrecorded waits may delay
    streams (NPUs), or if the trace has only some of the kernels.

    Not measured.
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
    late_count, longest = window.count_per_step(np.unique(rows)), float(delay.max()) * intervals.MS
    yield from window.finding(
        "shared-device",
        delay_ms,
        is_wait=True,
        title=(
            f"Launched work waits for {words.ms(delay_ms)} of a {window.unit} on an idle device: another process may "
            "use it."
        ),
        estimate="All of this time, if no other process uses the device.",
        evidence=[
            (
                f"{late_count} kernels and copies in a {window.unit} begin late, the latest {words.ms(longest)} "
                "after its launch"
            ),
            "no work of this process ran on the device during these delays",
            *top_lines(list(zip(kernels, lengths, strict=True))),
        ],
        advice=(
            "List the processes on the device while the program runs. End other processes, or give each process its "
            f"own device{window.device.sharing}. If there is no other process, look for a stream that waits for an "
            "event of another process."
        ),
        code=window.device.processes,
    )


def _may_wait_unrecorded(window: Evidence) -> bool:
    trace = window.trace
    is_npu = len(trace.chosen(runtime_calls.ASYNCHRONOUS.search, Kind.RUNTIME)) > 0
    return (
        is_npu
        or missing_work.is_sampled(trace)
        or len(trace.chosen(runtime_calls.OUTER_WAIT.search, Kind.RUNTIME, Kind.OTHER)) > 0
    )


def profiler_overhead(window: Evidence) -> Iterator[Finding]:
    """A profiled step takes at least 1.5 times as long as an unprofiled one.

    Source: `LARGE`; medians of the run's timeline. The finding has no gain; it explains the other figures.

    Not measured: the fix has no gain.
    """
    cost = window.capture.cost
    if not cost.is_large or window.capture.circumstances.is_busy:
        return
    options = [name for name in ("with_stack", "profile_memory", "record_shapes") if window.capture.options.get(name)]
    yield from window.finding(
        "profiler-overhead",
        None,
        title=f"Recording makes a step {cost.slowdown:.1f} times as long as an unprofiled step.",
        estimate="No gain: the program runs at full speed without profiling.",
        evidence=[
            f"{words.ms(cost.recorded_step_ms or 0.0)} when profiled, {words.ms(cost.idle_step_ms or 0.0)} otherwise",
            *([f"recorded with {', '.join(map(window.option, options))}"] if options else []),
        ],
        advice=_FEWER_OPTIONS if options else _NO_OPTIONS,
        code=_code_without(window, options),
    )


def _code_without(window: Evidence, options: list[str]) -> str:
    if window.circumstances.is_launched:
        return f"perfhooks run ...   # without {' '.join(map(window.option, options))}" if options else ""
    return ", ".join(f"{name}=False" for name in options)
