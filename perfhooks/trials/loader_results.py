from __future__ import annotations

import statistics as medians
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.analysis.comparison.difference import Outcome
from perfhooks.analysis.findings.loader_plan import BatchCost, Demand, LoaderPlan
from perfhooks.core import words

if TYPE_CHECKING:
    from collections.abc import Iterator

TOLERANCE: Final = 0.05
"""Relative difference that counts as equal, because two runs of one program differ by as much."""
_COSTLY_S: Final = 0.1
"""Minimum start-up time of new workers per pass, in s, before ``persistent_workers`` is suggested."""
_WAITING: Final = 50.0


class LoaderSetting(msgspec.Struct, frozen=True):
    workers: int
    ahead: int | None = None
    """Prefetched batches per worker (``prefetch_factor``); None without workers."""
    pinned: bool = False

    def __str__(self) -> str:
        ahead = "" if self.ahead is None else f", prefetch_factor={self.ahead}"
        return f"num_workers={self.workers}{ahead}{', pin_memory=True' if self.pinned else ''}"


class LoaderResult(msgspec.Struct, frozen=True, kw_only=True):
    setting: LoaderSetting
    is_own: bool = False
    problem: str = ""
    batches: int = 0
    seconds: float = 0.0
    processor_s: float | None = None
    queued_s: float | None = None
    memory_bytes: int | None = None
    """Bytes of one worker that no other process shares."""
    first_s: float | None = None
    """Time in s from the start of a pass, including worker start-up, to the first batch."""
    again_s: float | None = None
    """Time in s to the first batch of a later pass with existing workers."""
    rates: tuple[float, ...] = ()
    verdict: Outcome | None = None
    """Result of the comparison with half as many workers, or, for another ``prefetch_factor`` or ``pin_memory``, with
    the training's own setting.
    """
    planned: float | None = None

    @property
    def processors(self) -> float | None:
        return None if self.processor_s is None or not self.seconds else self.processor_s / self.seconds

    @property
    def waited_percent(self) -> float | None:
        if self.processor_s is None or not self.seconds:
            return None
        worker_s = self.seconds * max(self.setting.workers, 1)
        return 100 * max(1 - (self.processor_s + (self.queued_s or 0.0)) / worker_s, 0.0)

    def is_usual(self, ahead: int, own: LoaderResult | None) -> bool:
        return self.setting.ahead == ahead and (own is None or self.setting.pinned == own.setting.pinned)

    @property
    def rate(self) -> float:
        return medians.median(self.rates) if self.rates else 0.0


