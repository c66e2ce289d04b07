from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.analysis.findings import frameworks
from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.analysis.findings.finding import ASKS, CLOCK, HEAVY
from perfhooks.analysis.findings.loader_plan import BatchCost, Demand, LoaderPlan
from perfhooks.core import labels, words
from perfhooks.core.statistics import LEAST_STEPS
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

TRANSFER_MS: Final = 5.0
"""Cost of receiving one batch from a worker. Measured: 5 ms with DDP on two cores."""

_CHEAPER_SAMPLES: Final = (
    "Make each sample cheaper: decode smaller images, cache decoded samples, or augment whole batches, on the "
    "device if there is one."
)
_CHEAPER_BATCH: Final = (
    "A batch takes {} to make. The transfer from a worker process costs more, so leave {} at 0. Make the whole "
    "batch at once instead of sample by sample: index one tensor with all indices of the batch. Keep data that fits "
    "in memory as one tensor."
)
_TRANSFER: Final = (
    "A step waits {} for the transfer of batches from worker processes. More workers do not change this. Transfer "
    "less: few large tensors instead of many small objects, and smaller types such as uint8 for images. If making a "
    "batch takes less time than this, {}=0 is faster."
)
_FASTER_DISK: Final = (
    "Read less or faster: use few large files instead of many small ones, copy the data to a local disk, or cache in "
    "memory."
)
_OTHER_WAITS: Final = (
    "The workers mostly wait for a network, a lock or a sleep, not for a disk. Request several samples at once, cache "
    "repeated requests, or remove the lock."
)
_UNKNOWN_CAUSE: Final = (
    "The workers do not keep up, or the transfer of batches is slow. This window does not show which. Measure the "
    "loader alone, with fewer and more workers. "
)
_TRY: Final = "perfhooks try --loader -- python train.py"
_WHOLE_BATCH: Final = """\
order = torch.randperm(len(images))
for indices in order.split(batch_size):
    batch = images[indices]   # one operator instead of one per sample"""


class _Wait(NamedTuple):
    """Wait for data in a step, in ms."""

    exposed: float
    total_ms: float
    step: float
    is_unprofiled: bool

    @property
    def share(self) -> float:
        return self.exposed / self.step if self.step else 0.0

    @property
    def rest_ms(self) -> float:
        return self.step - self.exposed


class _Advice(NamedTuple):
    text: str
    code: str
    remaining_ms: float | None = None


def waiting_for_data(window: Evidence) -> Iterator[Finding]:
    """The loop waits for the next batch for 5% of the step or more, while no device works.

    Source: `HEAVY`; the wait of unprofiled steps if the timeline has it, otherwise ``data_ms`` of the table of steps;
    without the moments of device work. A batch takes many small Python calls. With stacks, recording can more than
    double its time.

    Measured: on the host, if a batch takes longer to make than to transfer (`TRANSFER_MS`) and CPUs are free. On a
    busy host with two cores, two workers reduced the time of a batch from 118 to 83 ms. A batch had 64 samples with 0.2
    ms of work each. With a device, the host waits in the same way. `perfhooks.analysis.findings.loader_plan` computes
    the number of workers and its effect. Other fixes were not measured: their gain is an upper bound.
    """
    fetches = fetch_ranges(window)
    wait = _data_wait(window, fetches)
    if wait.share < HEAVY:
        return
    is_alone, has_workers = _has_no_workers(window), _has_workers(window)
    plan = plan_loader(window)
    advice, code, remaining_ms = _advice(window, wait, plan, is_alone=is_alone, has_workers=has_workers)
    loader = window.circumstances.loader
    slowest = window.steps.sort("data_ms", descending=True, nulls_last=True).head(1)
    number = slowest["step"][0]
    evidence = [
        *([_timeline_line(window)] if wait.is_unprofiled else []),
        (
            f"data_ms is {words.ms(window.mean('data_ms'))} of {words.ms(window.mean('wall_ms'))} on average over "
            f"{window.numbers}"
        ),
        *([f"the longest wait is {words.ms(slowest['data_ms'][0])}, in step {number}"] if number is not None else []),
        *(["the training process makes the batches itself"] if is_alone else []),
        *(["worker processes make the batches"] if has_workers else []),
        *([f"time of a worker per batch: {plan.cost}"] if plan is not None and window.circumstances.making else []),
        *_loader_settings(window),
        *_worker_lines(window),
    ]
    functions = top_lines(window.own_time_in(window.spans(fetches), whole=True))
    evidence += functions or window.by_line(window.outermost(fetches))
    evidence += [f"{loader.line}{ASKS}"] if loader is not None and loader.line else []
    yield from window.finding(
        "waiting-for-data",
        wait.exposed - (remaining_ms or 0.0),
        is_measured=remaining_ms is not None and window.is_device_traced >= window.uses_device,
        bound_ms=wait.exposed,
        title=f"The {window.unit} waits {words.ms(wait.exposed)} for data, {words.share(wait.share)} of its time.",
        estimate=_estimate(window, remaining_ms),
        evidence=evidence,
        advice=advice,
        code=code,
        of=None if wait.is_unprofiled else _exposed_wait(window, fetches),
        is_wait=not is_alone,
        wait_ms=wait.exposed,
        wait_share=wait.exposed / wait.total_ms,
    )


