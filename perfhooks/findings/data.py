"""The step waits for data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks import labels, words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import ranges
from perfhooks.trace.nesting import intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding
    from perfhooks.trace.model import Ints

WAITING: Final = 0.05
"""Of the step: the threshold of torch_tb_profiler's first rule."""

HANDED_OVER_MS: Final = 5.0
"""What it costs to get a batch from a worker, in milliseconds of the training process: in a toy with DDP on two cores,
batches that took 2.2 ms to make took 7.1 ms from workers. What takes less to make is not worth handing over."""

_CHEAPER_SAMPLES: Final = (
    "Make a sample cheaper: decode smaller images, cache what is decoded, or augment a whole batch at once, on the "
    "device if there is one."
)
_CHEAPER: Final = (
    "A batch takes {} to make, which is less than it costs to hand it over from a worker process, so leave num_workers "
    "at 0. Make the batch at once instead of sample by sample: index a tensor with all the batch's numbers, or keep "
    "data that fits in memory as one tensor."
)
_AT_ONCE: Final = """\
order = torch.randperm(len(images))
for chosen in order.split(batch_size):
    batch = images[chosen]   # one operator, instead of one sample at a time"""

_SHOWN: Final = 3


def waiting_for_data(seen: Evidence) -> Iterator[Finding]:
    """The loop waits for the next batch for 5% of the step or more, while no device works.

    Source: `WAITING`; the time is that of steps that were not recorded, where the timeline has it, else ``data_ms`` of
    the table of steps; less the moments in which a device worked. Making a batch is many small calls in Python, so with
    stacks recording can add more to it than it takes.

    Measured: on the host, where a batch takes longer to make than to hand over (`HANDED_OVER_MS`) and there are
    processors to spare: batches of 64 samples of 0.2 ms of work came from two workers in 83 ms instead of 118, on a
    busy machine with two cores. With a device the wait is the host's all the same. Elsewhere other advice is given,
    which was not measured: it is worth trying.
    """
    fetches = data_ranges(seen)
    exposed = intervals.subtract(seen.spans(fetches), seen.busy)
    waited, share, is_unrecorded = _waited(seen, seen.per_step(exposed), seen.per_step(seen.spans(fetches)))
    if share < WAITING:
        return
    single = len(seen.starting(ranges.LOADER_ALONE, Kind.ANNOTATION, Kind.OP)) > 0
    workers = not single and len(seen.starting(ranges.LOADER_WITH_WORKERS, Kind.ANNOTATION, Kind.OP)) > 0
    advice, code, is_measured = _advice(seen, waited, single=single, workers=workers)
    slowest = seen.steps.sort("data_ms", descending=True, nulls_last=True).head(1)
    number = slowest["step"][0]
    evidence = [
        *([_of_timeline(seen)] if is_unrecorded else []),
        f"data_ms is {words.ms(seen.mean('data_ms'))} of {words.ms(seen.mean('wall_ms'))}, the mean of {seen.numbers}",
        *([f"the longest wait is {words.ms(slowest['data_ms'][0])}, in step {number}"] if number is not None else []),
        *(["the batches are made in the training process (num_workers=0)"] if single else []),
        *(["the batches come from worker processes, which are too slow or too few"] if workers else []),
    ]
    functions = seen.own_frames_in(seen.spans(fetches), seen.thread)
    evidence += [f"{name}: {words.ms(time)}" for name, time in list(functions.items())[:_SHOWN]] or seen.by_line(
        seen.outermost(fetches)
    )
    yield from seen.finding(
        "waiting-for-data",
        waited,
        is_measured=is_measured,
        title=f"The {seen.unit} waits {words.ms(waited)} for data, {words.share(share)} of its time.",
        estimate=(
            "The whole wait, less what a device did meanwhile: it vanishes if batches are ready when asked for."
            if is_measured
            else "Worth trying: how much of the wait this saves depends on what makes the batches."
        ),
        evidence=evidence,
        advice=advice,
        code=code,
        of=None if is_unrecorded else exposed,
        is_wait=True,
    )


