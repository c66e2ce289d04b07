"""Ranks or devices wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.analysis.findings.evidence import most
from perfhooks.core import words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import operators, stages
from perfhooks.trace.nesting import autograd, device, host, intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding

EXPOSED: Final = 0.1
"""Of the step: the threshold of torch_tb_profiler's rule on communication."""
SMALL_BYTES: Final = 1 << 20
"""Below a MiB, the time of a collective is its latency (see the tables of nccl-tests), whatever its size."""
SHORT_MS: Final = 0.05
"""Where a recording does not say how much a collective moved: in that time a network of 25 GB/s moves a MiB."""
MANY_SMALL: Final = 20
"""In a step: DDP needs one for every 25 MiB of gradients."""
DATA_PARALLEL: Final = 0.01
"""Of the step, for copying the model to the devices and gathering the results."""
_WITHIN: Final = 0.1
"""Of the time of communication: what is launched in the backward pass is less, if it is not that of gradients."""
_SEVERAL: Final = 2  # devices


def exposed_communication(window: Evidence) -> Iterator[Finding]:
    """Kernels communicate while nothing computes, for 10% of the step or more.

    The advice follows from the operation that is exposed for longest. All-reduces of gradients are launched in the
    backward pass; those of layers that are split over ranks are not.

    Source: `EXPOSED`; ``exposed_comm_ms`` of the table of steps. The gain is as much of it as the host waits for the
    device; where it is not seen waiting, the gain is not known: a step that waits for the host becomes no shorter.

    Measured: never; the gain is an upper bound.
    """
    table = window.collectives.filter(pl.col("exposed_ms") > 0)
    exposed = min(window.mean("exposed_comm_ms"), float(table["exposed_ms"].sum()) / max(window.count, 1))
    if not window.is_device_traced or window.share(exposed) < EXPOSED:
        return
    gain = min(exposed, window.device_limit_ms)
    is_known = window.is_worth(gain)
    kinds = [
        (f"{label} {dtype or ''}".strip(), time / window.count)
        for label, dtype, time in table.select("label", "dtype", "exposed_ms").iter_rows()
    ]
    advice, code = _advised(window, table)
    yield from window.finding(
        "exposed-communication",
        gain if is_known else None,
        is_wait=True,
        title=f"The devices only communicate for {words.ms(exposed)} of a {window.unit}.",
        estimate=(
            "All the communication that no computation hides, no more than the host waits for the device. It includes "
            "the wait for slower ranks, which no setting here removes."
            if is_known
            else "Not known: the host is not seen waiting for the device, so it may be the host that is slow."
        ),
        evidence=[f"{window.count_per_step(table)} collectives in a {window.unit} are exposed", *most(kinds)],
        advice=f"{advice} Look at the other ranks, too: if one comes late, the others wait in the collective.",
        code=code,
    )


def _advised(window: Evidence, exposed: pl.DataFrame) -> tuple[str, str]:
    """What to do, and the lines to write, by what is communicated for longest."""
    longest = exposed.group_by("operation").agg(pl.col("exposed_ms").sum()).sort("exposed_ms", "operation")
    operation = longest["operation"].drop_nulls().to_list()[-1:]
    if operation == ["all_to_all"]:
        return _ALL_TO_ALL
    if operation in (["all_gather"], ["reduce_scatter"]):
        return _GATHERS
    if operation == ["all_reduce"] and _is_outside_backward(window):
        return _OF_LAYERS
    if not window.is_training:
        return _OF_OTHERS, ""
    advice = (
        "Let communication run while the backward pass computes: DDP does it bucket by bucket if the bucket size "
        "fits. Send gradients as bfloat16, and communicate only in every n-th batch when accumulating gradients."
    )
    return advice, window.code_for("hidden communication")


_OF_OTHERS: Final = (
    "Start each collective before work that does not need its result, and wait for it later (async_op=True). Send "
    "fewer bytes, for example in a smaller type, and join small messages."
)
_JOIN: Final = "Each collective costs tens of microseconds, whatever its size. Join tensors before they are sent."
_ALL_TO_ALL: Final = (
    (
        "In an all-to-all each rank sends every other one what that needs, as tokens for experts or rows of "
        "embeddings, and waits for the one with most. Spread experts or tables so that ranks have equal shares, send "
        "fewer bits, and start the exchange before work that does not need it."
    ),
    (
        "work = torch.distributed.all_to_all_single(received, sent, async_op=True)\n"
        "...   # what does not need it\n"
        "work.wait()"
    ),
)
_GATHERS: Final = (
    (
        "Parts of a tensor on several ranks are gathered before use, or summed and spread again. With sharded "
        "parameters, fetch those of the next block while one block computes, and keep small ones whole. If results "
        "are gathered, gather less of them, or in pieces while other pieces are computed."
    ),
    "fully_shard(block, reshard_after_forward=False)\nblock.set_modules_to_forward_prefetch([next_block])",
)
_OF_LAYERS: Final = (
    (
        "These all-reduces join the results of layers that are split over ranks, and the next layer waits for them. "
        "Split layers only over ranks with a fast link, and over fewer ranks. Sequence parallelism splits the norms "
        "between layers, too. For small messages, an all-reduce of one or two shots is faster."
    ),
    'parallelize_module(block, mesh, {"norm": SequenceParallel()})   # torch.distributed.tensor.parallel',
)