def plan_loader(window: Evidence) -> LoaderPlan | None:
    """Return the plan for the loader of a window; None if the cost of a batch is unknown.

    Without workers, the wait for a batch counts as computing.
    """
    fetches, circumstances = fetch_ranges(window), window.circumstances
    wait = _data_wait(window, fetches)
    if wait.rest_ms <= 0 or wait.total_ms <= 0:
        return None
    rest_ms = wait.rest_ms
    own = (wait.step - wait.total_ms) * (1 if window.is_device_traced else circumstances.threads or 1)
    if circumstances.making and window.unprofiled_thread_ms:  # unpacking of a received batch looks like a wait
        rest_ms = min(max(rest_ms, window.unprofiled_thread_ms), wait.step)
        own = max(own, window.unprofiled_thread_ms)
    batches = max(round(len(window.outermost(_loader_fetches(window))) / max(window.count, 1)), 1)
    loader = circumstances.loader or Loader()
    needs = Demand(
        rest_s=rest_ms / 1e3,
        waited_s=(wait.step - rest_ms) / 1e3,
        batches=batches,
        processors=circumstances.processors,
        own_s=own / 1e3,
        memory_bytes=None if circumstances.memory_bytes is None else circumstances.memory_bytes // circumstances.ranks,
        ahead=loader.prefetch_factor or 2,
    )
    if circumstances.making:
        return LoaderPlan.of(circumstances.making, needs)
    if _has_workers(window):
        return None
    if circumstances.is_busy:
        needs = replace(needs, processors=(own + wait.total_ms) / wait.step)
    return LoaderPlan.for_cost(BatchCost(processor_s=wait.total_ms / batches / 1e3), needs)


def shown_plan(window: Evidence) -> LoaderPlan | None:
    if not window.circumstances.making and _data_wait(window, fetch_ranges(window)).share < HEAVY:
        return None
    return plan_loader(window)


def missing_samples_text(circumstances: Circumstances) -> str:
    if not circumstances.unseen_workers:
        return ""
    return (
        f"perfhooks has no sample of the loader's {words.count(circumstances.unseen_workers, 'worker')}: the window "
        "was too short, or this system lets no process read their memory."
    )


def _estimate(window: Evidence, remaining_ms: float | None) -> str:
    if window.uses_device and not window.is_device_traced:
        return "The whole wait: the times of device work are unknown."
    if remaining_ms is None:
        return "The whole wait: the possible saving depends on the code that makes the batches."
    if remaining_ms:
        return f"The wait, without device work during it and without {words.ms(remaining_ms)} that would remain."
    return "The whole wait, without device work during it: there is no wait if batches are ready in time."


def _exposed_wait(window: Evidence, fetches: Ints) -> Intervals:
    return window.idle_for(device_time.DATA) if window.is_device_traced else window.spans(fetches)


def _data_wait(window: Evidence, fetches: Ints) -> _Wait:
    """Return the wait in an unprofiled step if the timeline has it."""
    exposed, total_ms = window.per_step(_exposed_wait(window, fetches)), window.per_step(window.spans(fetches))
    unprofiled = window.unprofiled_data_ms
    if unprofiled is not None and total_ms > 0:
        return _Wait(unprofiled * exposed / total_ms, unprofiled, window.unprofiled_ms, is_unprofiled=True)
    wait_ms = min(exposed, window.mean("data_ms"), window.host_limit_ms)
    return _Wait(wait_ms, max(window.mean("data_ms"), wait_ms), window.step_ms, is_unprofiled=False)


def _has_no_workers(window: Evidence) -> bool:
    return len(window.with_prefix(ranges.LOADER_ALONE, Kind.ANNOTATION, Kind.OP)) > 0


def _has_workers(window: Evidence) -> bool:
    return (
        not _has_no_workers(window)
        and len(window.with_prefix(ranges.LOADER_WITH_WORKERS, Kind.ANNOTATION, Kind.OP)) > 0
    )


def _timeline_line(window: Evidence) -> str:
    wait_ms, step = words.ms(window.unprofiled_data_ms or 0.0), words.ms(window.unprofiled_ms)
    return f"unprofiled steps wait {wait_ms} of {step} for data{CLOCK}"


def fetch_ranges(window: Evidence) -> Ints:
    rows = intervals.distinct(_loader_fetches(window), window.matching(rf"^{labels.DATA}$", Kind.ANNOTATION))
    on_thread: Ints = rows[window.trace.thread[rows] == window.thread]
    return on_thread