def _waited(seen: Evidence, exposed: float, whole: float) -> tuple[float, float, bool]:
    """How long a step waits while no device works, which part of the step that is, and if it is one nobody recorded.

    Args:
        seen: The window.
        exposed: How long a recorded step waits while no device works.
        whole: How long it waits in all.
    """
    unrecorded = seen.unrecorded_data_ms
    if unrecorded is not None and whole > 0:
        waited = unrecorded * exposed / whole
        return waited, waited / seen.unrecorded_ms, True
    waited = min(exposed, seen.mean("data_ms"), seen.host_limit_ms)
    return waited, seen.share(waited), False


def _of_timeline(seen: Evidence) -> str:
    waited, step = words.ms(seen.unrecorded_data_ms or 0.0), words.ms(seen.unrecorded_ms)
    return f"steps that were not recorded wait {waited} of {step} for data, by the run's own clock"


def data_ranges(seen: Evidence) -> Ints:
    """The slices on the thread of the steps in which the loop asks for data."""
    rows = intervals.distinct(
        seen.starting(ranges.LOADER, Kind.ANNOTATION, Kind.OP),
        seen.named(rf"^{labels.DATA}$", Kind.ANNOTATION),
    )
    found: Ints = rows[seen.trace.thread[rows] == seen.thread]
    return found


def _advice(seen: Evidence, waited: float, *, single: bool, workers: bool) -> tuple[str, str, bool]:
    """What to do, the lines to write, and whether that was measured to help here."""
    pin = ", pin_memory=True" if seen.trace.is_device_traced else ""
    spare = seen.capture.circumstances.spare
    if workers:
        return (*_more_workers(seen, pin), False)
    if waited < HANDED_OVER_MS and single:
        return _CHEAPER.format(words.ms(waited)), _AT_ONCE, False
    if spare == 0 and single:
        return f"{_no_room(seen)} {_CHEAPER_SAMPLES}", _AT_ONCE, False
    number = _workers(seen, waited, spare)
    text = f"Let worker processes prepare the next batches while this one trains: {number} of them, because a batch "
    text += f"takes {words.ms(waited)} of a {seen.unit}"
    text += f" and {_room(seen)}. Keep them alive between epochs" if spare else ". Keep them alive between epochs"
    text += ", and have them write into pinned memory so that the copy to the device need not wait." if pin else "."
    if not single:
        text += " If this is no DataLoader, fetch the next batch in a thread before it is asked for."
    return text, f"DataLoader(..., num_workers={number}, persistent_workers=True{pin})", True


def _workers(seen: Evidence, waited: float, spare: int | None) -> int:
    """As many as make batches as fast as the rest of the step uses them, and no more than there is room for."""
    needed = -(-waited // max(seen.unrecorded_ms - waited, 0.1 * waited))
    return int(max(min(needed, 4 if spare is None else spare), 1))


def _more_workers(seen: Evidence, pin: str) -> tuple[str, str]:
    spare = seen.capture.circumstances.spare
    text = "The workers do not keep up. "
    text += (
        f"{_no_room(seen)} More workers than that only take turns. "
        if spare == 0
        else f"Give the loader more of them, as long as it has less than {spare} ({_room(seen)}; one that has as many "
        "gets none that are free), and let each prepare more batches ahead. "
        if spare
        else "Give the loader more of them, as far as there are processors, and let each prepare more batches ahead. "
    )
    return (
        text + _CHEAPER_SAMPLES,
        f"DataLoader(..., num_workers={spare or 1}, prefetch_factor=4, persistent_workers=True{pin})",
    )


def _room(seen: Evidence) -> str:
    found = seen.capture.circumstances
    of_ranks = f" for {found.ranks} ranks" if found.ranks > 1 else ""
    others = ", and others want them too" if found.is_busy else ""
    return f"there are {found.cores} processors{of_ranks}, of which operators use {found.threads} a rank{others}"


def _no_room(seen: Evidence) -> str:
    return f"No processor is to spare for workers: {_room(seen)}."
