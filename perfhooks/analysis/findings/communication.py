from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.analysis.findings.finding import MAJOR, MANY
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import operators, stages
from perfhooks.trace.nesting import autograd, device, host, intervals
from perfhooks.trace.nesting.intervals import NOTABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding

SMALL_BYTES: Final = 1 << 20
"""Size in bytes below which latency dominates the time of a collective (see the tables of nccl-tests)."""


def exposed_communication(window: Evidence) -> Iterator[Finding]:
    """Report communication without concurrent computation if it takes at least 10% of the step (`MAJOR`).

    The time is ``exposed_comm_ms`` of the table of steps. The fix in the finding depends on the operation with the
    longest exposed time. All-reduces outside of the backward pass belong to layers that are split over ranks (tensor
    parallelism).

    If the host never waits for the device, the gain is unknown, because the host may be slower than the device.
    """
    table = window.collectives.filter(pl.col("exposed_ms") > 0)
    exposed = min(window.mean("exposed_comm_ms"), float(table["exposed_ms"].sum()) / max(window.count, 1))
    if not window.is_device_traced or window.share(exposed) < MAJOR:
        return
    gain = min(exposed, window.device_limit_ms)
    is_known = window.is_worth(gain)
    kinds = [
        (f"{label} {dtype or ''}".strip(), time / window.count)
        for label, dtype, time in table.select("label", "dtype", "exposed_ms").iter_rows()
    ]
    text = window.texts(
        "exposed-communication",
        "" if is_known else "unknown",
        _version_of_operation(window, table),
        "other-ranks",
        exposed_ms=exposed,
    )
    evidence = [text("count", count=window.count_per_step(table)), *top_lines(kinds)]
    yield from window.finding(text, gain if is_known else None, is_wait=True, evidence=evidence)


def _version_of_operation(window: Evidence, exposed: pl.DataFrame) -> str:
    longest = exposed.group_by("operation").agg(pl.col("exposed_ms").sum()).sort("exposed_ms", "operation")
    operation = longest["operation"].drop_nulls().to_list()[-1:]
    if operation == ["all_to_all"]:
        return "all-to-all"
    if operation in (["all_gather"], ["reduce_scatter"]):
        return "sharded"
    if operation == ["all_reduce"] and _is_outside_backward(window):
        return "split-layers"
    return "" if window.is_training else "inference"


def _is_outside_backward(window: Evidence) -> bool:
    trace = window.trace
    nodes, entries = autograd.find(trace), host.launchers(trace)[window.work]
    communicates = device.communicates(trace)[window.work] & (entries >= 0)
    if not communicates.any() or not (len(nodes.entry) or window.tables.steps["stage"].first() == stages.INFERENCE):
        return False
    time = device.own_times(trace)[window.work][communicates]
    inside = nodes.inside[entries[communicates]] >= 0
    return bool(time[inside].sum() < 0.1 * time.sum())


def small_collectives(window: Evidence) -> Iterator[Finding]:
    """Report collectives of less than 1 MiB if a step has at least 20, and joining them saves at least 1% of the step.

    If the trace of a training has no message sizes, collectives shorter than `device.BLOCKED_NS` count. Collectives of
    layers that are split over ranks do not count: the next layer waits for each, so they cannot be joined.

    The thresholds are `SMALL_BYTES`, `MANY` and `evidence.NOTABLE`.
    """
    is_small, is_exposed = pl.col("bytes") < SMALL_BYTES, pl.col("exposed_ms") > 0
    if window.tables.steps["stage"].first() == stages.TRAIN and not _is_outside_backward(window):
        is_small |= pl.col("bytes").is_null() & (pl.col("duration_ms") < device.BLOCKED_NS / 1e6)
    table = window.collectives.filter(is_small & is_exposed)
    exposed = float(table["exposed_ms"].sum() or 0.0) / max(window.count, 1)
    gain = min(exposed * (1 - 1 / max(table.height / max(window.count, 1), 1)), window.device_limit_ms)
    if table.height < MANY * window.count or not window.is_worth(gain):
        return
    kinds = [(label, time / window.count) for label, time in table.select("label", "exposed_ms").iter_rows()]
    sums = table.select("bytes", "duration_ms").sum().row(0)
    text = window.texts(
        "small-collectives",
        "" if window.is_training else "inference",
        count=window.count_per_step(table),
        exposed_ms=exposed,
    )
    mean = (
        text("time", time_ms=sums[1] / table.height)
        if table["bytes"].null_count()
        else text("size", bytes=sums[0] / table.height)
    )
    yield from window.finding(text, gain, evidence=[mean, *top_lines(kinds)])


def data_parallel(window: Evidence) -> Iterator[Finding]:
    """Report ``DataParallel`` on several devices if its collectives take at least 1% of the step (`NOTABLE`)."""
    trace = window.trace
    devices = intervals.distinct(device.devices(trace, trace.device_rows)) if window.is_device_traced else np.empty(0)
    rows = window.matching(operators.DATA_PARALLEL, Kind.OP)
    names = {trace.names[name] for name in intervals.distinct(trace.name[rows]).tolist()}
    if len(devices) <= 1 or not {"Broadcast", "Scatter"} <= names:
        return
    copy_ms = window.per_step(window.spans(rows))
    gain = min(copy_ms, window.host_limit_ms)
    if window.share(gain) < NOTABLE:
        return
    text = window.texts("data-parallel", count=len(devices), copy_ms=copy_ms)
    evidence = [text("devices", devices=", ".join(map(str, devices.tolist()))), *window.by_name(rows)]
    yield from window.finding(text, gain, evidence=evidence, of=window.spans(rows))
