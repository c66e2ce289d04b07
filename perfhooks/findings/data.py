"""The step waits for data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks import labels
from perfhooks.findings.evidence import ms
from perfhooks.trace import intervals
from perfhooks.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Tables
    from perfhooks.findings.finding import Finding
    from perfhooks.trace.model import Ints

WAITING: Final = 0.05
"""Of the step: the threshold of torch_tb_profiler's first rule."""

_LOADER: Final = r"^enumerate\(DataLoader\)#"
_WORKERS: Final = rf"{_LOADER}_MultiProcessing"
_SINGLE: Final = rf"{_LOADER}_SingleProcess"
_SHOWN: Final = 3


def waiting_for_data(tables: Tables) -> Iterator[Finding]:
    """The loop waits for the next batch for 5% of the step or more, while no device works.

    Source: `WAITING`; the time is ``data_ms`` of the table of steps, less the moments in which a device worked.
    """
    ranges = data_ranges(tables)
    exposed = intervals.subtract(tables.spans(ranges), tables.busy)
    waited = min(tables.per_step(exposed), tables.mean("data_ms"), tables.host_limit_ms)
    if tables.share(waited) < WAITING:
        return
    single = len(tables.named(_SINGLE, Kind.ANNOTATION, Kind.OP)) > 0
    workers = not single and len(tables.named(_WORKERS, Kind.ANNOTATION, Kind.OP)) > 0
    advice, code = _advice(single=single, workers=workers, has_device=tables.trace.is_device_traced)
    slowest = tables.steps.sort("data_ms", descending=True, nulls_last=True).head(1)
    number = slowest["step"][0]
    evidence = [
        f"data_ms is {ms(tables.mean('data_ms'))} of {ms(tables.mean('wall_ms'))}, the mean of {tables.numbers}",
        *([f"the longest wait is {ms(slowest['data_ms'][0])}, in step {number}"] if number is not None else []),
        *(["the batches are made in the training process (num_workers=0)"] if single else []),
        *(["the batches come from worker processes, which are too slow or too few"] if workers else []),
    ]
    functions = tables.own_frames_in(tables.spans(ranges), tables.thread)
    evidence += [f"{name}: {ms(time)}" for name, time in list(functions.items())[:_SHOWN]]
    yield tables.finding(
        "waiting-for-data",
        waited,
        title=f"The {tables.unit} waits {ms(waited)} for data, {tables.share(waited):.0%} of its time.",
        estimate="The whole wait, less what a device did meanwhile: it vanishes if batches are ready when asked for.",
        evidence=evidence,
        advice=advice,
        code=code,
    )


def data_ranges(tables: Tables) -> Ints:
    """The slices on the thread of the steps in which the loop asks for data."""
    rows = np.union1d(
        tables.named(_LOADER, Kind.ANNOTATION, Kind.OP),
        tables.named(rf"^{labels.DATA}$", Kind.ANNOTATION),
    )
    found: Ints = rows[tables.trace.thread[rows] == tables.thread]
    return found


def _advice(*, single: bool, workers: bool, has_device: bool) -> tuple[str, str]:
    pin = ", pin_memory=True" if has_device else ""
    if workers:
        text = (
            "The workers do not keep up. Give the loader more of them, as far as there are cores, and let each prepare "
            "more batches ahead; keep them alive between epochs. If the cores are all busy, make a sample cheaper: "
            "decode smaller images, cache what is decoded, or move augmentation to the device in whole batches."
        )
        return text, f"DataLoader(..., num_workers=8, prefetch_factor=4, persistent_workers=True{pin})"
    text = (
        "Let worker processes prepare the next batches while this one trains: start with as many workers as there are "
        "cores to spare for each rank, keep them alive between epochs"
    )
    text += ", and have them write into pinned memory so that the copy to the device need not wait." if pin else "."
    if not single:
        text += " If this is no DataLoader, fetch the next batch in a thread before it is asked for."
    return text, f"DataLoader(..., num_workers=4, persistent_workers=True{pin})"
