"""How many workers would keep up with a training, and what that would give: of what they cost, and what a step needs.

A worker goes round: it makes a batch, for which it needs a processor for a while and waits for a disk, a network or a
lock for another; hands it over; and begins anew. Workers get in each other's way at the processors alone::

    worker 0   ▒▒▒▒▒▒▒▒████████▌▒▒▒▒▒▒▒▒████████▌         ▒ waits: any number of workers do so side by side
    worker 1   ▒▒▒▒▒▒▒▒░░░░████████▌▒▒▒▒▒▒▒▒██████        █ computes     ▌ hands over: computes as well
    worker 2   ▒▒▒▒▒▒▒▒░░░░░░░░████████▌▒▒▒▒▒▒▒▒██        ░ could compute, and no processor is free
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from perfhooks.core import words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.run.loader.making import WorkerCounts

Bound = Literal["processors", "waits", "slow batches", "hand-over"]
"""What holds the workers up: computing; a disk, a network or a lock; single batches that take long; or nothing, as they
have made all that they may, and a step waits for what they hand over."""

COLUMNS: Final = {
    "workers": int,
    **dict.fromkeys(("batches_per_s", "of_step_percent", "waits_percent", "step_ms"), float),
    "said": str,
}
"""Of the table of a plan: so many workers can make so many batches a second, which is that share of what the step eats;
it then waits for that share of its time, and takes so many milliseconds."""

KEEPS_UP: Final = 1.02
"""Times as long as without any wait: a step that takes no longer has all that it needs."""
_WORTH: Final = 1.05
"""Workers that shorten a step by less than this are not advised: two trainings of one program differ by as much."""
_MOST: Final = 256
"""Workers of one rank: more than anybody starts."""
_UNEVEN: Final = 1.0
"""Standard deviations of a batch, in means, from which on some batches are slow, and not all: that of an exponential
distribution, of which one in fifty takes four times as long as usual."""
_ROUNDS: Final = 4
"""In which costs come to agree with the step: each leaves a small part of what they were apart."""
_TURNS: Final = 60
"""In which the length of a step is found, to a thousandth of it where each halves what is left."""


@dataclass(frozen=True, kw_only=True)
class BatchCost:
    """What one batch costs a worker, in seconds."""

    processor_s: float
    """Of processors; may be more than it takes by the clock, where several threads make it."""
    waits_s: float = 0.0
    """For a disk, a network, a lock: for nothing that more workers take from each other."""
    handed_over_s: float = 0.0
    threads: float = 1.0
    """Processors that it uses at once while it computes."""
    deviation: float = 0.0
    """Standard deviation of what batches take, in means."""
    longest_s: float = 0.0
    memory_bytes: int = 0
    """That a worker takes; 0 where nobody knows."""

    @classmethod
    def of(cls, makings: Sequence[WorkerCounts], free: float | None = None) -> BatchCost | None:
        """The mean of all that workers made; None where they made nothing.

        Args:
            makings: What they did.
            free: Processors that they had; None where that is not known. What a worker neither computed nor is known to
                have waited for a processor, it waited for something else, if there was a processor for each of them.
        """
        batches = sum(each.batches for each in makings)
        making = sum(each.making_s for each in makings)
        if not batches or making <= 0:
            return None
        processor = sum(each.processor_s for each in makings)
        queued = [each.queued_s for each in makings if each.queued_s is not None]
        has_room = len(queued) == len(makings) or free is None or free >= _workers(makings)
        waits = max(making - processor - sum(queued), 0.0) if has_room else 0.0
        computing = max(making - waits - sum(queued), 1e-9)
        mean = making / batches
        return cls(
            processor_s=processor / batches,
            waits_s=waits / batches,
            handed_over_s=sum(each.handed_over_s for each in makings) / batches,
            threads=max(processor / computing, 1.0),
            deviation=math.sqrt(max(sum(each.squares for each in makings) / batches / mean**2 - 1, 0.0)),
            longest_s=max(each.longest_s for each in makings),
            memory_bytes=max((each.memory_bytes or 0 for each in makings), default=0),
        )

    def times(self, factor: float) -> BatchCost:
        """The same of batches that take so many times as long."""
        known = {
            name: factor * getattr(self, name) for name in ("processor_s", "waits_s", "handed_over_s", "longest_s")
        }
        return replace(self, **known)

    @property
    def alone_s(self) -> float:
        """What one worker takes for a batch where it has a processor whenever it wants one."""
        return self.processor_s / self.threads + self.waits_s + self.handed_over_s

    def __str__(self) -> str:
        """For people: ``52 ms: 40 ms of a processor, 10 ms of waiting, 2 ms of handing over; 310 MiB of memory``."""
        parts = (
            (self.processor_s, "of a processor"),
            (self.waits_s, "of waiting for a disk, a network or a lock"),
            (self.handed_over_s, "of handing over"),
        )
        said = ", ".join(f"{_ms(seconds)} {what}" for seconds, what in parts if seconds >= self.alone_s / 100)
        memory = f"; it has {words.size(self.memory_bytes)} of memory" if self.memory_bytes else ""
        return f"{_ms(self.alone_s)}: {said}{memory}"

    def rate(self, workers: int, processors: float) -> float:
        """Batches a second of so many workers beside each other.

        Source: a closed network of two stations, of which the processors serve all who are there as well as they can,
        and the other one holds nobody up: Buzen, Computational algorithms for closed queueing networks with exponential
        servers, 1973, equation 10. For such stations the distribution of times is of no matter (Baskett, Chandy, Muntz
        and Palacios, 1975).

        Args:
            workers: How many, 1 or more.
            processors: That are there for them; need not be an integer.
        """
        computes = max(self.processor_s + self.handed_over_s, 1e-9)
        served = [0.0]  # logarithms: of 200 workers these are no numbers any more
        for number in range(1, workers + 1):
            served.append(served[-1] + math.log(computes / min(number * self.threads, max(processors, 1e-6))))

        def ways(count: int) -> float:
            if self.waits_s <= 0:
                return served[count]
            terms = [
                served[here] + (count - here) * math.log(self.waits_s) - math.lgamma(count - here + 1)
                for here in range(count + 1)
            ]
            top = max(terms)
            return top + math.log(sum(math.exp(term - top) for term in terms))

        return math.exp(ways(workers - 1) - ways(workers))


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a training eats, and what there is to make it."""

    rest_s: float
    """What a step takes without its wait for data."""
    waited_s: float
    """What it waits."""
    batches: int = 1
    """That it takes."""
    processors: float | None = None
    """That this rank and its workers may use: the machine's, less what other ranks and programs take."""
    own_s: float = 0.0
    """What a step itself computes, in seconds of processors."""
    memory_bytes: int | None = None
    """That is free."""
    workers: int = 0
    """That there are."""
    ahead: int = 2
    """Batches that each makes ahead."""

    @property
    def step_s(self) -> float:
        """What a step takes."""
        return self.rest_s + self.waited_s

    def step_with(self, cost: BatchCost, workers: int) -> float:
        """What a step would take with so many workers, in seconds: no less than it does without its wait.

        The step computes as well, and takes processors from them: the more, the shorter it is.
        """
        low, high = self.rest_s, max(self.batches * cost.alone_s * 4, self.step_s) * 64
        if not workers:
            return self.rest_s + self.batches * (cost.processor_s / cost.threads + cost.waits_s)
        for _ in range(_TURNS):
            middle = math.sqrt(low * high)
            is_made = self.rate(cost, workers, middle) * middle >= self.batches
            low, high = (low, middle) if is_made else (middle, high)
            if high <= low * 1.001:
                break
        return high if high > self.rest_s * 1.001 else self.rest_s

    def agreed(self, cost: BatchCost) -> BatchCost:
        """What a batch costs, such that the workers that there are make a step as long as it is.

        A window has a few dozens of batches, of a moment in which others may have disturbed the workers: of a decoder
        of small images they took twice as long as those of the whole run, as the profiler's own process began. What a
        step waits for that workers do not explain is left, see `LoaderPlan.made`.
        """
        for _ in range(_ROUNDS):
            there = self.step_with(cost, self.workers)
            if there - self.rest_s < self.waited_s / 2:
                break
            cost = cost.times(self.step_s / there)
        return cost

    def rate(self, cost: BatchCost, workers: int, step_s: float) -> float:
        """Batches a second that so many workers can make beside steps of some length."""
        if not workers:
            return self.batches / step_s
        free = math.inf if self.processors is None else self.processors - self.own_s / step_s
        return cost.rate(workers, free) if free > 0 else 0.0


