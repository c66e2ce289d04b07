"""What came of trying a loader: a table, and the sentences that follow from it."""

from __future__ import annotations

import statistics as medians
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.analysis.comparison.verdict import Outcome
from perfhooks.analysis.findings.loader_plan import BatchCost, Demand, LoaderPlan
from perfhooks.core import words

if TYPE_CHECKING:
    from collections.abc import Iterator

_AS_GOOD: Final = 1.05
"""Workers that give this much less than the most are as good: see `perfhooks.trials.loader_trial.TOLERANCE`."""
_COSTLY_S: Final = 0.1
"""What another pass takes longer with new workers than with the old ones is worth a word from here on."""
_WAITING: Final = 50.0
"""Percent of their time from which on workers are said to wait."""
_BUSY: Final = 0.1
"""Of what a worker computes: it waits for a processor so long where it is not the only one that wants it."""
_FULL: Final = 0.8
"""Of the processors: more are rarely used, as somebody has to take the batches."""


class LoaderSetting(msgspec.Struct, frozen=True):
    """What is tried."""

    workers: int
    ahead: int | None = None
    """Batches that each worker makes ahead; None without workers."""
    pinned: bool = False

    def __str__(self) -> str:
        """As it is written: ``num_workers=4, prefetch_factor=2``."""
        ahead = "" if self.ahead is None else f", prefetch_factor={self.ahead}"
        return f"num_workers={self.workers}{ahead}{', pin_memory=True' if self.pinned else ''}"


