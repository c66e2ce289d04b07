"""The step waits for data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks import labels, words
from perfhooks.findings import faces
from perfhooks.findings.evidence import most
from perfhooks.run.circumstances import Loader
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import ranges
from perfhooks.trace.nesting import intervals
from perfhooks.trace.tables import device_time

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
    "A batch takes {} to make, which is less than it costs to hand it over from a worker process, so leave {} "
    "at 0. Make the batch at once instead of sample by sample: index a tensor with all the batch's numbers, or keep "
    "data that fits in memory as one tensor."
)
_HANDED_OVER: Final = (
    "A step waits {} for a batch from a worker process, which is about what it costs to hand one over: more workers do "
    "not change that. Hand over less: few large tensors instead of many small objects, smaller types such as uint8 for "
    "images. If a batch is made in less time than that, {}=0 is faster."
)
_AT_ONCE: Final = """\
order = torch.randperm(len(images))
for chosen in order.split(batch_size):
    batch = images[chosen]   # one operator, instead of one sample at a time"""

_AHEAD: Final = 4
"""Batches that each worker makes ahead; torch's own 2 are used up by one that takes long."""


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
    exposed = seen.idle_for(device_time.DATA) if seen.trace.is_device_traced else seen.spans(fetches)
    waited, share, is_unrecorded = _waited(seen, seen.per_step(exposed), seen.per_step(seen.spans(fetches)))
    if share < WAITING:
        return
    single = len(seen.starting(ranges.LOADER_ALONE, Kind.ANNOTATION, Kind.OP)) > 0
    workers = not single and len(seen.starting(ranges.LOADER_WITH_WORKERS, Kind.ANNOTATION, Kind.OP)) > 0
    rest = waited / share - waited
    advice, code, left = _advice(seen, waited, rest, single=single, workers=workers)
    slowest = seen.steps.sort("data_ms", descending=True, nulls_last=True).head(1)
    number = slowest["step"][0]
    evidence = [
        *([_of_timeline(seen)] if is_unrecorded else []),
        f"data_ms is {words.ms(seen.mean('data_ms'))} of {words.ms(seen.mean('wall_ms'))}, the mean of {seen.numbers}",
        *([f"the longest wait is {words.ms(slowest['data_ms'][0])}, in step {number}"] if number is not None else []),
        *(["the batches are made in the process that waits for them"] if single else []),
        *(["the batches come from worker processes, which are too slow or too few"] if workers else []),
        *_loader(seen),
    ]
    functions = most(seen.own_time_in(seen.spans(fetches), whole=True))
    evidence += functions or seen.by_line(seen.outermost(fetches))
    yield from seen.finding(
        "waiting-for-data",
        waited - (left or 0.0),
        is_measured=left is not None,
        title=f"The {seen.unit} waits {words.ms(waited)} for data, {words.share(share)} of its time.",
        estimate=_estimate(left),
        evidence=evidence,
        advice=advice,
        code=code,
        of=None if is_unrecorded else exposed,
        is_wait=True,
    )


def _estimate(left: float | None) -> str:
    """How the gain was estimated; see `_advice`."""
    if left is None:
        return "Worth trying: how much of the wait this saves depends on what makes the batches."
    if left:
        return (
            f"The wait, less what a device did meanwhile and less {words.ms(left)}, which stay: for more workers no "
            "processors are free."
        )
    return "The whole wait, less what a device did meanwhile: it vanishes if batches are ready when asked for."


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


