"""The step waits for data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.analysis.findings import faces
from perfhooks.analysis.findings.evidence import most
from perfhooks.analysis.findings.finding import ASKS, CLOCK, WAITING
from perfhooks.analysis.findings.loader_plan import BatchCost, Demand, LoaderPlan
from perfhooks.core import labels, words
from perfhooks.run.circumstances import Circumstances, Loader
from perfhooks.run.loader import looks
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import ranges
from perfhooks.trace.nesting import intervals
from perfhooks.trace.tables import device_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Intervals

_NAMED: Final = 2
"""Functions of workers that are named, those of most time."""
_LEAST_LOOKS: Final = 20
"""At workers: of fewer, a share says nothing."""
_WORTH_NAMING: Final = 0.1
"""The least share of the workers' time of one that is named."""
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
    "A step waits {} for batches that worker processes have made: to hand them over takes about that, and more workers "
    "do not change it. Hand over less: few large tensors instead of many small objects, smaller types such as uint8 "
    "for images. If a batch is made in less time than that, {}=0 is faster."
)
_NEARER: Final = (
    "Read less, or from nearer: few large files instead of many small ones, a copy on a disk of this machine, what is "
    "read again kept in memory."
)
_NO_DISK: Final = (
    "It is mostly no disk that they wait for, but a network, a lock or a sleep: ask for several samples at once, keep "
    "what is asked for again, or do without the lock."
)
_UNSEEN: Final = (
    "The workers do not keep up, or what they hand over takes its time: which of them was not seen here. Try the "
    "loader by itself, with fewer and more workers. "
)
_TRY: Final = "perfhooks try --loader -- python train.py"
_AT_ONCE: Final = """\
order = torch.randperm(len(images))
for chosen in order.split(batch_size):
    batch = images[chosen]   # one operator, instead of one sample at a time"""


class _Wait(NamedTuple):
    """The wait for data of a step that nobody records, as far as the run knows one; in milliseconds."""

    exposed: float
    """While no device works."""
    whole: float
    step: float
    is_unrecorded: bool

    @property
    def share(self) -> float:
        """Of the step, from 0 to 1."""
        return self.exposed / self.step if self.step else 0.0

    @property
    def rest(self) -> float:
        """What a step takes without it."""
        return self.step - self.exposed


class _Advice(NamedTuple):
    """What to do, the lines to write, and how much of the wait is left then; None where nobody can say."""

    text: str
    code: str
    left: float | None = None


def waiting_for_data(seen: Evidence) -> Iterator[Finding]:
    """The loop waits for the next batch for 5% of the step or more, while no device works.

    Source: `WAITING`; the time is that of steps that were not recorded, where the timeline has it, else ``data_ms`` of
    the table of steps; less the moments in which a device worked. Making a batch is many small calls in Python, so with
    stacks recording can add more to it than it takes.

    Measured: on the host, where a batch takes longer to make than to hand over (`HANDED_OVER_MS`) and there are
    processors to spare: batches of 64 samples of 0.2 ms of work came from two workers in 83 ms instead of 118, on a
    busy machine with two cores. With a device the wait is the host's all the same. How many workers, and what they
    give, says `perfhooks.analysis.findings.loader_plan`, of what the workers did. Elsewhere other advice is given,
    which was not measured: the gain is an upper bound.
    """
    fetches = data_ranges(seen)
    waited = _waited(seen, fetches)
    if waited.share < WAITING:
        return
    alone, workers = _is_alone(seen), _has_workers(seen)
    plan = planned(seen)
    advice, code, left = _advice(seen, waited, plan, alone=alone, workers=workers)
    loader = seen.told.loader
    slowest = seen.steps.sort("data_ms", descending=True, nulls_last=True).head(1)
    number = slowest["step"][0]
    evidence = [
        *([_of_timeline(seen)] if waited.is_unrecorded else []),
        f"data_ms is {words.ms(seen.mean('data_ms'))} of {words.ms(seen.mean('wall_ms'))}, the mean of {seen.numbers}",
        *([f"the longest wait is {words.ms(slowest['data_ms'][0])}, in step {number}"] if number is not None else []),
        *(["the batches are made in the process that waits for them"] if alone else []),
        *(["the batches come from worker processes"] if workers else []),
        *([f"a batch takes a worker {plan.cost}"] if plan is not None and seen.told.making else []),
        *_loader(seen),
        *_by_workers(seen),
    ]
    functions = most(seen.own_time_in(seen.spans(fetches), whole=True))
    evidence += functions or seen.by_line(seen.outermost(fetches))
    evidence += [f"{loader.line}{ASKS}"] if loader is not None and loader.line else []
    yield from seen.finding(
        "waiting-for-data",
        waited.exposed - (left or 0.0),
        is_measured=left is not None and seen.is_device_traced >= seen.uses_device,
        bound_ms=waited.exposed,
        title=f"The {seen.unit} waits {words.ms(waited.exposed)} for data, {words.share(waited.share)} of its time.",
        estimate=_estimate(seen, left),
        evidence=evidence,
        advice=advice,
        code=code,
        of=None if waited.is_unrecorded else _exposed(seen, fetches),
        is_wait=not alone,
        wait_ms=waited.exposed,
        wait_share=waited.exposed / waited.whole,
    )