class LoaderTrial(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Description of the loader: class, data set and batch size."""
    tried: tuple[LoaderResult, ...] = ()
    cores: int | None = None
    """Number of CPUs available to this process, shared by all ranks on the node."""
    ranks: int = 1
    keeps_workers: bool = False
    """Whether workers survive a pass, as with ``persistent_workers=True``."""
    is_endless: bool = False
    """Whether the data set has no length."""
    is_interrupted: bool = False
    problem: str = ""
    """Reason why no setting could be measured, in one line."""

    def cost(self, *, of: int = 1) -> BatchCost | None:
        """Return the cost of one batch with ``of`` workers; None if no setting with ``of`` workers was measured."""
        row = next((row_ for row_ in self.tried if row_.setting.workers == of and row_.batches), None)
        if row is None or row.processor_s is None:
            return None
        span = of * row.seconds / row.batches
        cpu_s, queued_s = row.processor_s / row.batches, (row.queued_s or 0.0) / row.batches
        return BatchCost(
            cpu_s=cpu_s,
            waits_s=max(span - cpu_s - queued_s, 0.0),
            threads=max(cpu_s / max(span - queued_s, 1e-9), 1.0),
            memory_bytes=row.memory_bytes or 0,
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per setting.

        ``batches_per_s`` is the median over all blocks. ``planned`` is the expected rate on idle CPUs, from the cost of
        one worker. ``processors`` is the mean number of CPUs in use by the workers. ``waited_percent`` is the
        percentage of worker time without computation and without run-queue wait.
        """
        return [
            {
                "workers": loader.setting.workers,
                "prefetch": loader.setting.ahead,
                "pinned": loader.setting.pinned,
                "own": loader.is_own,
                "batches_per_s": loader.rate if loader.batches else None,
                "batch_ms": 1e3 / loader.rate if loader.batches else None,
                "planned": loader.planned,
                "processors": loader.processors,
                "waited_percent": loader.waited_percent,
                "memory_mib": None if loader.memory_bytes is None else loader.memory_bytes / 2**20,
                "first_batch_s": loader.first_s,
                "turns": len(loader.rates),
                "verdict": loader.verdict,
                "problem": loader.problem or None,
            }
            for loader in self.tried
        ]

    def __str__(self) -> str:
        rows = [{name: row[name] for name in BRIEF} for row in self.rows() if row["problem"] is None]
        cells = [BRIEF, *(tuple(map(_cell, row.values())) for row in rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(BRIEF))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
        return "\n".join((*(lines if rows else ()), *self.sentences()))

    def sentences(self, rest_ms: float | None = None, waited_ms: float = 0.0) -> Iterator[str]:
        """Yield the conclusions.

        ``waited_ms`` is the wait for data of a step, and ``rest_ms`` the step time minus this wait (None if unknown).
        """
        yield f"{self.name}: measured without training steps."
        for loader in self.tried:
            if loader.problem:
                yield f"{loader.setting}: {loader.problem}"
        if self.best is not None:
            yield self._best(self.best)
            yield from self._passes(self.best)
        yield from self._contention()
        if self.is_endless:
            yield "The data set has no length, so only the beginning of a pass was measured."
        cost = self.cost()
        if rest_ms and cost is not None:
            plan = LoaderPlan.for_cost(cost, self._demand(rest_ms, waited_ms))
            yield f"A step of the last run minus its wait for data takes {words.ms(rest_ms)}. {plan}"
        if self.is_interrupted:
            yield "Interrupted: fewer blocks were measured than planned."

    @property
    def own(self) -> LoaderResult | None:
        """The training's own setting; None if no batch was measured with this setting."""
        return next((loader for loader in self.tried if loader.is_own and loader.batches), None)

    @property
    def best(self) -> LoaderResult | None:
        """The setting with the fewest workers whose rate is close to the highest rate; None if no setting was measured.

        A setting with more prefetched batches or pinned memory is eligible only if it is certainly faster.
        """
        candidates = [loader for loader in self.tried if loader.setting.workers and loader.batches]
        usual = min((loader.setting.ahead or 0 for loader in candidates), default=0)
        candidates = [loader for loader in candidates if loader.is_usual(usual, self.own) or loader.verdict == "faster"]
        highest_rate = max((loader.rate for loader in candidates), default=0.0)
        fast = [loader for loader in candidates if loader.rate * (1 + TOLERANCE) >= highest_rate]
        fewest_workers = min((loader.setting.workers for loader in fast), default=0)
        return max(
            (loader for loader in fast if loader.setting.workers == fewest_workers),
            key=lambda loader: loader.rate,
            default=None,
        )

    def _best(self, best: LoaderResult) -> str:
        own = self.own
        text = f"{best.setting} supplies {words.count(best.rate, 'batch', 'batches')} per second"
        if own is not None and own.setting != best.setting:
            text += f", {best.rate / own.rate:.2g} times the rate of the current setting ({own.setting})"
        text += f": enough for steps of {words.ms(1e3 / best.rate)} or more."
        without_workers = next((loader for loader in self.tried if not loader.setting.workers and loader.batches), None)
        if without_workers is not None and without_workers.rate > best.rate * (1 + TOLERANCE):
            text += f" Without workers the rate is {without_workers.rate:.3g}: transfers cost more than making batches."
        if best.verdict == "undecided":
            text += f" Undecided after {words.count(len(best.rates), 'block')}: give it more time."
        if (best.waited_percent or 0.0) > _WAITING:
            return f"{text} Its workers wait {best.waited_percent:.0f}% of their time, for example for a disk."
        if self.cores is not None and (best.processors or 0.0) > 0.8 * self.cores:
            used = f"{best.processors:.1f} of {words.count(self.cores, 'CPU')} are in use"
            return f"{text} More workers cannot help: {used}."
        return text

    def _contention(self) -> Iterator[str]:
        single = next((loader for loader in self.tried if loader.setting.workers == 1 and loader.batches), None)
        if single is not None and single.processor_s and (single.queued_s or 0.0) > 0.1 * single.processor_s:
            share = (single.queued_s or 0.0) / (single.processor_s + (single.queued_s or 0.0))
            yield (
                f"CPU contention: a single worker waited for a CPU {words.share(share)} of its runnable time. "
                "On an idle machine the rates are higher."
            )

    def _passes(self, best: LoaderResult) -> Iterator[str]:
        if self.keeps_workers or best.first_s is None or best.again_s is None:
            return
        if best.first_s - best.again_s > _COSTLY_S:
            yield (
                f"The first batch of a pass takes {words.ms(1e3 * best.first_s)}, and "
                f"{words.ms(1e3 * best.again_s)} with existing workers: set persistent_workers=True."
            )

    def _demand(self, rest_ms: float, waited_ms: float) -> Demand:
        return Demand(
            rest_s=rest_ms / 1e3,
            waited_s=waited_ms / 1e3,
            cpus=None if self.cores is None else self.cores / self.ranks,
            own_s=rest_ms / 1e3,
            workers=0 if self.own is None else self.own.setting.workers,
        )


BRIEF: Final = (
    *("workers", "prefetch", "pinned", "own", "batches_per_s", "batch_ms", "verdict", "planned", "waited_percent"),
    *("memory_mib", "processors"),
)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