def _advice(
    seen: Evidence, waited: float, rest: float, *, single: bool, workers: bool
) -> tuple[str, str, float | None]:
    """What to do, the lines to write, and how much of the wait is left then; None where that was not measured.

    Args:
        seen: The window.
        waited: How long a step waits, in milliseconds.
        rest: How long the rest of such a step takes.
        single: Whether batches are made in the training process.
        workers: Whether they are made by workers.
    """
    spare = seen.told.spare
    if workers and waited < HANDED_OVER_MS:
        return _HANDED_OVER.format(words.ms(waited), _setting(seen, "num_workers")), _AT_ONCE, None
    if workers:
        return (*_more_workers(seen, waited, rest), None)
    if waited < HANDED_OVER_MS and single:
        return _CHEAPER.format(words.ms(waited), _setting(seen, "num_workers")), _AT_ONCE, None
    if spare == 0 and single:
        return f"{_no_room(seen)} {_CHEAPER_SAMPLES}", _AT_ONCE, None
    number = _workers(seen, waited, rest)
    text = f"Let worker processes prepare the next batches while this one trains: {number} of them, because a batch "
    text += f"takes {words.ms(waited)} of a {seen.unit}"
    text += f" and {_room(seen)}. Keep them alive between epochs" if spare else ". Keep them alive between epochs"
    settings = _settings(seen, num_workers=number)
    has_pins = "pin_memory" in settings
    text += (
        ", and have them write into pinned memory so that the copy to the device need not wait." if has_pins else "."
    )
    if not single:
        text += (
            " This is for a DataLoader without workers: whether there is one was not seen. If there is none, fetch the "
            "next batch in a thread before it is asked for."
        )
    return text, _line(seen, settings), max(waited / number - rest, 0.0)


def _workers(seen: Evidence, busy: float, rest: float) -> int:
    """As many as make batches as fast as the rest of the step uses them, and no more than there is room for.

    Args:
        seen: The window.
        busy: How long one worker takes to make what a step uses, in milliseconds.
        rest: How long a step takes without its wait.
    """
    needed = -(-busy // max(rest, 0.1 * busy))
    return int(max(min(needed, 4 if seen.told.spare is None else seen.told.spare), 1))


def _more_workers(seen: Evidence, waited: float, rest: float) -> tuple[str, str]:
    """The same where there are workers already."""
    spare, loader = seen.told.spare, seen.told.loader or Loader()
    there = loader.num_workers
    ahead = {} if (loader.prefetch_factor or 0) >= _AHEAD else {"prefetch_factor": _AHEAD}
    if there is None and spare != 0:
        text = (
            "The workers do not keep up. How many there are was not seen: give the loader more"
            + (
                f", as long as it has less than {spare} ({_room(seen)})"
                if spare
                else ", as far as there are processors"
            )
            + ", and let each prepare more batches ahead. "
        )
        return text + _CHEAPER_SAMPLES, _line(seen, _settings(seen, num_workers=spare or ..., **ahead))
    # the loop takes a batch as soon as there is one, so each of them makes one in so many steps
    wanted = 0 if there is None else _workers(seen, there * (waited + rest), rest)
    text = "The workers do" if there is None else words.count(there, "worker does", "workers do")
    if there is not None and wanted > there:
        text += f" not keep up. Give the loader {wanted} ({_room(seen)}), and let each prepare more batches ahead. "
        return text + _CHEAPER_SAMPLES, _line(seen, _settings(seen, num_workers=wanted, **ahead))
    text += f" not keep up, and more of them would only take turns: {_room(seen)}. "
    return text + _CHEAPER_SAMPLES, _AT_ONCE


def _settings(seen: Evidence, **settings: object) -> dict[str, object]:
    """Some settings of a loader, and those that go with workers, as far as it does not have them."""
    loader = seen.told.loader or Loader()
    if not loader.persistent_workers:
        settings["persistent_workers"] = True
    if seen.trace.is_device_traced and not loader.pin_memory:
        settings["pin_memory"] = True
    return settings


def _line(seen: Evidence, settings: dict[str, object]) -> str:
    return faces.loader(settings, seen.told.framework)


def _setting(seen: Evidence, name: str) -> str:
    return faces.setting(name, seen.told.framework)


def _loader(seen: Evidence) -> list[str]:
    """What is known of the loader."""
    loader = seen.told.loader
    if loader is None:
        return []
    known = (
        *("num_workers", "batch_size", "pin_memory", "persistent_workers", "prefetch_factor"),
        *(["batch_sampler"] if loader.batch_sampler else []),
    )
    shown = ((name, getattr(loader, name)) for name in known)
    return [f"the loader has {', '.join(f'{name}={value}' for name, value in shown if value is not None)}"]


def _room(seen: Evidence) -> str:
    of_ranks = f" for {seen.told.ranks} ranks" if seen.told.ranks > 1 else ""
    others = ", and others want them too" if seen.told.is_busy else ""
    return (
        f"there are {seen.told.cores} processors{of_ranks}, of which operators use {seen.told.threads} a rank{others}"
    )


def _no_room(seen: Evidence) -> str:
    return f"No processor is to spare for workers: {_room(seen)}."
