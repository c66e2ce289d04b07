"""Plan the number of DataLoader workers from the cost of a batch and the demand of the training.

Workers slow each other down only when they compute on a CPU, not while they wait for a disk, a network or a lock::

    worker 0   ▒▒▒▒▒▒▒▒████████▌▒▒▒▒▒▒▒▒████████▌         ▒ waits: any number of workers can wait at once
    worker 1   ▒▒▒▒▒▒▒▒░░░░████████▌▒▒▒▒▒▒▒▒██████        █ computes     ▌ transfers a batch: also computes
    worker 2   ▒▒▒▒▒▒▒▒░░░░░░░░████████▌▒▒▒▒▒▒▒▒██        ░ is ready to compute, but no CPU is free
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from perfhooks.analysis.findings.finding import WAITING
from perfhooks.analysis.findings.texts import EvidenceLine, FindingText

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.run.loader.workers import LoaderWorker

Bound = Literal["CPUs", "waits", "slow batches", "transfer"]

COLUMNS: Final = {
    "workers": int,
    **dict.fromkeys(("batches_per_s", "of_step_percent", "waits_percent", "step_ms"), float),
    "note": str,
}

KEEPS_UP: Final = 1.02
"""Workers keep up if the step time is at most this multiple of the step time without waits for data."""


@dataclass(frozen=True, kw_only=True)
class BatchCost:
    """Time that a worker needs for one batch, in seconds."""

    cpu_s: float
    waits_s: float = 0.0
    """Wait for a disk, a network or a lock."""
    transfer_s: float = 0.0
    threads: float = 1.0
    """Mean number of CPUs that a worker uses while it computes."""
    deviation: float = 0.0
    longest_s: float = 0.0
    memory_bytes: int = 0

    @classmethod
    def of(cls, loader_workers: Sequence[LoaderWorker], free: float | None = None) -> BatchCost | None:
        """Return the mean cost over all workers; None if they made no batch.

        ``free`` is the number of free CPUs. If each worker has a free CPU, time without CPU use counts as a wait for a
        disk, a network or a lock.
        """
        batches = sum(worker.batches for worker in loader_workers)
        making = sum(worker.busy_s for worker in loader_workers)
        if not batches or making <= 0:
            return None
        processor = sum(worker.cpu_s for worker in loader_workers)
        queued = [worker.queued_s for worker in loader_workers if worker.queued_s is not None]
        has_room = len(queued) == len(loader_workers) or free is None or free >= _concurrent(loader_workers)
        waits = max(making - processor - sum(queued), 0.0) if has_room else 0.0
        computing = max(making - waits - sum(queued), 1e-9)
        mean = making / batches
        return cls(
            cpu_s=processor / batches,
            waits_s=waits / batches,
            transfer_s=sum(worker.transfer_s for worker in loader_workers) / batches,
            threads=max(processor / computing, 1.0),
            deviation=math.sqrt(max(sum(worker.squares for worker in loader_workers) / batches / mean**2 - 1, 0.0)),
            longest_s=max(worker.longest_s for worker in loader_workers),
            memory_bytes=max((worker.memory_bytes or 0 for worker in loader_workers), default=0),
        )

    def scaled(self, factor: float) -> BatchCost:
        times = {name: factor * getattr(self, name) for name in ("cpu_s", "waits_s", "transfer_s", "longest_s")}
        return replace(self, **times)

    @property
    def alone_s(self) -> float:
        """Time of a batch if a CPU is always free."""
        return self.cpu_s / self.threads + self.waits_s + self.transfer_s

    def evidence(self, text: FindingText) -> EvidenceLine:
        seconds = (
            ("cost-of-cpu", self.cpu_s),
            ("cost-of-waits", self.waits_s),
            ("cost-of-transfer", self.transfer_s),
        )
        parts = [text(name, time_ms=1e3 * part) for name, part in seconds if part >= self.alone_s / 100]
        name = "cost-with-memory" if self.memory_bytes else "cost"
        return text(name, time_ms=1e3 * self.alone_s, parts=parts, bytes=self.memory_bytes)

    def rate(self, workers: int, cpus: float) -> float:
        """Return the batches per second of all ``workers`` together, on a number of CPUs.

        Source: Buzen, Computational algorithms for closed queueing networks with exponential servers, 1973, equation
        10. The stations of the network are the CPUs (shared evenly) and the waits (no queue).
        """
        computes = max(self.cpu_s + self.transfer_s, 1e-9)
        log_served = [0.0]  # use logarithms, because the values underflow for 200 workers
        for number in range(1, workers + 1):
            log_served.append(log_served[-1] + math.log(computes / min(number * self.threads, max(cpus, 1e-6))))

        def log_states(count: int) -> float:
            if self.waits_s <= 0:
                return log_served[count]
            terms = [
                log_served[computing]
                + (count - computing) * math.log(self.waits_s)
                - math.lgamma(count - computing + 1)
                for computing in range(count + 1)
            ]
            top = max(terms)
            return top + math.log(sum(math.exp(term - top) for term in terms))

        return math.exp(log_states(workers - 1) - log_states(workers))


@dataclass(frozen=True, kw_only=True)
class Demand:
    rest_s: float
    """Step time minus the wait for data."""
    waited_s: float
    batches: int = 1
    cpus: float | None = None
    own_s: float = 0.0
    memory_bytes: int | None = None
    workers: int = 0
    ahead: int = 2

    @property
    def step_s(self) -> float:
        return self.rest_s + self.waited_s

    def step_with(self, cost: BatchCost, workers: int) -> float:
        """Return the step time with ``workers``. Shorter steps leave fewer CPUs to the workers."""
        low, high = self.rest_s, max(self.batches * cost.alone_s * 4, self.step_s) * 64
        if not workers:
            return self.rest_s + self.batches * (cost.cpu_s / cost.threads + cost.waits_s)
        for _ in range(60):
            middle = math.sqrt(low * high)
            is_made = self.rate(cost, workers, middle) * middle >= self.batches
            low, high = (low, middle) if is_made else (middle, high)
            if high <= low * 1.001:
                break
        return high if high > self.rest_s * 1.001 else self.rest_s

    def fitted_cost(self, cost: BatchCost) -> BatchCost:
        for _ in range(4):
            step_s = self.step_with(cost, self.workers)
            if step_s - self.rest_s < self.waited_s / 2:
                break
            cost = cost.scaled(self.step_s / step_s)
        return cost

    def rate(self, cost: BatchCost, workers: int, step_s: float) -> float:
        if not workers:
            return self.batches / step_s
        free = math.inf if self.cpus is None else self.cpus - self.own_s / step_s
        return cost.rate(workers, free) if free > 0 else 0.0


class PlanRow(NamedTuple):
    workers: int
    step_s: float
    supply: float
    rate: float

    @property
    def wait_share(self) -> float:
        return 1 - self.supply


@dataclass(frozen=True, kw_only=True)
class LoaderPlan:
    needs: Demand
    cost: BatchCost
    bound: Bound
    keep_up: int
    """Smallest number of workers for which no step waits, if CPUs and memory are unlimited."""
    advised: int
    """Smallest number of workers with the best step time that this host can reach."""
    is_short_of_memory: bool = False
    ahead: int | None = None
    """Smallest ``prefetch_factor`` for which the slowest batch delays no step."""

    @classmethod
    def of(cls, loader_workers: Sequence[LoaderWorker], needs: Demand) -> LoaderPlan | None:
        """Return the recommended workers; None if no batch was made or the demand is unknown.

        If workers waited in the run queue, the plan assumes fewer free CPUs, but at least the CPUs in use.
        """
        cost = BatchCost.of(loader_workers, needs.cpus)
        wall = sum(worker.wall_s for worker in loader_workers)
        if cost is None or wall <= 0 or needs.rest_s <= 0:
            return None
        workers = _concurrent(loader_workers)
        computed = sum(worker.cpu_s + worker.transfer_s for worker in loader_workers)
        queued = sum(worker.queued_s or 0.0 for worker in loader_workers)
        if needs.cpus is not None and queued > 0:
            used = computed / wall * workers + needs.own_s / needs.step_s
            available = needs.cpus * computed / (computed + queued)
            needs = replace(needs, cpus=min(needs.cpus, max(used, available)))
        needs = replace(needs, workers=workers)
        return cls.for_cost(needs.fitted_cost(cost), needs)

    @classmethod
    def for_cost(cls, cost: BatchCost, needs: Demand) -> LoaderPlan:
        keep_up = min(math.ceil(needs.batches * cost.alone_s / needs.rest_s / KEEPS_UP), 256)
        max_workers = keep_up
        if needs.memory_bytes is not None and cost.memory_bytes:
            max_workers = min(max_workers, needs.workers + needs.memory_bytes // cost.memory_bytes)
        target_s = max(needs.rest_s * KEEPS_UP, needs.step_with(cost, max(max_workers, 1)) * 1.05)
        advised = (
            bisect.bisect_left(range(max_workers), True, key=lambda less: needs.step_with(cost, less + 1) <= target_s)
            + 1
        )
        step_s = needs.step_with(cost, needs.workers)
        bound: Bound = "CPUs"
        if cost.transfer_s > cost.alone_s / 2:
            bound = "transfer"
        elif cost.waits_s > cost.alone_s / 2:
            bound = "waits"
        ahead = None
        if needs.workers and step_s - needs.rest_s < needs.waited_s / 2:
            advised, bound = needs.workers, "transfer"
            batch_s = needs.workers * needs.rest_s / needs.batches
            # some batches are slow if the standard deviation of batch times is at least the mean
            if cost.deviation >= 1 and cost.longest_s > batch_s * needs.ahead:
                bound, ahead = "slow batches", math.ceil(cost.longest_s / batch_s)
        elif min(advised, max_workers) <= 0 or needs.step_with(cost, advised) * KEEPS_UP > min(step_s, needs.step_s):
            advised = min(needs.workers, advised)
        return cls(
            needs=needs,
            cost=cost,
            bound=bound,
            keep_up=keep_up,
            advised=advised,
            is_short_of_memory=max_workers < keep_up and advised == max_workers,
            ahead=ahead,
        )

    @property
    def is_larger(self) -> bool:
        return self.advised > self.needs.workers

    @property
    def free(self) -> int | None:
        needs = self.needs
        return None if needs.cpus is None else max(math.floor(needs.cpus - needs.own_s / needs.step_s), 0)

    def predict(self, workers: int) -> PlanRow:
        step_s = self.needs.step_with(self.cost, workers)
        return PlanRow(workers, step_s, self.needs.rest_s / step_s, self.needs.rate(self.cost, workers, step_s))

    @property
    def predictions(self) -> list[PlanRow]:
        powers = {1 << power for power in range(self.keep_up.bit_length())}
        return [self.predict(workers) for workers in sorted(powers | {self.needs.workers, self.advised, self.keep_up})]

    @property
    def rows(self) -> dict[str, list[Any]]:
        rows = self.predictions if self.bound in ("CPUs", "waits") or self.is_larger else []
        keeps_up = self.predict(self.keep_up).supply * KEEPS_UP >= 1
        labels = {self.keep_up: "would keep up" if keeps_up else "would keep up with more CPUs"}
        labels[self.advised] = "advised"
        labels[self.needs.workers] = f"{labels[self.needs.workers]}, now" if self.needs.workers in labels else "now"
        return {
            "workers": [row.workers for row in rows],
            "batches_per_s": [row.rate for row in rows],
            "of_step_percent": [100 * row.supply for row in rows],
            "waits_percent": [100 * row.wait_share for row in rows],
            "step_ms": [1e3 * row.step_s for row in rows],
            "note": [labels.get(row.workers, "") for row in rows],
        }

    def __str__(self) -> str:
        return f"{self._reason} {self._number}".strip()

    @property
    def _reason(self) -> str:
        cost, needs = self.cost, self.needs
        if self.bound == "waits":
            return _phrase("plan-waits", share=cost.waits_s / cost.alone_s)
        if self.bound == "slow batches":
            return _phrase(
                "plan-slow-batches",
                mean_ms=1e3 * cost.alone_s,
                longest_ms=1e3 * cost.longest_s,
                ahead_ms=1e3 * (needs.workers * needs.ahead * needs.rest_s / needs.batches),
            )
        if self.bound == "transfer" and not self.is_larger:
            return _phrase("plan-late-transfer")
        return _phrase("plan-transfer", share=cost.transfer_s / cost.alone_s) if self.bound == "transfer" else ""

    @property
    def _number(self) -> str:
        needs, row = self.needs, self.predict(self.advised)
        if self.bound in ("slow batches", "transfer") and not self.is_larger:
            return _phrase("plan-no-help", workers=needs.workers)
        planned_wait = row.wait_share
        if row.supply * KEEPS_UP >= 1:
            enough = _phrase("plan-enough", workers=self.advised)
            return _phrase("plan-keeps-up", enough=enough, planned_wait=planned_wait)
        enough = self._enough
        if self.is_larger:
            values = {"enough": enough, "advised": self.advised, "supply": row.supply}
            return _phrase("plan-limited", **values, planned_wait=planned_wait)
        name = "plan-more-not-faster" if needs.workers else "plan-not-faster"
        return _phrase(name, enough=enough, workers=needs.workers)

    @property
    def _enough(self) -> str:
        free, name = self.free, "plan-enough"
        if self.keep_up <= self.needs.workers:
            name = "plan-enough-with-cpus" if self.keep_up > 1 else "plan-enough-with-cpu"
        enough = _phrase(name, workers=self.keep_up)
        if self.is_short_of_memory:
            return _phrase("plan-memory", enough=enough, advised=self.advised)
        if free is None:
            return enough
        name = "plan-no-cpu" if not free else "plan-one-cpu" if free == 1 else "plan-cpus"
        return _phrase(name, enough=enough, free=free)


def _phrase(name: str, **values: object) -> str:
    return str(FindingText(WAITING, {})(name, **values))


def _concurrent(loader_workers: Sequence[LoaderWorker]) -> int:
    """Worker indices repeat in each epoch."""
    return len({worker.worker for worker in loader_workers})