def planned(seen: Evidence) -> LoaderPlan | None:
    """How many workers would keep up with the steps of a window; None where nobody saw what a batch costs.

    Where the training makes its batches itself, that is how long it waits for one, all of it taken for computing.
    """
    fetches, told = data_ranges(seen), seen.told
    waited = _waited(seen, fetches)
    if waited.rest <= 0 or waited.whole <= 0:
        return None
    rest = waited.rest
    own = (waited.step - waited.whole) * (1 if seen.is_device_traced else told.threads or 1)
    if told.making and seen.unrecorded_thread_ms:  # what it unpacks of a batch that has come looks like a wait
        rest = min(max(rest, seen.unrecorded_thread_ms), waited.step)
        own = max(own, seen.unrecorded_thread_ms)
    batches = max(round(len(seen.outermost(_fetches_of_torch(seen))) / max(seen.count, 1)), 1)
    loader = told.loader or Loader()
    needs = Demand(
        rest_s=rest / 1e3,
        waited_s=(waited.step - rest) / 1e3,
        batches=batches,
        processors=told.processors,
        own_s=own / 1e3,
        memory_bytes=None if told.memory_bytes is None else told.memory_bytes // told.ranks,
        ahead=loader.prefetch_factor or 2,
    )
    if told.making:
        return LoaderPlan.of(told.making, needs)
    if _has_workers(seen):
        return None
    if told.is_busy:  # there are no processors but the one that it has
        needs = replace(needs, processors=(own + waited.whole) / waited.step)
    return LoaderPlan.made(BatchCost(processor_s=waited.whole / batches / 1e3), needs)


def shown_plan(seen: Evidence) -> LoaderPlan | None:
    """The plan of a window in which workers were seen, or a step waits for what the training makes itself."""
    if not seen.told.making and _waited(seen, data_ranges(seen)).share < WAITING:
        return None
    return planned(seen)


def unseen(told: Circumstances) -> str:
    """Return why the loader's workers have no samples; empty if they have some."""
    if not told.unseen_workers:
        return ""
    return (
        f"perfhooks has no sample of the loader's {words.count(told.unseen_workers, 'worker')}: the window was too "
        "short, or this system lets no process read their memory."
    )


def _estimate(seen: Evidence, left: float | None) -> str:
    """How the gain was estimated; see `_advice`."""
    if seen.uses_device and not seen.is_device_traced:
        return "The whole wait: when the device worked meanwhile is unknown."
    if left is None:
        return "The whole wait: how much of it can be saved depends on what makes the batches."
    if left:
        return f"The wait, less what a device did meanwhile and less {words.ms(left)}, which stay by the plan."
    return "The whole wait, less what a device did meanwhile: it vanishes if batches are ready when asked for."


def _exposed(seen: Evidence, fetches: Ints) -> Intervals:
    """When the loop waits for data and no device works."""
    return seen.idle_for(device_time.DATA) if seen.is_device_traced else seen.spans(fetches)


def _waited(seen: Evidence, fetches: Ints) -> _Wait:
    """How long a step waits; of one that nobody records, where the run's own clock knows it."""
    exposed, whole = seen.per_step(_exposed(seen, fetches)), seen.per_step(seen.spans(fetches))
    unrecorded = seen.unrecorded_data_ms
    if unrecorded is not None and whole > 0:
        return _Wait(unrecorded * exposed / whole, unrecorded, seen.unrecorded_ms, is_unrecorded=True)
    waited = min(exposed, seen.mean("data_ms"), seen.host_limit_ms)
    return _Wait(waited, max(seen.mean("data_ms"), waited), seen.step_ms, is_unrecorded=False)


def _is_alone(seen: Evidence) -> bool:
    """Whether batches are made in the training process."""
    return len(seen.starting(ranges.LOADER_ALONE, Kind.ANNOTATION, Kind.OP)) > 0


def _has_workers(seen: Evidence) -> bool:
    """Whether they are made by workers."""
    return not _is_alone(seen) and len(seen.starting(ranges.LOADER_WITH_WORKERS, Kind.ANNOTATION, Kind.OP)) > 0


def _of_timeline(seen: Evidence) -> str:
    waited, step = words.ms(seen.unrecorded_data_ms or 0.0), words.ms(seen.unrecorded_ms)
    return f"unprofiled steps wait {waited} of {step} for data{CLOCK}"


def data_ranges(seen: Evidence) -> Ints:
    """The slices on the thread of the steps in which the loop asks for data."""
    rows = intervals.distinct(_fetches_of_torch(seen), seen.named(rf"^{labels.DATA}$", Kind.ANNOTATION))
    found: Ints = rows[seen.trace.thread[rows] == seen.thread]
    return found