def _is_outside_backward(window: Evidence) -> bool:
    """Whether what communicates was launched outside of the nodes of autograd, in a trace that shows launches.

    A training that shows no node at all does not tell.
    """
    trace = window.trace
    nodes, entries = autograd.find(trace), host.launchers(trace)[window.work]
    communicates = device.communicates(trace)[window.work] & (entries >= 0)
    if not communicates.any() or not (len(nodes.entry) or window.tables.steps["stage"].first() == stages.INFERENCE):
        return False
    time = device.own_times(trace)[window.work][communicates]
    inside = nodes.inside[entries[communicates]] >= 0
    return bool(time[inside].sum() < _WITHIN * time.sum())


def small_collectives(window: Evidence) -> Iterator[Finding]:
    """Twenty or more collectives of less than a MiB in a step are exposed for 1% of it or more.

    Where the recording says no bytes, short ones of a training count, unless they are those of layers that are split
    over ranks: the next layer waits for each of these, so they cannot be joined.

    Source: `SMALL_BYTES`, `SHORT_MS`, `MANY_SMALL`, `evidence.NOTABLE`.

    Measured: never; the gain is an upper bound.
    """
    is_small, is_exposed = pl.col("bytes") < SMALL_BYTES, pl.col("exposed_ms") > 0
    if window.tables.steps["stage"].first() == stages.TRAIN and not _is_outside_backward(window):
        is_small |= pl.col("bytes").is_null() & (pl.col("duration_ms") < SHORT_MS)
    table = window.collectives.filter(is_small & is_exposed)
    exposed = float(table["exposed_ms"].sum() or 0.0) / max(window.count, 1)
    gain = min(exposed * (1 - 1 / max(table.height / max(window.count, 1), 1)), window.device_limit_ms)
    if table.height < MANY_SMALL * window.count or not window.is_worth(gain):
        return
    kinds = [(label, time / window.count) for label, time in table.select("label", "exposed_ms").iter_rows()]
    sums = table.select("bytes", "duration_ms").sum().row(0)
    each = words.ms(sums[1] / table.height) if table["bytes"].null_count() else words.size(sums[0] / table.height)
    yield from window.finding(
        "small-collectives",
        gain,
        title=f"{window.count_per_step(table)} small collectives take {words.ms(exposed)} of a {window.unit}.",
        estimate="All but one n-th of their exposed time: joined into one, they have one latency instead of n.",
        evidence=[f"{each} each on average", *most(kinds)],
        advice=(
            f"{_JOIN} Let DDP make larger buckets, and reduce metrics once every many steps."
            if window.is_training
            else _JOIN
        ),
        code="joined = torch.cat([first.flatten(), second.flatten()])\ntorch.distributed.all_reduce(joined)",
    )


def data_parallel(window: Evidence) -> Iterator[Finding]:
    """``DataParallel`` sends the model to every device in each step: broadcast, scatter and gather on several devices.

    Source: the operators of its autograd functions; `DATA_PARALLEL`.

    Measured: never; the gain is an upper bound.
    """
    trace = window.trace
    used = intervals.distinct(device.devices(trace, trace.device_rows)) if window.is_device_traced else np.empty(0)
    rows = window.named(operators.DATA_PARALLEL, Kind.OP)
    names = {trace.names[name] for name in intervals.distinct(trace.name[rows]).tolist()}
    if len(used) < _SEVERAL or not {"Broadcast", "Scatter"} <= names:
        return
    spent = window.per_step(window.spans(rows))
    gain = min(spent, window.host_limit_ms)
    if window.share(gain) < DATA_PARALLEL:
        return
    yield from window.finding(
        "data-parallel",
        gain,
        title=f"DataParallel copies the model to {len(used)} devices in every {window.unit}, for {words.ms(spent)}.",
        estimate="The time of its copies on the host, which DistributedDataParallel does not make; it wins more.",
        evidence=[
            f"one process drives devices {', '.join(str(each) for each in used.tolist())}",
            *window.by_name(rows),
        ],
        advice=(
            "DataParallel runs all devices from one process, whose threads share one interpreter, and sends the whole "
            "model to each of them in every step. Run one process for each device instead."
        ),
        code="model = DistributedDataParallel(model, device_ids=[local_rank])   # torchrun --nproc-per-node=gpu ...",
        of=window.spans(rows),
    )
