from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.analysis.findings.finding import MAJOR, MANY
from perfhooks.core import words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import operators, stages
from perfhooks.trace.nesting import autograd, device, host, intervals
from perfhooks.trace.nesting.intervals import NOTABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding

SMALL_BYTES: Final = 1 << 20
"""Maximum size of a collective whose time is latency (see the tables of nccl-tests)."""


def exposed_communication(window: Evidence) -> Iterator[Finding]:
    """Kernels communicate without concurrent computation for 10% of the step or more.

    The fix depends on the operation with the longest exposed time. All-reduces of gradients are launched in the
    backward pass; those of layers that are split over ranks are not.

    Source: `MAJOR`; ``exposed_comm_ms`` of the table of steps. The gain is at most the wait of the host for the
    device. If the host does not wait, the gain is unknown, because the host may limit the step.

    Not measured.
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
    advice, code = _fix(window, table)
    yield from window.finding(
        "exposed-communication",
        gain if is_known else None,
        is_wait=True,
        title=f"Communication without concurrent computation takes {words.ms(exposed)} of a {window.unit}.",
        estimate=(
            "The exposed communication, up to the wait of the host for the device. It includes the wait for slower "
            "ranks, which this fix does not remove."
            if is_known
            else "Unknown: the host does not wait for the device, so the host may limit the step."
        ),
        evidence=[f"{window.count_per_step(table)} collectives in a {window.unit} are exposed", *top_lines(kinds)],
        advice=f"{advice} Check the other ranks too: if one rank arrives late, the others wait in the collective.",
        code=code,
    )


def _fix(window: Evidence, exposed: pl.DataFrame) -> tuple[str, str]:
    longest = exposed.group_by("operation").agg(pl.col("exposed_ms").sum()).sort("exposed_ms", "operation")
    operation = longest["operation"].drop_nulls().to_list()[-1:]
    if operation == ["all_to_all"]:
        return _ALL_TO_ALL
    if operation in (["all_gather"], ["reduce_scatter"]):
        return _GATHERS
    if operation == ["all_reduce"] and _is_outside_backward(window):
        return _SPLIT_LAYERS
    if not window.is_training:
        return _OTHER_OPERATIONS, ""
    advice = (
        "Overlap communication with the backward pass: DDP does so for each bucket, if the bucket size fits. Send "
        "gradients as bfloat16. If you accumulate gradients, communicate only in the last batch."
    )
    return advice, window.code_for("hidden communication")


_OTHER_OPERATIONS: Final = (
    "Start each collective early (async_op=True), and wait for it when its result is needed. Send fewer bytes, for "
    "example in a smaller type, and join small messages."
)
_JOIN: Final = "Join tensors before sending. Each collective costs tens of microseconds, even for few bytes."
_ALL_TO_ALL: Final = (
    (
        "Distribute experts or embedding tables so that ranks have equal load. Send fewer bits. Start the exchange "
        "before work that does not need it. In an all-to-all, each rank sends tokens or embedding rows to all "
        "others. All wait for the rank with the largest load."
    ),
    (
        "work = torch.distributed.all_to_all_single(received, sent, async_op=True)\n"
        "...   # work that does not need the result\n"
        "work.wait()"
    ),
)
_GATHERS: Final = (
    (
        "With sharded parameters, prefetch those of the next block while the current block computes, and do not shard "
        "small ones. If results are gathered, gather fewer, or gather in pieces while other pieces are computed. "
        "These collectives gather sharded tensors before use, or sum and scatter them after use."
    ),
    "fully_shard(block, reshard_after_forward=False)\nblock.set_modules_to_forward_prefetch([next_block])",
)
_SPLIT_LAYERS: Final = (
    (
        "Split layers only over ranks with a fast link, and over fewer ranks. Use sequence parallelism to split the "
        "norms between layers as well. For small messages, use one-shot or two-shot all-reduces. These all-reduces "
        "join the results of layers that are split over ranks, and the next layer waits for them."
    ),
    'parallelize_module(block, mesh, {"norm": SequenceParallel()})   # torch.distributed.tensor.parallel',
)


def _is_outside_backward(window: Evidence) -> bool:
    """Return whether communication was launched outside of the backward pass; False without autograd nodes."""
    trace = window.trace
    nodes, entries = autograd.find(trace), host.launchers(trace)[window.work]
    communicates = device.communicates(trace)[window.work] & (entries >= 0)
    if not communicates.any() or not (len(nodes.entry) or window.tables.steps["stage"].first() == stages.INFERENCE):
        return False
    time = device.own_times(trace)[window.work][communicates]
    inside = nodes.inside[entries[communicates]] >= 0
    return bool(time[inside].sum() < 0.1 * time.sum())


def small_collectives(window: Evidence) -> Iterator[Finding]:
    """At least 20 collectives below 1 MiB per step are exposed for 1% of the step or more.

    If the trace has no sizes, short collectives of a training count. Collectives of
    layers that are split over ranks do not count: the next layer waits for each, so they cannot be joined.

    Source: `SMALL_BYTES`, `MANY`, `evidence.NOTABLE`.

    Not measured.
    """
    is_small, is_exposed = pl.col("bytes") < SMALL_BYTES, pl.col("exposed_ms") > 0
    if window.tables.steps["stage"].first() == stages.TRAIN and not _is_outside_backward(window):
        # 1 MiB takes 50 us at 25 GB/s
        is_small |= pl.col("bytes").is_null() & (pl.col("duration_ms") < device.BLOCKED_NS / 1e6)
    table = window.collectives.filter(is_small & is_exposed)
    exposed = float(table["exposed_ms"].sum() or 0.0) / max(window.count, 1)
    gain = min(exposed * (1 - 1 / max(table.height / max(window.count, 1), 1)), window.device_limit_ms)
    if table.height < MANY * window.count or not window.is_worth(gain):
        return
    kinds = [(label, time / window.count) for label, time in table.select("label", "exposed_ms").iter_rows()]
    sums = table.select("bytes", "duration_ms").sum().row(0)
    mean = words.ms(sums[1] / table.height) if table["bytes"].null_count() else words.size(sums[0] / table.height)
    yield from window.finding(
        "small-collectives",
        gain,
        title=f"{window.count_per_step(table)} small collectives take {words.ms(exposed)} of a {window.unit}.",
        estimate="Their exposed time except 1/n: n joined collectives have one latency instead of n.",
        evidence=[f"{mean} each on average", *top_lines(kinds)],
        advice=(f"{_JOIN} Use larger DDP buckets, and reduce metrics less often." if window.is_training else _JOIN),
        code="joined = torch.cat([first.flatten(), second.flatten()])\ntorch.distributed.all_reduce(joined)",
    )


def data_parallel(window: Evidence) -> Iterator[Finding]:
    """``DataParallel`` copies the model to every device in each step: broadcast, scatter and gather on several devices.

    Source: `NOTABLE`; the operators of its autograd functions.

    Not measured.
    """
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
    yield from window.finding(
        "data-parallel",
        gain,
        title=(
            f"DataParallel copies the model to {len(devices)} devices in every {window.unit}, for {words.ms(copy_ms)}."
        ),
        estimate="The host time of these copies. DistributedDataParallel does not copy the model, and also saves more.",
        evidence=[
            f"one process uses devices {', '.join(str(number) for number in devices.tolist())}",
            *window.by_name(rows),
        ],
        advice=(
            "Use DistributedDataParallel with one process per device. DataParallel runs all devices from one process "
            "whose threads share the GIL, and copies the whole model to each device in every step."
        ),
        code="model = DistributedDataParallel(model, device_ids=[local_rank])   # torchrun --nproc-per-node=auto ...",
        of=window.spans(rows),
    )
