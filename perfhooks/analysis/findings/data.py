from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from perfhooks.analysis.findings import frameworks
from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.analysis.findings.finding import HEAVY, WAITING
from perfhooks.analysis.findings.loader_plan import BatchCost, Demand, LoaderPlan
from perfhooks.analysis.findings.texts import FindingText
from perfhooks.core import labels, words
from perfhooks.core.statistics import LEAST_STEPS
from perfhooks.run.circumstances import Circumstances, Loader
from perfhooks.run.loader.workers import PARTS, WorkerPlace, places
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import ranges
from perfhooks.trace.nesting import intervals
from perfhooks.trace.tables import device_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.analysis.findings.texts import EvidenceLine
    from perfhooks.run.capture import Capture, Cost
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Intervals

TRANSFER_MS: Final = 5.0
"""Time in ms to receive one batch from a worker, measured with DDP on two cores."""


class _Wait(NamedTuple):
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


class _Fix(NamedTuple):
    versions: tuple[str, ...]
    """Names of the alternative texts in ``waiting-for-data.toml``, such as ``workers``."""
    settings: Mapping[str, object] = MappingProxyType({})
    remaining_ms: float | None = None


def waiting_for_data(window: Evidence) -> Iterator[Finding]:
    """Report waits for the next batch while no device works, if they take at least 5% of the step (`HEAVY`).

    The wait of unprofiled steps is used if the run's timeline has it, because recording stacks can double the time of a
    batch. Without a timeline, the wait is ``data_ms`` of the table of steps.

    The gain of more workers was measured on the host, with free CPUs and batches that take longer to make than to
    transfer (`TRANSFER_MS`). On a busy host with two cores, two workers reduced the time of a batch from 118 to 83 ms.
    The gains of other fixes were not measured and are upper bounds.
    """
    fetches, use = fetch_ranges(window), LoaderUse.of(window)
    wait = use.wait(window.capture.cost)
    if wait.share < HEAVY:
        return
    plan = use.plan(window.capture)
    text, fix = use.advise(window.capture)
    circumstances = window.circumstances
    loader = circumstances.loader
    slowest = window.steps.sort("data_ms", descending=True, nulls_last=True).head(1)
    number = slowest["step"][0]
    clock = text("clock", data_ms=wait.total_ms, step_ms=wait.step)
    evidence = [
        *([clock] if wait.is_unprofiled else []),
        text("mean", data_ms=window.mean("data_ms"), wall_ms=window.mean("wall_ms"), steps=window.numbers),
        *([text("longest", data_ms=slowest["data_ms"][0], step=number)] if number is not None else []),
        *([text("without-workers")] if use.is_alone else []),
        *([text("with-workers")] if use.has_workers else []),
        *([plan.cost.evidence(text)] if plan is not None and circumstances.workers else []),
        *([text("settings", settings=_settings(loader))] if loader is not None else []),
        *_worker_lines(text, window),
    ]
    functions = top_lines(window.own_time_in(window.spans(fetches), whole=True))
    evidence += functions or window.by_line(window.outermost(fetches))
    evidence += [text("loop", line=loader.line)] if loader is not None and loader.line else []
    yield from window.finding(
        text,
        wait.exposed - (fix.remaining_ms or 0.0),
        is_measured=fix.remaining_ms is not None and window.is_device_traced >= window.uses_device,
        bound_ms=wait.exposed,
        evidence=evidence,
        of=None if wait.is_unprofiled else _exposed_wait(window, fetches),
        is_wait=not use.is_alone,
        wait_ms=wait.exposed,
        wait_share=wait.exposed / wait.total_ms,
    )


