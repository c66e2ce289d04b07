"""What makes other figures doubtful: a busy host, another process on the device, clocks, and the recorder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.analysis.findings.evidence import most
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

_LONGER: Final = 1.1
"""Times the median step: shorter ones differ by chance."""
_FEW: Final = 3
"""Steps: of fewer, none is the usual one."""
_OF_DEVICE: Final = 0.5
"""Of what a step takes longer: a device that only waited lowers its clock because it waits."""
LATE_NS: Final = 1_000_000
"""Minimum delay of work whose launch is over and whose device is idle, in ns. Starts on idle devices take microseconds;
a device that several processes share lets each of them work for some milliseconds at a time."""

_RECORD_LESS: Final = (
    "The host's part of every figure of this window is too large, small operators most. Record less at a time: stacks "
    "cost most, then shapes and memory. Compare with a window recorded without them before acting on what the host "
    "does."
)
_NOTHING_TO_LEAVE_OUT: Final = (
    "The host's part of every figure of this window is too large, small operators most, and nothing was recorded that "
    "could be left out: believe the unprofiled steps, and here only the order of things."
)


def busy_machine(window: Evidence) -> Iterator[Finding]:
    """The thread of the steps waited for a CPU for 5% of its time or more.

    Source: `perfhooks.run.circumstances.BUSY`; Linux's own count, see `perfhooks.record.watch.counters`.

    Measured: there is no gain to measure.
    """
    found = window.capture.circumstances
    if not window.is_busy:
        return
    threads = max(1, (found.cores or 8) // (2 * max(found.ranks, 1)))
    yield from window.finding(
        "busy-machine",
        None,
        title=f"This job waited for a CPU {words.share(found.queued or 0.0)} of the time, so times are too high.",
        estimate="No gain: it says that the times of all other findings are too long.",
        evidence=[
            f"this is a finding from {words.share(BUSY)} on; on an idle host it is below 1%",
            *([] if found.cores is None else [f"CPUs: {found.cores}, processes of this job: {found.ranks}"]),
        ],
        advice=(
            "Other programs, or threads and workers of this job, wanted more CPUs than there are. Believe counts "
            "(calls, shapes, types, launches) and the order of parts, not milliseconds. Record again when the host is "
            "quiet. If the load is this job's own, use fewer threads or fewer workers."
        ),
        doubts_others=True,
        code=f"torch.set_num_threads({threads})   # with the workers of the loader, fewer than CPUs",
    )


def held_clocks(window: Evidence) -> Iterator[Finding]:
    """Counters were sampled inside the device, for which CUPTI holds its clocks.

    Source: the check ``clocks-locked`` of `perfhooks.trace.tables.checks`.

    Measured: there is no gain to measure.
    """
    sampled = window.tables.checks.filter(name=labels.CLOCKS_CHECK)
    if not sampled.height:
        return
    yield from window.finding(
        "held-clocks",
        None,
        title="Sampled counters held the clocks of the device, so its times differ from those without sampling.",
        estimate="No gain: it says that the times of all other findings are those of the held clocks.",
        evidence=[f"sampled counters: {sampled['count'].item()}, among them {sampled['first'].item()}"],
        advice=(
            "Believe what counts (calls, shapes, launches) and what the counters say. For times, and to compare, "
            "record another window without sampling."
        ),
        doubts_others=True,
        code="torch.profiler.profile(...)   # without PerformanceMetricsConfig",
    )


def lowered_clock(window: Evidence) -> Iterator[Finding]:
    """A step took longer than others by 10% or more, and the device's clock was lower in it by as much in proportion.

    The device must have worked for half of that time, with no more kernels than in other steps: a device that waits
    lowers its clock, too, and is not slow by it.

    Source: the counters in MHz of `perfhooks.trace.tables.counters`, over steps that samples cover.

    Measured: never; the gain is an upper bound.
    """
    clocks = window.tables.counters.filter((pl.col("unit") == "MHz") & (pl.col("mean") > 0), pl.col("covered_ms") > 0)
    known = clocks.drop_nulls("integral").join(window.steps.drop_nulls("step"), on="step")
    usual = {
        name: pl.col(name).median().over("counter", "device")
        for name in ("wall_ms", "mean", "device_busy_ms", "kernels")
    }
    extra = pl.col("wall_ms") - usual["wall_ms"]
    slow = known.with_columns(
        extra.alias("extra"),
        *(of.alias(f"usual_{name}") for name, of in usual.items()),
        (pl.col("wall_ms") / usual["wall_ms"]).alias("longer"),
        (usual["mean"] / pl.col("mean")).alias("lower"),
    ).filter(
        pl.len().over("counter", "device") >= _FEW,
        pl.col("longer") >= _LONGER,
        pl.col("lower") >= pl.col("longer"),
        pl.col("device_busy_ms") - pl.col("usual_device_busy_ms") >= _OF_DEVICE * pl.col("extra"),
        pl.col("kernels") <= pl.col("usual_kernels"),
    )
    slow = slow.sort("lower", descending=True).unique("step", keep="first", maintain_order=True)
    if not slow.height:
        return
    many = f"{slow.height} of {window.count} recorded steps" if slow.height > 1 else f"Step {slow['step'].item()}"
    yield from window.finding(
        "lowered-clock",
        float(slow["extra"].sum()) / window.count,
        title=f"{many} took longer while the clock of the device was lower.",
        estimate="What these steps take longer than the median one.",
        evidence=[
            f"step {row['step']}: {words.ms(row['wall_ms'])} with {row['counter']} at {row['mean']:.4g}, where the "
            f"median step takes {words.ms(row['usual_wall_ms'])} with {row['usual_mean']:.4g}"
            for row in slow.head(_FEW).iter_rows(named=True)
        ],
        advice=(
            "The device lowers its clock where it would become too hot or take more power than it may. Ask it why, and "
            "see to its cooling, its power limit, and to what else runs on it."
        ),
        code="nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE   # while the program runs: why the clock is lowered",
    )


def shared_device(window: Evidence) -> Iterator[Finding]:
    """Launched kernels begin milliseconds later though the device idles, for 1% of the step or more.

    Source: `LATE_NS`, `evidence.NOTABLE`; idle time after a launch has returned (``asked for, not begun``). A graph may
    need its time to begin, a function of the host may hold a stream, an NPU does not record waits between streams, and
    a sampled recording lacks work: none of these counts.

    Measured: never; the gain is an upper bound.
    """
    trace, found = window.trace, window.idle
    if not window.is_device_traced or _may_wait_unrecorded(window):
        return
    graphs = trace.chosen(runtime_calls.GRAPH.search, Kind.RUNTIME)
    pending = (found.cause == device_time.PENDING) & ~np.isin(np.append(trace.launches, -1)[found.work], graphs)
    delay = window.gaps.summed(np.where(pending, found.length, 0))
    late = pending & (delay >= LATE_NS)[window.gaps.of]
    if not late.any():
        return
    spent, rows = window.per_step(window.idle_for(device_time.PENDING, among=late)), trace.device_rows[found.work[late]]
    kernels = [device_work.family(trace.names[name]) for name in trace.name[rows].tolist()]
    lengths = (found.length[late] * intervals.MS / max(window.count, 1)).tolist()
    many, longest = window.count_per_step(np.unique(rows)), float(delay.max()) * intervals.MS
    yield from window.finding(
        "shared-device",
        spent,
        is_wait=True,
        title=(
            f"Launched work waits for {words.ms(spent)} of a {window.unit} on an idle device: another process seems "
            "to use it."
        ),
        estimate="All of this time: it is gone if this process has the device for itself.",
        evidence=[
            f"{many} kernels and copies in a {window.unit} begin late, the latest {words.ms(longest)} after its launch",
            "meanwhile no work of this process ran on the device",
            *most(list(zip(kernels, lengths, strict=True))),
        ],
        advice=(
            "List the processes on the device while the program runs. End other processes, give each process its own "
            "device, or let them share it with NVIDIA MPS instead of taking turns. If there is no other process, look "
            "for a stream that waits for an event of another process."
        ),
        code="nvidia-smi pmon -c 1   # processes on each device; on AMD: rocm-smi --showpids",
    )


def _may_wait_unrecorded(window: Evidence) -> bool:
    """Whether streams may wait for something that this trace does not show."""
    trace = window.trace
    is_npu = len(trace.chosen(runtime_calls.ASYNCHRONOUS.search, Kind.RUNTIME)) > 0
    return (
        is_npu
        or missing_work.is_sampled(trace)
        or len(trace.chosen(runtime_calls.OUTER_WAIT.search, Kind.RUNTIME, Kind.OTHER)) > 0
    )


def profiler_overhead(window: Evidence) -> Iterator[Finding]:
    """A recorded step takes half as long again as one that was not recorded, or more.

    Source: `LARGE`; the medians of the run's own clock. Nothing is gained here but the truth of the other figures.

    Measured: there is no gain to measure.
    """
    cost = window.capture.cost
    if not cost.is_large or window.capture.circumstances.is_busy:
        return
    wanted = [name for name in ("with_stack", "profile_memory", "record_shapes") if window.capture.options.get(name)]
    yield from window.finding(
        "profiler-overhead",
        None,
        title=f"Recording makes a step {cost.slowdown:.1f} times as long as it is.",
        estimate="No gain: without the recorder the program runs at full speed.",
        evidence=[
            f"{words.ms(cost.recorded_step_ms or 0.0)} when profiled, {words.ms(cost.idle_step_ms or 0.0)} otherwise",
            *([f"recorded with {', '.join(map(window.option, wanted))}"] if wanted else []),
        ],
        advice=_RECORD_LESS if wanted else _NOTHING_TO_LEAVE_OUT,
        code=_less(window, wanted),
    )


def _less(window: Evidence, wanted: list[str]) -> str:
    """What to write in order to leave out what was asked for."""
    if window.circumstances.is_launched:
        return f"perfhooks run ...   # without {' '.join(map(window.option, wanted))}" if wanted else ""
    return ", ".join(f"{name}=False" for name in wanted)