class PlanRow(NamedTuple):
    """What some number of workers would give."""

    workers: int
    step_s: float
    gives: float
    """Of what the step eats, from 0 to 1."""
    rate: float
    """Batches a second that they can make beside such steps."""

    @property
    def waits(self) -> float:
        """The share of the step in which it would wait."""
        return 1 - self.gives


@dataclass(frozen=True, kw_only=True)
class LoaderPlan:
    """What to do about a wait for data, and what it would give."""

    needs: Demand
    cost: BatchCost
    bound: Bound
    """What holds the workers up."""
    keep_up: int
    """The least workers that would keep up, if there were processors and memory for them."""
    advised: int
    """The least that give all that can be had here."""
    is_short_of_memory: bool = False
    """Whether memory is what allows no more."""
    ahead: int | None = None
    """Batches that each worker should make ahead, where slow ones are what a step waits for."""

    @classmethod
    def of(cls, makings: Sequence[WorkerCounts], needs: Demand) -> LoaderPlan | None:
        """What follows from what the workers of a training did; None where they made nothing, or nothing is eaten.

        Where its workers waited for processors, others use them as well: there are fewer by the share of their
        computing that workers did not get, but those at least that they, and the step, had. Of a decoder of images on
        two processors, one worker waited for 15% of its computing, as the profiler's own processes began meanwhile; two
        made a step of 17 ms of one of 23, where 18 were planned.
        """
        cost = BatchCost.of(makings, needs.processors)
        wall = sum(each.wall_s for each in makings)
        if cost is None or wall <= 0 or needs.rest_s <= 0:
            return None
        workers = _workers(makings)
        computed = sum(each.processor_s + each.handed_over_s for each in makings)
        queued = sum(each.queued_s or 0.0 for each in makings)
        if needs.processors is not None and queued > 0:
            had = computed / wall * workers + needs.own_s / needs.step_s
            left = needs.processors * computed / (computed + queued)
            needs = replace(needs, processors=min(needs.processors, max(had, left)))
        needs = replace(needs, workers=workers)
        return cls.made(needs.agreed(cost), needs)

    @classmethod
    def made(cls, cost: BatchCost, needs: Demand) -> LoaderPlan:
        """The same of what a batch costs.

        Args:
            cost: What one costs a worker.
            needs: What the training eats.
        """
        keep_up = min(math.ceil(needs.batches * cost.alone_s / needs.rest_s / KEEPS_UP), _MOST)
        room = keep_up
        if needs.memory_bytes is not None and cost.memory_bytes:
            room = min(room, needs.workers + needs.memory_bytes // cost.memory_bytes)
        enough = max(needs.rest_s * KEEPS_UP, needs.step_with(cost, max(room, 1)) * _WORTH)
        advised = bisect.bisect_left(range(room), True, key=lambda less: needs.step_with(cost, less + 1) <= enough) + 1
        there = needs.step_with(cost, needs.workers)
        bound: Bound = "processors"
        if cost.handed_over_s > cost.alone_s / 2:
            bound = "hand-over"
        elif cost.waits_s > cost.alone_s / 2:
            bound = "waits"
        ahead = None
        if needs.workers and there - needs.rest_s < needs.waited_s / 2:
            # they keep up by the mean, so something else is what a step waits for
            advised, bound = needs.workers, "hand-over"
            lasts = needs.workers * needs.rest_s / needs.batches
            if cost.deviation >= _UNEVEN and cost.longest_s > lasts * needs.ahead:
                bound, ahead = "slow batches", math.ceil(cost.longest_s / lasts)
        elif min(advised, room) <= 0 or needs.step_with(cost, advised) * KEEPS_UP > min(there, needs.step_s):
            advised = min(needs.workers, advised)  # more of them would give nothing
        return cls(
            needs=needs,
            cost=cost,
            bound=bound,
            keep_up=keep_up,
            advised=advised,
            is_short_of_memory=room < keep_up and advised == room,
            ahead=ahead,
        )

    @property
    def is_of_more(self) -> bool:
        """Whether more workers are what is advised."""
        return self.advised > self.needs.workers

    @property
    def free(self) -> int | None:
        """Processors that the step leaves to workers; None where nobody knows."""
        needs = self.needs
        return None if needs.processors is None else max(math.floor(needs.processors - needs.own_s / needs.step_s), 0)

    def outlook(self, workers: int) -> PlanRow:
        """What some number of workers would give."""
        step_s = self.needs.step_with(self.cost, workers)
        return PlanRow(workers, step_s, self.needs.rest_s / step_s, self.needs.rate(self.cost, workers, step_s))

    @property
    def outlooks(self) -> list[PlanRow]:
        """That of as many as there are, as are advised, as would keep up, and of powers of two up to there."""
        powers = {1 << power for power in range(self.keep_up.bit_length())}
        return [self.outlook(each) for each in sorted(powers | {self.needs.workers, self.advised, self.keep_up})]

    @property
    def rows(self) -> dict[str, list[Any]]:
        """The table of `outlooks`, as columns of `COLUMNS`.

        There are no rows where a step waits for something else than the workers: their number would change nothing.
        """
        found = self.outlooks if self.bound in ("processors", "waits") or self.is_of_more else []
        keeps_up = self.outlook(self.keep_up).gives * KEEPS_UP >= 1
        said = {self.keep_up: "would keep up" if keeps_up else "would keep up with more processors"}
        said[self.advised] = "advised"
        said[self.needs.workers] = f"{said[self.needs.workers]}, now" if self.needs.workers in said else "now"
        return {
            "workers": [each.workers for each in found],
            "batches_per_s": [each.rate for each in found],
            "of_step_percent": [100 * each.gives for each in found],
            "waits_percent": [100 * each.waits for each in found],
            "step_ms": [1e3 * each.step_s for each in found],
            "said": [said.get(each.workers, "") for each in found],
        }

    def __str__(self) -> str:
        """For people, in one sentence or two."""
        return f"{self._reason} {self._number}".strip()

    @property
    def _reason(self) -> str:
        cost, needs = self.cost, self.needs
        if self.bound == "waits":
            return (
                f"Workers wait for {words.share(cost.waits_s / cost.alone_s)} of the time that a batch takes, for a "
                "disk, a network or a lock, and compute in the rest: there may be more of them than processors."
            )
        if self.bound == "slow batches":
            return (
                f"The workers keep up by the mean, {_ms(cost.alone_s)} a batch; but one took {_ms(cost.longest_s)}, "
                f"and what they make ahead lasts for {_ms(needs.workers * needs.ahead * needs.rest_s / needs.batches)}."
            )
        if self.bound == "hand-over" and not self.is_of_more:
            return "Workers make batches as fast as the step uses them: it waits for what they hand over."
        if self.bound == "hand-over":
            return f"Workers spend {words.share(cost.handed_over_s / cost.alone_s)} of their time on handing over."
        return ""

    @property
    def _number(self) -> str:
        needs, free = self.needs, self.free
        if self.bound in ("slow batches", "hand-over") and not self.is_of_more:
            return f"More than {words.count(needs.workers, 'worker')} would not change that."
        then, now = self.outlook(self.advised), needs.waited_s / needs.step_s
        falls = f"waiting falls from {words.share(now)} to {words.share(then.waits)}"
        would = f"{words.count(self.keep_up, 'worker')} would keep up"
        if self.keep_up <= needs.workers:  # there are as many, and they do not
            would += f" with {'a processor each' if self.keep_up > 1 else 'a processor of its own'}"
        if then.gives * KEEPS_UP >= 1:
            return f"{words.count(self.advised, 'worker')} would keep up: {falls} of the step."
        room = ""
        if free is not None:
            room = f"; {words.count(free, 'processor is', 'processors are') if free else 'no processor is'} free"
        if self.is_short_of_memory:
            room = f"; there is memory for {self.advised}"
        if not self.is_of_more:
            more = f"more than {needs.workers}" if needs.workers else "they"
            return f"{would}{room}: {more} would only take turns."
        return f"{would}{room}: {self.advised} give {words.share(then.gives)} of what the step eats, and {falls}."


def _workers(makings: Sequence[WorkerCounts]) -> int:
    """How many there are at once: those of another epoch have the same numbers."""
    return len({each.worker for each in makings})


def _ms(seconds: float) -> str:
    return words.ms(1e3 * seconds)