class LoaderUse(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a DataLoader in the profiled steps, in ms per step."""

    step_ms: float
    fetch_ms: float
    exposed_ms: float
    """Time of batch fetches during which no device works."""
    data_ms: float
    limit_ms: float
    """Maximum gain from less host time."""
    batches: int
    are_numbered: bool
    is_device_traced: bool
    uses_device: bool
    is_alone: bool
    has_workers: bool

    @classmethod
    def of(cls, window: Evidence) -> LoaderUse:
        fetches = fetch_ranges(window)
        return cls(
            step_ms=window.step_ms,
            fetch_ms=window.per_step(window.spans(fetches)),
            exposed_ms=window.per_step(_exposed_wait(window, fetches)),
            data_ms=window.mean("data_ms"),
            limit_ms=window.host_limit_ms,
            batches=max(round(len(window.outermost(_loader_fetches(window))) / max(window.count, 1)), 1),
            are_numbered=window.are_numbered,
            is_device_traced=window.is_device_traced,
            uses_device=window.uses_device,
            is_alone=_has_no_workers(window),
            has_workers=_has_workers(window),
        )

    def wait(self, cost: Cost) -> _Wait:
        if cost.idle_step_ms and cost.idle_data_ms is not None and self.are_numbered and self.fetch_ms > 0:
            total_ms = min(cost.idle_data_ms, cost.idle_step_ms)
            return _Wait(total_ms * self.exposed_ms / self.fetch_ms, total_ms, cost.idle_step_ms, is_unprofiled=True)
        wait_ms = min(self.exposed_ms, self.data_ms, self.limit_ms)
        return _Wait(wait_ms, max(self.data_ms, wait_ms), self.step_ms, is_unprofiled=False)

    def plan(self, capture: Capture) -> LoaderPlan | None:
        """Return the recommended DataLoader workers; None if the cost of a batch is unknown.

        Without workers, the training thread makes the batches, so its wait for data counts as CPU time.
        """
        circumstances, thread_ms = capture.circumstances, capture.cost.idle_thread_ms
        wait = self.wait(capture.cost)
        if wait.rest_ms <= 0 or wait.total_ms <= 0:
            return None
        rest_ms = wait.rest_ms
        own = (wait.step - wait.total_ms) * (1 if self.is_device_traced else circumstances.threads or 1)
        if circumstances.workers and wait.is_unprofiled and thread_ms:
            # the trace records unpacking a received batch as a wait
            rest_ms = min(max(rest_ms, thread_ms), wait.step)
            own = max(own, thread_ms)
        memory_bytes, loader = circumstances.memory_bytes, circumstances.loader or Loader()
        needs = Demand(
            rest_s=rest_ms / 1e3,
            waited_s=(wait.step - rest_ms) / 1e3,
            batches=self.batches,
            cpus=circumstances.processors,
            own_s=own / 1e3,
            memory_bytes=None if memory_bytes is None else memory_bytes // circumstances.ranks,
            ahead=loader.prefetch_factor or 2,
        )
        if circumstances.workers:
            return LoaderPlan.of(circumstances.workers, needs)
        if self.has_workers:
            return None
        if circumstances.is_busy:
            needs = replace(needs, cpus=(own + wait.total_ms) / wait.step)
        return LoaderPlan.for_cost(BatchCost(cpu_s=wait.total_ms / self.batches / 1e3), needs)

    def advise(self, capture: Capture) -> tuple[FindingText, _Fix]:
        circumstances, wait, plan = capture.circumstances, self.wait(capture.cost), self.plan(capture)
        fix, framework = self._fix(circumstances, wait, plan), circumstances.framework

        def texts(*versions: str, **values: object) -> FindingText:
            unit = "step" if self.are_numbered else "recording"
            return FindingText(WAITING, {"unit": unit, **values}, versions, frameworks.package(framework))

        text = texts(
            self._version_of_estimate(fix.remaining_ms),
            *fix.versions,
            wait_ms=wait.exposed,
            share=wait.share,
            remaining_ms=fix.remaining_ms,
            num_workers=frameworks.setting("num_workers", framework),
            plan=plan,
            ahead=plan and plan.ahead,
            advised=plan and plan.advised,
            cpus=circumstances.cores,
            ranks=circumstances.ranks,
            loader=self._loader_code(circumstances, fix.settings),
        )
        return text, fix

    def shown_plan(self, capture: Capture) -> LoaderPlan | None:
        is_shown = capture.circumstances.workers or self.wait(capture.cost).share >= HEAVY
        return self.plan(capture) if is_shown else None

    def _version_of_estimate(self, remaining_ms: float | None) -> str:
        if self.uses_device and not self.is_device_traced:
            return "untraced"
        if remaining_ms is None:
            return "unknown-saving"
        return "remaining" if remaining_ms else ""

    def _fix(self, circumstances: Circumstances, wait: _Wait, plan: LoaderPlan | None) -> _Fix:
        if self.has_workers and (wait.exposed < TRANSFER_MS if plan is None else plan.bound == "transfer"):
            return _Fix(("transfer", "whole-batch"))
        if self.is_alone and wait.exposed < TRANSFER_MS:
            return _Fix(("cheap-batches", "whole-batch"))
        if plan is None:
            return _Fix(("unknown-cause", "cheaper-samples"))
        if plan.ahead is not None:
            return _Fix(("prefetch",), {"prefetch_factor": plan.ahead})
        return self._fix_of_plan(circumstances, plan, wait.rest_ms)

    def _fix_of_plan(self, circumstances: Circumstances, plan: LoaderPlan, rest_ms: float) -> _Fix:
        cpus, settings = _version_of_cpus(circumstances), {"num_workers": plan.advised}
        cheaper = "cheaper-samples"
        if plan.bound == "waits":
            cheaper = "other-waits" if _is_other_wait(circumstances) else "faster-disk"
        if not plan.is_larger:
            is_less = plan.advised < plan.needs.workers
            return _Fix(("enough-workers", cpus, "fewer-workers" if is_less else "whole-batch", cheaper), settings)
        remaining_ms = 1e3 * plan.predict(plan.advised).step_s - rest_ms
        if self.has_workers:
            return _Fix(("more-workers", cpus, cheaper), settings, remaining_ms)
        keep_alive = "keep-alive-and-pin" if self._needs_pinning(circumstances) else "keep-alive"
        return _Fix((cpus, keep_alive, "" if self.is_alone else "unseen-loader"), settings, remaining_ms)

    def _needs_pinning(self, circumstances: Circumstances) -> bool:
        return self.is_device_traced and not (circumstances.loader or Loader()).pin_memory

    def _loader_code(self, circumstances: Circumstances, settings: Mapping[str, object]) -> str:
        loader = circumstances.loader or Loader()
        added = {
            **({} if loader.persistent_workers else {"persistent_workers": True}),
            **({"pin_memory": True} if self._needs_pinning(circumstances) else {}),
        }
        return frameworks.loader({**settings, **added}, circumstances.framework)


def missing_samples_text(circumstances: Circumstances) -> str:
    if not circumstances.unseen_workers:
        return ""
    return (
        f"perfhooks has no sample of the loader's {words.count(circumstances.unseen_workers, 'worker')}: the window "
        "was too short, or this system lets no process read their memory."
    )


def _exposed_wait(window: Evidence, fetches: Ints) -> Intervals:
    return window.idle_for(device_time.DATA) if window.is_device_traced else window.spans(fetches)


def _has_no_workers(window: Evidence) -> bool:
    return len(window.with_prefix(ranges.LOADER_ALONE, Kind.ANNOTATION, Kind.OP)) > 0


def _has_workers(window: Evidence) -> bool:
    return (
        not _has_no_workers(window)
        and len(window.with_prefix(ranges.LOADER_WITH_WORKERS, Kind.ANNOTATION, Kind.OP)) > 0
    )


def fetch_ranges(window: Evidence) -> Ints:
    rows = intervals.distinct(_loader_fetches(window), window.matching(rf"^{labels.DATA}$", Kind.ANNOTATION))
    on_thread: Ints = rows[window.trace.thread[rows] == window.thread]
    return on_thread


def _loader_fetches(window: Evidence) -> Ints:
    return window.with_prefix(ranges.LOADER, Kind.ANNOTATION, Kind.OP)


def _version_of_cpus(circumstances: Circumstances) -> str:
    if circumstances.cores is None:
        return "unknown-cpus"
    if circumstances.is_busy:
        return "shared-cpus-of-ranks" if circumstances.ranks > 1 else "shared-cpus"
    return "cpus-of-ranks" if circumstances.ranks > 1 else "cpus"


def _worker_places(circumstances: Circumstances) -> list[WorkerPlace]:
    is_enough = sum(worker.samples for worker in circumstances.workers) >= LEAST_STEPS
    return places(circumstances.workers) if is_enough else []


def _is_other_wait(circumstances: Circumstances) -> bool:
    disk, waits = (
        sum(place.parts.get(part, 0) for place in _worker_places(circumstances)) for part in ("disk", "waits")
    )
    return waits > disk


def _worker_lines(text: FindingText, window: Evidence) -> list[EvidenceLine]:
    ranked = _worker_places(window.circumstances)
    total = sum(place.total for place in ranked)
    return [
        text("worker", place=place, share=place.total / total, activity=_main_activity(place))
        for place in ranked[:2]
        if place.line and place.total >= 0.1 * total
    ]


def _main_activity(place: WorkerPlace) -> str:
    return PARTS[max(place.parts, key=place.parts.__getitem__)]


def _settings(loader: Loader) -> str:
    names = (
        *("num_workers", "batch_size", "pin_memory", "persistent_workers", "prefetch_factor"),
        *(["batch_sampler"] if loader.batch_sampler else []),
    )
    values = ((name, getattr(loader, name)) for name in names)
    return ", ".join(f"{name}={value}" for name, value in values if value is not None)