def _loader_fetches(window: Evidence) -> Ints:
    return window.with_prefix(ranges.LOADER, Kind.ANNOTATION, Kind.OP)


def _advice(window: Evidence, wait: _Wait, plan: LoaderPlan | None, *, is_alone: bool, has_workers: bool) -> _Advice:
    short, setting = words.ms(wait.exposed), frameworks.setting("num_workers", window.circumstances.framework)
    if has_workers and (wait.exposed < TRANSFER_MS if plan is None else plan.bound == "transfer"):
        return _Advice(_TRANSFER.format(short, setting), _WHOLE_BATCH)
    if is_alone and wait.exposed < TRANSFER_MS:
        return _Advice(_CHEAPER_BATCH.format(short, setting), _WHOLE_BATCH)
    if plan is None:
        return _Advice(_UNKNOWN_CAUSE + _CHEAPER_SAMPLES, _TRY)
    return _plan_advice(window, plan, wait.rest_ms, is_alone=is_alone, has_workers=has_workers)


def _plan_advice(window: Evidence, plan: LoaderPlan, rest_ms: float, *, is_alone: bool, has_workers: bool) -> _Advice:
    plan_text = f"{plan} {_cpu_text(window)}"
    if plan.ahead is not None:
        text = f"{plan} Let each worker prefetch more: {words.count(plan.ahead, 'batch', 'batches')}."
        return _Advice(text, _loader_code(window, prefetch_factor=plan.ahead))
    code = _loader_code(window, num_workers=plan.advised)
    cheaper = _CHEAPER_SAMPLES
    if plan.bound == "waits":
        cheaper = _OTHER_WAITS if _is_other_wait(window) else _FASTER_DISK
    if not plan.is_larger:
        is_less = plan.advised < plan.needs.workers
        fewer = f" {plan.advised} would be as fast." if is_less else ""
        return _Advice(f"{plan_text}{fewer} {cheaper}", code if is_less else _WHOLE_BATCH)
    remaining_ms = 1e3 * plan.predict(plan.advised).step_s - rest_ms
    if has_workers:
        return _Advice(f"The workers do not keep up. {plan_text} {cheaper}", code, remaining_ms)
    text = (
        f"Let worker processes prepare the next batches during the current step. {plan_text} Keep them alive between "
        f"epochs{_pinned(window)}."
    )
    if not is_alone:
        text += (
            " This applies to a DataLoader without workers; this window does not show one. Without a DataLoader, fetch "
            "the next batch early, in a thread."
        )
    return _Advice(text, code, remaining_ms)


def _pinned(window: Evidence) -> str:
    is_pinned = (window.circumstances.loader or Loader()).pin_memory or not window.is_device_traced
    return "" if is_pinned else ", and use pinned memory so that the copy to the device does not wait"


def _loader_code(window: Evidence, **settings: object) -> str:
    loader = window.circumstances.loader or Loader()
    if not loader.persistent_workers:
        settings["persistent_workers"] = True
    if _pinned(window):
        settings["pin_memory"] = True
    return frameworks.loader(settings, window.circumstances.framework)


def _worker_places(window: Evidence) -> list[looks.WorkerPlace]:
    is_enough = sum(samples.looks for samples in window.circumstances.looked) >= LEAST_STEPS
    return looks.places(window.circumstances.looked) if is_enough else []


def _is_other_wait(window: Evidence) -> bool:
    disk, waits = (sum(place.parts.get(part, 0) for place in _worker_places(window)) for part in ("disk", "waits"))
    return waits > disk


def _worker_lines(window: Evidence) -> list[str]:
    places = _worker_places(window)
    total = sum(place.total for place in places)
    return [
        f"{place} takes {words.share(place.total / total)} of the workers' time, {_main_activity(place)}"
        for place in places[:2]
        if place.line and place.total >= 0.1 * total
    ]


def _main_activity(place: looks.WorkerPlace) -> str:
    return looks.PARTS[max(place.parts, key=place.parts.__getitem__)]


def _loader_settings(window: Evidence) -> list[str]:
    loader = window.circumstances.loader
    if loader is None:
        return []
    names = (
        *("num_workers", "batch_size", "pin_memory", "persistent_workers", "prefetch_factor"),
        *(["batch_sampler"] if loader.batch_sampler else []),
    )
    values = ((name, getattr(loader, name)) for name in names)
    return [f"settings of the loader: {', '.join(f'{name}={value}' for name, value in values if value is not None)}"]


def _cpu_text(window: Evidence) -> str:
    circumstances = window.circumstances
    if circumstances.cores is None:
        return "The number of CPUs is unknown."
    of_ranks = f" for {circumstances.ranks} ranks" if circumstances.ranks > 1 else ""
    contention = ", shared with other programs" if circumstances.is_busy else ""
    return f"This host has {words.count(circumstances.cores, 'CPU')}{of_ranks}{contention}."