class TriedLoader(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, and what came of it."""

    setting: LoaderSetting
    is_own: bool = False
    """Whether it is the training's."""
    problem: str = ""
    """Why it cannot be, in one line."""
    batches: int = 0
    seconds: float = 0.0
    """In which these were made."""
    processor_s: float | None = None
    """What those who made them computed meanwhile; None where the system does not tell."""
    queued_s: float | None = None
    """How long they could have computed, and no processor was free."""
    memory_bytes: int | None = None
    """Of one worker, not shared with others."""
    first_s: float | None = None
    """From asking for a pass to its first batch, workers and all."""
    again_s: float | None = None
    """The same of another pass, with the workers of the first."""
    rates: tuple[float, ...] = ()
    """Batches a second, turn by turn."""
    verdict: Outcome | None = None
    """Beside the setting with half the workers, or that it was made of; None where there is none."""
    planned: float | None = None
    """Batches a second, by the plan that what one worker does gives."""

    @property
    def processors(self) -> float | None:
        """How many its workers used at once; None where the system does not tell."""
        return None if self.processor_s is None or not self.seconds else self.processor_s / self.seconds

    @property
    def waited_percent(self) -> float | None:
        """The part of their time in which they neither computed nor waited for a processor."""
        if self.processor_s is None or not self.seconds:
            return None
        whole = self.seconds * max(self.setting.workers, 1)
        return 100 * max(1 - (self.processor_s + (self.queued_s or 0.0)) / whole, 0.0)

    def is_usual(self, ahead: int, own: TriedLoader | None) -> bool:
        """Whether nothing but the number of workers differs from the training's own setting."""
        return self.setting.ahead == ahead and (own is None or self.setting.pinned == own.setting.pinned)

    @property
    def rate(self) -> float:
        """Batches a second."""
        return medians.median(self.rates) if self.rates else 0.0


class LoaderTrial(msgspec.Struct, frozen=True, kw_only=True):
    """What a loader gives with some settings."""

    name: str
    """The loader, for people."""
    tried: tuple[TriedLoader, ...] = ()
    cores: int | None = None
    """Processors that this process may use, for all ranks on it."""
    ranks: int = 1
    keeps_workers: bool = False
    """Whether its workers live as long as it does, ``persistent_workers=True``."""
    is_endless: bool = False
    """Whether its data has no length."""
    is_interrupted: bool = False
    problem: str = ""
    """Why nothing could be tried, in one line."""

    def cost(self, *, of: int = 1) -> BatchCost | None:
        """What a batch costs a worker, as so many of them show; None where they were not tried."""
        found = next((each for each in self.tried if each.setting.workers == of and each.batches), None)
        if found is None or found.processor_s is None:
            return None
        span = of * found.seconds / found.batches
        processor, queued = found.processor_s / found.batches, (found.queued_s or 0.0) / found.batches
        return BatchCost(
            processor_s=processor,
            waits_s=max(span - processor - queued, 0.0),
            threads=max(processor / max(span - queued, 1e-9), 1.0),
            memory_bytes=found.memory_bytes or 0,
        )

    def rows(self) -> list[dict[str, Any]]:
        """One row a setting.

        ``batches_per_s`` is the median of its turns, ``planned`` what one worker lets expect of so many where nobody
        else uses the processors, ``processors`` how many its workers used at once, ``waited_percent`` the part of their
        time in which they neither computed nor waited for a processor, and ``verdict`` how it stands beside the setting
        with half the workers, or without what it adds.
        """
        return [
            {
                "workers": each.setting.workers,
                "prefetch": each.setting.ahead,
                "pinned": each.setting.pinned,
                "own": each.is_own,
                "batches_per_s": each.rate if each.batches else None,
                "batch_ms": 1e3 / each.rate if each.batches else None,
                "planned": each.planned,
                "processors": each.processors,
                "waited_percent": each.waited_percent,
                "memory_mib": None if each.memory_bytes is None else each.memory_bytes / 2**20,
                "first_batch_s": each.first_s,
                "turns": len(each.rates),
                "verdict": each.verdict,
                "problem": each.problem or None,
            }
            for each in self.tried
        ]

    def __str__(self) -> str:
        """The table in what a terminal has room for, and what follows from it."""
        rows = [{name: row[name] for name in BRIEF} for row in self.rows() if row["problem"] is None]
        cells = [BRIEF, *(tuple(map(_cell, row.values())) for row in rows)]
        widths = [max(len(line[place]) for line in cells) for place in range(len(BRIEF))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
        return "\n".join((*(lines if rows else ()), *self.sentences()))

    def sentences(self, rest_ms: float | None = None, waited_ms: float = 0.0) -> Iterator[str]:
        """What follows from it.

        Args:
            rest_ms: What a step of the training takes without its wait for data, where a run of it says so.
            waited_ms: And how long it waits.
        """
        yield f"{self.name}: no step of the training was made."
        for each in self.tried:
            if each.problem:
                yield f"{each.setting}: {each.problem}"
        if self.best is not None:
            yield self._best(self.best)
            yield from self._passes(self.best)
        yield from self._busy()
        if self.is_endless:
            yield "Its data has no length: no pass was made to its end."
        cost = self.cost()
        if rest_ms and cost is not None:
            plan = LoaderPlan.made(cost, self._needs(rest_ms, waited_ms))
            yield f"The last run's step takes {words.ms(rest_ms)} without its wait for data. {plan}"
        if self.is_interrupted:
            yield "It was interrupted: there were fewer turns than were meant."

    @property
    def own(self) -> TriedLoader | None:
        """That of the training; None where it could not be tried."""
        return next((each for each in self.tried if each.is_own and each.batches), None)

    @property
    def best(self) -> TriedLoader | None:
        """That of the fewest workers which is as good as any; None where none could be tried.

        More than these made ahead, or pinned memory, is taken where it is surely faster.
        """
        tried = [each for each in self.tried if each.setting.workers and each.batches]
        usual = min((each.setting.ahead or 0 for each in tried), default=0)
        tried = [each for each in tried if each.is_usual(usual, self.own) or each.verdict == "faster"]
        most = max((each.rate for each in tried), default=0.0)
        good = [each for each in tried if each.rate * _AS_GOOD >= most]
        fewest = min((each.setting.workers for each in good), default=0)
        return max((each for each in good if each.setting.workers == fewest), key=lambda each: each.rate, default=None)

    def _best(self, best: TriedLoader) -> str:
        own = self.own
        text = f"{best.setting} gives {best.rate:.3g} batches a second"
        if own is not None and own.setting != best.setting:
            text += f", {best.rate / own.rate:.2g} times what the loader's own setting gives ({own.setting})"
        text += f": enough for steps of {words.ms(1e3 / best.rate)} or more."
        alone = next((each for each in self.tried if not each.setting.workers and each.batches), None)
        if alone is not None and alone.rate > best.rate * _AS_GOOD:
            text += f" Without workers it gives {alone.rate:.3g}: to hand a batch over takes longer than to make it."
        if best.verdict == "undecided":
            text += f" That is the median of {words.count(len(best.rates), 'turn')}, and undecided: give it more time."
        if (best.waited_percent or 0.0) > _WAITING:
            return f"{text} Its workers wait for {best.waited_percent:.0f}% of their time: a disk, a network, a lock."
        if self.cores is not None and (best.processors or 0.0) > _FULL * self.cores:
            used = f"{best.processors:.1f} of {words.count(self.cores, 'processor')} are used"
            return f"{text} More workers give no more: {used}."
        return text

    def _busy(self) -> Iterator[str]:
        """That one worker alone had to wait for a processor: others used them."""
        alone = next((each for each in self.tried if each.setting.workers == 1 and each.batches), None)
        if alone is not None and alone.processor_s and (alone.queued_s or 0.0) > _BUSY * alone.processor_s:
            share = (alone.queued_s or 0.0) / (alone.processor_s + (alone.queued_s or 0.0))
            yield (
                f"Others used the processors: one worker alone waited for one for {words.share(share)} of the time in "
                "which it could have computed. On a quiet machine the numbers are higher."
            )

    def _passes(self, best: TriedLoader) -> Iterator[str]:
        """What `persistent_workers` would give."""
        if self.keeps_workers or best.first_s is None or best.again_s is None:
            return
        if best.first_s - best.again_s > _COSTLY_S:
            yield (
                f"A pass begins after {words.ms(1e3 * best.first_s)}, and after {words.ms(1e3 * best.again_s)} with "
                "the workers of the one before: persistent_workers=True keeps them."
            )

    def _needs(self, rest_ms: float, waited_ms: float) -> Demand:
        """What such a step needs: it computes as well, for which it is taken to use one processor."""
        return Demand(
            rest_s=rest_ms / 1e3,
            waited_s=waited_ms / 1e3,
            processors=None if self.cores is None else self.cores / self.ranks,
            own_s=rest_ms / 1e3,
            workers=0 if self.own is None else self.own.setting.workers,
        )


BRIEF: Final = (
    *("workers", "prefetch", "pinned", "own", "batches_per_s", "batch_ms", "planned", "processors", "waited_percent"),
    *("memory_mib", "verdict"),
)
"""The columns that a terminal has room for."""


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
