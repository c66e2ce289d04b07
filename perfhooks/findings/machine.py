"""The machine and its clocks: it had more to do, sampling held the clocks, or a clock was lowered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from perfhooks import labels, words
from perfhooks.run.circumstances import BUSY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding

_LONGER: Final = 1.1
"""Times the median step: shorter ones differ by chance."""
_FEW: Final = 3
"""Steps: of fewer, none is the usual one."""
_OF_DEVICE: Final = 0.5
"""Of what a step takes longer: a device that only waited lowers its clock because it waits."""


def busy_machine(seen: Evidence) -> Iterator[Finding]:
    """The thread that steps waited for a processor for 5% of its time or more.

    Source: `perfhooks.run.circumstances.BUSY`; Linux's own count, see `perfhooks.watching.counters`.

    Measured: there is no gain to measure.
    """
    found = seen.capture.circumstances
    if not seen.is_busy:
        return
    threads = max(1, (found.cores or 8) // (2 * max(found.ranks, 1)))
    yield from seen.finding(
        "busy-machine",
        None,
        title=f"This job waited for a CPU {words.share(found.queued or 0.0)} of the time, so times are too high.",
        estimate="No gain: it says that the times of all other findings are too long.",
        evidence=[
            f"from {words.share(BUSY)} on it is said; with nothing else to do it is below 1%",
            *([] if found.cores is None else [f"processors: {found.cores}, processes of this job: {found.ranks}"]),
        ],
        advice=(
            "Other programs, or threads and workers of this job, wanted more processors than there are. Believe what "
            "counts (calls, shapes, types, launches) and the order of parts, not milliseconds. Record again when the "
            "machine is quiet; if what it has to do is this job's own, give it fewer threads or fewer workers."
        ),
        doubts_others=True,
        code=f"torch.set_num_threads({threads})   # fewer than there are processors, with the loader's workers",
    )


def held_clocks(seen: Evidence) -> Iterator[Finding]:
    """Counters were sampled inside the device, for which CUPTI holds its clocks.

    Source: the check ``clocks-locked`` of `perfhooks.trace.tables.checks`.

    Measured: there is no gain to measure.
    """
    sampled = seen.tables.checks.filter(name=labels.CLOCKS_CHECK)
    if not sampled.height:
        return
    yield from seen.finding(
        "held-clocks",
        None,
        title="Sampling counters held the clocks of the device: times here are not those of a training that nobody "
        "samples.",
        estimate="No gain: it says that the times of all other findings are those of the held clocks.",
        evidence=[f"sampled counters: {sampled['count'].item()}, among them {sampled['first'].item()}"],
        advice=(
            "Believe what counts (calls, shapes, launches) and what the counters say. For times, and to compare, "
            "record another window without sampling."
        ),
        doubts_others=True,
        code="torch.profiler.profile(...)   # without PerformanceMetricsConfig",
    )


def lowered_clock(seen: Evidence) -> Iterator[Finding]:
    """A step took longer than others by 10% or more, and the device's clock was lower in it by as much in proportion.

    The device must have worked for half of that time, with no more kernels than in other steps: a device that waits
    lowers its clock, too, and is not slow by it.

    Source: the counters in MHz of `perfhooks.trace.tables.counters`, over steps that samples cover.

    Measured: never; the gain is an upper bound.
    """
    clocks = seen.tables.counters.filter((pl.col("unit") == "MHz") & (pl.col("mean") > 0), pl.col("covered_ms") > 0)
    known = clocks.drop_nulls("integral").join(seen.steps.drop_nulls("step"), on="step")
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
    many = f"{slow.height} of {seen.count} recorded steps" if slow.height > 1 else f"Step {slow['step'].item()}"
    yield from seen.finding(
        "lowered-clock",
        float(slow["extra"].sum()) / seen.count,
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
        code="nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE   # while it trains: says why the clock is lowered",
    )