def _fetches_of_torch(seen: Evidence) -> Ints:
    return seen.starting(ranges.LOADER, Kind.ANNOTATION, Kind.OP)


def _advice(seen: Evidence, waited: _Wait, plan: LoaderPlan | None, *, alone: bool, workers: bool) -> _Advice:
    """What to do about a wait.

    Args:
        seen: The window.
        waited: How long a step waits.
        plan: What would keep up, where that is known.
        alone: Whether batches are made in the training process.
        workers: Whether they are made by workers.
    """
    short, setting = words.ms(waited.exposed), faces.setting("num_workers", seen.told.framework)
    if workers and (waited.exposed < HANDED_OVER_MS if plan is None else plan.bound == "hand-over"):
        return _Advice(_HANDED_OVER.format(short, setting), _AT_ONCE)
    if alone and waited.exposed < HANDED_OVER_MS:
        return _Advice(_CHEAPER.format(short, setting), _AT_ONCE)
    if plan is None:
        return _Advice(_UNSEEN + _CHEAPER_SAMPLES, _TRY)
    return _of_plan(seen, plan, waited.rest, alone=alone, workers=workers)


def _of_plan(seen: Evidence, plan: LoaderPlan, rest: float, *, alone: bool, workers: bool) -> _Advice:
    """The same where the plan is known; ``rest`` is what a step takes without its wait, in milliseconds."""
    said = f"{plan} {_room(seen)}"
    if plan.ahead is not None:
        text = f"{plan} Let each worker make more ahead: {words.count(plan.ahead, 'batch', 'batches')}."
        return _Advice(text, _line(seen, prefetch_factor=plan.ahead))
    code = _line(seen, num_workers=plan.advised)
    cheaper = _CHEAPER_SAMPLES
    if plan.bound == "waits":
        cheaper = _NO_DISK if _is_no_disk(seen) else _NEARER
    if not plan.is_of_more:
        is_less = plan.advised < plan.needs.workers
        less = f" {plan.advised} would give as much." if is_less else ""
        return _Advice(f"{said}{less} {cheaper}", code if is_less else _AT_ONCE)
    left = 1e3 * plan.outlook(plan.advised).step_s - rest
    if workers:
        return _Advice(f"The workers do not keep up. {said} {cheaper}", code, left)
    text = (
        f"Let worker processes prepare the next batches while this one is used. {said} Keep them alive between epochs"
        f"{_pinned(seen)}."
    )
    if not alone:
        text += (
            " This is for a DataLoader without workers: whether there is one was not seen. If there is none, fetch the "
            "next batch in a thread before it is asked for."
        )
    return _Advice(text, code, left)


def _pinned(seen: Evidence) -> str:
    """What is said of pinned memory, where batches go to a device and come from elsewhere."""
    is_pinned = (seen.told.loader or Loader()).pin_memory or not seen.is_device_traced
    return "" if is_pinned else ", and have them write into pinned memory so that the copy to the device need not wait"


def _line(seen: Evidence, **settings: object) -> str:
    """Some settings of a loader, and those that go with workers, as far as it does not have them."""
    loader = seen.told.loader or Loader()
    if not loader.persistent_workers:
        settings["persistent_workers"] = True
    if _pinned(seen):
        settings["pin_memory"] = True
    return faces.loader(settings, seen.told.framework)


def _places(seen: Evidence) -> list[looks.WorkerPlace]:
    """Where the workers of the loader spent their time, most first; nowhere, where nobody looked often enough."""
    is_enough = sum(each.looks for each in seen.told.looked) >= _LEAST_LOOKS
    return looks.places(seen.told.looked) if is_enough else []


def _is_no_disk(seen: Evidence) -> bool:
    """Whether workers were seen to wait for something else than a disk, most of the time that they waited."""
    disk, others = (sum(place.parts.get(part, 0) for place in _places(seen)) for part in ("disk", "waits"))
    return others > disk


def _by_workers(seen: Evidence) -> list[str]:
    """The functions in which they spent most of it."""
    found = _places(seen)
    whole = sum(place.total for place in found)
    return [
        f"{place} takes {words.share(place.total / whole)} of the workers' time, {_mostly(place)}"
        for place in found[:_NAMED]
        if place.line and place.total >= _WORTH_NAMING * whole
    ]


def _mostly(place: looks.WorkerPlace) -> str:
    """What workers did there for most of the time."""
    return looks.PARTS[max(place.parts, key=place.parts.__getitem__)]


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
    """What there is for workers to compute with."""
    told = seen.told
    if told.cores is None:
        return "How many processors there are was not seen."
    of_ranks = f" for {told.ranks} ranks" if told.ranks > 1 else ""
    others = ", and others want them too" if told.is_busy else ""
    return f"There are {words.count(told.cores, 'processor')}{of_ranks}{others}."
