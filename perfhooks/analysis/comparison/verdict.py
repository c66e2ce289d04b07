"""How sure one can be that two trainings differ: intervals of the ratio of their step times.

Two questions are asked: whether the mean step differs, which is the throughput, and whether the typical one does. A
process differs from the next by more than its own steps tell: so one run a side is known less well than its steps
suggest.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from perfhooks.core.errors import OptionError
from perfhooks.core.statistics import CONFIDENCE, Estimate, level, student
from perfhooks.run.circumstances import BUSY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import ArrayLike

    from perfhooks.core.statistics import Level, Values

TOLERANCE: Final = 0.02
"""A ratio that is this close to 1 is no difference, unless said otherwise: unchanged code moves by as much."""
PROCESS_SD: Final = 0.01
"""By what share the same training differs from one process to the next, as a standard deviation, before runs say
more: memory layout, clocks. Of quiet machines; runs that differ by more outweigh it."""
PROCESS_FREEDOM: Final = 4
"""As many degrees of freedom that is worth: three runs a side weigh as much. So 2% are within what is assumed."""
BUSY_SD: Final = 0.1
"""What that grows by for each time unit that steps wait for a processor while they have one: whoever has it meanwhile
takes the caches as well, and a thread that has one spins for one that has none. Of 45 equal runs of three programs that
waited for 29 to 60% of their time, the means without the waits differed by 11, 12 and 16%, four times what their steps
tell, and those by the clock by 14, 21 and 25%."""
OTHERS_SD: Final = 0.2
"""And what it grows by where other programs use all of the machine's processors, in proportion: who has another
processor takes none from this one, but the speed of the memory, and shared caches. Beside a program that does nothing
but copy in memory, on one of two processors, a small training that waited for 1% of its time took 1.9 times as long;
beside one that counts in Python, as long as alone."""
SAME_MARGIN: Final = 2.5
"""Two sides are the same if the interval lies within this multiple of the tolerance. Of equal pairs with two runs a
side, whose processes differ by 1%, ``benchmarks/noises.py`` finds 91% to be the same. A margin of 1.5 finds 60%."""
EDGE_CONFIDENCE: Final = 0.9
"""Confidence that a change exceeds the tolerance, or that two sides are the same. Either is wrong in 5% at most."""
OFTEN: Final = 0.02
"""From this share of the steps on, of either side, far ones belong to the throughput: something that happens more
than once in 50 steps is no evaluation or checkpoint. Those are compared by how often they come."""
MOST_RUNS: Final = 99
"""Nobody records more runs a side to decide one question."""
_MOST_STEPS: Final = 1000
"""Nobody records a thousand times as many steps to decide one question."""
_QUIET: Final = 0.5
"""How much less than is assumed processes usually differ by, where no two runs of a side tell: for advice alone."""
_POWER: Final = 0.84
"""Standard deviations by which an interval should end before the edge, to do so in 80 of 100 cases."""
_LARGEST_LOG: Final = 50.0
"""Bound of an interval of logarithms, as in `perfhooks.core.statistics.Estimate`: two pairs may leave the ratio
open."""
_TAIL: Final = (1 - CONFIDENCE) / 4
"""Of each end: two questions, each of which may be answered slower or faster."""
_EDGE_TAIL: Final = (1 - EDGE_CONFIDENCE) / 2

Outcome = Literal["slower", "faster", "same", "undecided"]
Question = Literal["mean", "typical"]
Clock = Literal["wall", "processor"]


class Ratio(NamedTuple):
    """What can be said of B's time as a multiple of A's."""

    outcome: Outcome
    ratio: float
    """Above 1 is slower."""
    low: float
    high: float
    """The 99% interval; that of `EDGE_CONFIDENCE` if the outcome is ``same``."""
    a: float
    b: float
    """The times, in the unit of the steps."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What can be said about B's steps as a multiple of A's."""

    outcome: Outcome
    by: Question
    """Which of the two says so; throughput where neither differs."""
    typical: Ratio
    mean: Ratio
    tolerance: float
    process_sd: float
    """By what share one process is taken to differ from the next, as a standard deviation: what is assumed, joined with
    what the runs show."""
    process_freedom: int
    """How many degrees of freedom the runs have to show it; 0 where all of it is assumed."""
    runs_a: int
    runs_b: int
    runs_earlier: int = 0
    """Of the same programs, that say how much processes differ too."""
    steps_a: int = 0
    steps_b: int = 0
    """Without those that had something else in them; 0 of pairs of processes."""
    far_a: float = 0.0
    far_b: float = 0.0
    """The share of steps that had something else in them."""
    is_far_counted: bool = False
    """Whether the mean includes those, as they come more often than evaluations do."""
    is_paired: bool = False
    """Whether steps were held against those of the same number, as both saw the same data."""
    clock: Clock = "wall"
    """``processor`` where steps were taken without the time in which they waited for one, as that is much."""
    waited_a: float | None = None
    waited_b: float | None = None
    """What share of their time those steps waited that did so most; None where it is not known of all runs."""
    others_a: float | None = None
    """What share of the machine's processors other programs used beside that run of A that had most of it; None where
    it is not known of all runs."""
    others_b: float | None = None
    """And beside B."""
    is_withheld: bool = False
    """Whether nothing is decided as a side waited for processors, and nobody measured how long the other did."""
    more_steps: int | None = None
    """Of an undecided one: how many steps more in each run would decide, with the runs that there are."""
    more_runs: int | None = None
    """And how many runs more a side; None where `MOST_RUNS` are not enough."""

    @property
    def decisive(self) -> Ratio:
        """The answer to the question that decides."""
        return self.mean if self.by == "mean" else self.typical

    @property
    def is_in_turns(self) -> bool:
        """Whether it is about pairs of processes, of which no single steps are known."""
        return self.is_paired and not self.steps_a

    @property
    def is_busy(self) -> bool:
        """Whether steps waited for processors so long that the clock says nothing."""
        return self.clock == "processor" or self.is_withheld

    @property
    def is_beside_others(self) -> bool:
        """Whether other programs used so much of the machine that equal runs differ by more than on a quiet one."""
        return max(self.others_a or 0.0, self.others_b or 0.0) >= BUSY

    @property
    def ratio(self) -> float:
        """B's time over A's; above 1 is slower."""
        return self.decisive.ratio

    @property
    def low(self) -> float:
        """The lower end of its interval."""
        return self.decisive.low

    @property
    def high(self) -> float:
        """The upper end."""
        return self.decisive.high


def verdict(
    a: Sequence[Level], b: Sequence[Level], *, earlier: Sequence[Sequence[Level]] = (), tolerance: float = TOLERANCE
) -> Verdict:
    """Compare the step times of two trainings.

    The ratio is that of the runs' geometric means. Its error has two parts: how well the steps of each run tell its
    level (see `perfhooks.core.statistics.level`), and how much processes differ: `PROCESS_SD`, joined with what runs of
    one side show beyond what their steps tell. Student's distribution, as both are estimates.

    Earlier runs can say that processes differ by less than is assumed, and not that they do by more: somebody may have
    changed the program between two of them.

    Args:
        a: The level of each run of one side, at least one.
        b: And of the other.
        earlier: Those of other runs of a program, for each program that has any; only how these differ counts.
        tolerance: What share of difference is none.

    Returns:
        ``slower`` if the 99% interval of the mean, or of the typical step, lies above 1, and its 90% interval above
        1 + tolerance. ``faster`` is the mirror of that. ``same`` if the mean differs by less than the tolerance, its
        90% interval lies within `SAME_MARGIN` times the tolerance, and the typical step does not differ. Else
        ``undecided``. One or two runs a side hardly show how much processes differ. So single runs are never the same,
        and the second interval is wider: 99% for single runs, 98% for two. Equal trainings are called different in one
        of 100 comparisons at most.
    """
    runs = [*a, *b]
    is_far_counted = max(_far(a), _far(b)) >= OFTEN
    clock = _clock(runs)
    # how processes differ on a quiet machine says nothing of a busy one
    quiet = [] if _is_disturbed(runs) else [[run for run in side if not _is_disturbed([run])] for side in earlier]
    sides, others = (
        [[_asked(run, clock, is_far_counted=is_far_counted) for run in side] for side in group]
        for group in ((a, b), quiet)
    )
    typical, mean = (
        _Difference.of(
            [run[place] for run in sides[0]],
            [run[place] for run in sides[1]],
            _assumed(runs),
            [[run[place] for run in side] for side in others],
        )
        for place in range(2)
    )
    found = _verdict(
        typical,
        mean,
        tolerance,
        clock=clock,
        waited_a=_most(a, "waited"),
        waited_b=_most(b, "waited"),
        others_a=_most(a, "others"),
        others_b=_most(b, "others"),
        runs_a=len(a),
        runs_b=len(b),
        runs_earlier=mean.earlier,
        steps_a=sum(run.steps for run in a),
        steps_b=sum(run.steps for run in b),
        far_a=_far(a),
        far_b=_far(b),
        is_far_counted=is_far_counted,
    )
    is_withheld = clock == "wall" and _is_busy(runs)
    return (
        replace(found, outcome="undecided", is_withheld=True, more_steps=None, more_runs=None) if is_withheld else found
    )


def _asked(run: Level, clock: Clock, *, is_far_counted: bool) -> tuple[Estimate, Estimate]:
    """The typical step of a run, and the mean one."""
    if clock == "processor" and run.own is not None:
        # a step waits often or seldom, and whole time slices: what a typical one did not wait for is not known
        return run.own, run.own
    return run.typical, run.whole if is_far_counted else run.mean


def _clock(runs: Sequence[Level]) -> Clock:
    return "processor" if _is_busy(runs) and all(run.own is not None for run in runs) else "wall"


def _is_busy(runs: Sequence[Level]) -> bool:
    return any((run.waited or 0.0) >= BUSY for run in runs)


def _is_disturbed(runs: Sequence[Level]) -> bool:
    return _is_busy(runs) or any((run.others or 0.0) >= BUSY for run in runs)


def _assumed(runs: Sequence[Level]) -> float:
    """By what share processes are taken to differ, as a standard deviation, before they are looked at."""
    waited, others = (max(getattr(run, name) or 0.0 for run in runs) for name in ("waited", "others"))
    return PROCESS_SD + BUSY_SD * waited / (1 - waited) + OTHERS_SD * others


def _most(side: Sequence[Level], name: Literal["waited", "others"]) -> float | None:
    known = [share for run in side if (share := getattr(run, name)) is not None]
    return max(known) if len(known) == len(side) else None


def _far(side: Sequence[Level]) -> float:
    return sum(run.far for run in side) / sum(run.steps + run.far for run in side)


class Variance(NamedTuple):
    """A variance, and how many degrees of freedom it was estimated with."""

    variance: float
    freedom: float


class StepPair(NamedTuple):
    """What a step takes in two processes that ran beside each other."""

    a: float
    b: float
    errors: Sequence[Variance] = ()
    """Of the logarithm of their ratio, as their own steps tell: parts of it, as many for every pair."""


def of_pairs(
    typical: Sequence[StepPair],
    mean: Sequence[StepPair],
    *,
    tolerance: float = TOLERANCE,
    share: Callable[[int], float] = lambda _: 1.0,
) -> Verdict:
    """Compare two trainings that ran beside each other in pairs of processes, so that what disturbed one did the other.

    Args:
        typical: Of each pair the typical step of A and of B, above 0.
        mean: And the mean step, of as many pairs.
        tolerance: What share of difference is none.
        share: What part of one in a hundred wrong answers may be given after so many pairs, as the question was asked
            of fewer pairs before, or will be of more.

    Returns:
        As `verdict` does, ``runs_a`` and ``runs_b`` being the pairs.
    """
    pairs = len(mean)
    differences = _Difference.of_pairs(typical), _Difference.of_pairs(mean)
    return _verdict(*differences, tolerance, share, runs_a=pairs, runs_b=pairs, is_paired=True)


def missing_steps(
    pairs: Sequence[StepPair], most: int, *, tolerance: float, share: Callable[[int], float] = lambda _: 1.0
) -> float:
    """Return how many times as many steps each process needs, so that ``most`` pairs like these decide.

    Returns:
        1 if these steps are enough, inf if no number in reach is.
    """
    found = _Difference.of_pairs(pairs)
    more = most - len(pairs)
    if found.with_more_runs(more).is_decided(tolerance, share(most)):
        return 1.0
    equal = replace(found, logs=(0.0, 0.0), squares=0.0)

    def is_enough(times: float) -> bool:
        return equal.with_more_steps(times).with_more_runs(more).is_decided(tolerance, share(most))

    longer = np.geomspace(1, _MOST_STEPS, 72)
    place = bisect_left(longer, 1, key=is_enough)
    return float(longer[place]) if place < len(longer) else math.inf


def smallest(side: Sequence[Level], *, tolerance: float = TOLERANCE) -> float:
    """The smallest ratio that is found in most cases where runs are compared with as many others like them."""
    runs = [run.mean for run in side]
    found = _Difference.of(runs, runs, _assumed(side))
    return math.exp(found.detectable(math.log1p(tolerance)))


def in_turn(a: ArrayLike, b: ArrayLike, *, tolerance: float = TOLERANCE) -> Ratio:
    """Compare two things that were timed in turn in one process: each time of A beside one of B.

    What disturbs the machine for a while disturbs both of a pair, so it is the ratios of the pairs that are looked at,
    and nothing needs to be assumed of how processes differ.

    Args:
        a: Times above 0, in the order in which they were taken; at least `LEAST_STEPS`.
        b: As many, each taken next to the one of A.
        tolerance: What share of difference is none.

    Returns:
        That of the median of the pairs, with an interval of 99%.

    Raises:
        OptionError: They are fewer, not as many, or not above 0.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if len(first) != len(second) or not (first > 0).all():
        raise OptionError(f"a must be as many times above 0 as b, got {len(first)} and {len(second)}")
    ratio = level(second / first).typical
    tail = (1 - CONFIDENCE) / 2
    reach = student(tail, ratio.freedom)
    low, high = ratio.log - reach * ratio.below, ratio.log + reach * ratio.above
    times = (float(np.median(first)), float(np.median(second)))
    return Ratio(_outcome(low, high, math.log1p(tolerance)), ratio.value, math.exp(low), math.exp(high), *times)


def _edges(tolerance: float) -> tuple[float, float]:
    """The logarithms beyond which two differ, and within which they are the same."""
    return math.log1p(tolerance), math.log1p(SAME_MARGIN * tolerance)


def _outcome(low: float, high: float, edge: float) -> Outcome:
    if low > edge:
        return "slower"
    if high < -edge:
        return "faster"
    return "same" if -edge <= low and high <= edge else "undecided"


@dataclass(frozen=True)
class _Difference:
    """Between the logarithms of two times, and what leaves it open."""

    logs: tuple[float, float]
    squares: float
    """By how much processes of a side differ, beyond what their steps tell: a sum of squares."""
    measured: int
    """And its degrees of freedom."""
    counts: tuple[int, ...]
    """The runs of each side; of pairs, how many there are."""
    below: tuple[Variance, ...] = ()
    """What steps leave open, downwards: in parts, one for each run, or some for each pair."""
    above: tuple[Variance, ...] = ()
    assumed: float = PROCESS_SD
    """What one process is taken to differ by, as a standard deviation, before the runs are looked at."""
    earlier: int = 0
    """Earlier runs of which the same is known."""
    more_freedom: int = 2
    """What one more run a side adds to ``measured``."""

    @classmethod
    def of(
        cls,
        a: Sequence[Estimate],
        b: Sequence[Estimate],
        assumed: float,
        earlier: Sequence[Sequence[Estimate]] = (),
    ) -> _Difference:
        sides = (a, b)
        logs, others = ([np.array([run.log for run in side]) for side in group if side] for group in (sides, earlier))
        freedom, more = (sum(len(each) - 1 for each in group) for group in (logs, others))
        by_steps = sum(float(np.mean([(run.below**2 + run.above**2) / 2 for run in side])) for side in sides) / 2
        squares = max(_squares(logs) - freedom * by_steps, 0.0)
        # what their steps left open is not taken off those of earlier runs: many uneven ones would count as equal ones
        of_others = _squares(others)
        are_alike = squares <= freedom * assumed**2 and of_others <= more * assumed**2
        return cls(
            logs=(float(logs[0].mean()), float(logs[1].mean())),
            squares=squares + are_alike * of_others,
            measured=freedom + are_alike * more,
            earlier=sum(len(each) for each in others if len(each) > 1) if are_alike else 0,
            assumed=assumed,
            counts=(len(a), len(b)),
            below=(*_parts(b, "below"), *_parts(a, "above")),
            above=(*_parts(b, "above"), *_parts(a, "below")),
        )

    @classmethod
    def of_pairs(cls, pairs: Sequence[StepPair]) -> _Difference:
        logs = np.log(np.array([each[:2] for each in pairs], np.float64))
        differences = logs[:, 1] - logs[:, 0]
        by_steps = [Variance(part.variance / len(pairs) ** 2, part.freedom) for each in pairs for part in each.errors]
        measured = len(pairs) - 1
        squares = float(((differences - differences.mean()) ** 2).sum()) / 2  # a pair differs by what two processes do
        of_steps = len(pairs) / 2 * sum(part.variance for part in by_steps)
        middle = logs.mean(axis=0)
        return cls(
            logs=(float(middle[0]), float(middle[1])),
            squares=max(squares - measured * of_steps, 0.0),
            measured=measured,
            counts=(len(pairs), len(pairs)),
            below=tuple(by_steps),
            above=tuple(by_steps),
            more_freedom=1,
        )

    @property
    def process(self) -> Variance:
        """Variance of one process: the assumption, joined with the runs.

        The further the runs exceed the assumption, the fewer degrees of freedom it adds. With all of them, 2% of equal
        pairs whose processes differ by 2.5% were called different.
        """
        joined = PROCESS_FREEDOM * self.assumed**2 + self.squares
        if self.squares > self.measured * self.assumed**2:
            seen = self.squares / self.measured
            return Variance(seen, self.measured + PROCESS_FREEDOM * self.assumed**2 / seen)
        return Variance(joined / (PROCESS_FREEDOM + self.measured), PROCESS_FREEDOM + self.measured)

    @property
    def centre(self) -> float:
        return self.logs[1] - self.logs[0]

    def interval(self, tail: float) -> tuple[float, float]:
        low, high = (self._reach(tail, parts) for parts in (self.below, self.above))
        return self.centre - low, self.centre + high

    def _reach(self, tail: float, by_steps: Sequence[Variance], beyond: float = 0.0) -> float:
        """Half the width of an interval.

        What processes and what steps leave open, each with its own quantile, add as squares. With one quantile, of
        Satterthwaite's degrees of freedom, many steps would make up for processes that happen to agree: of equal pairs
        that differ by 5%, 2% instead of 1% were told apart.
        """
        weight = sum(1 / count for count in self.counts)
        own = self.process
        return math.hypot(
            _half(tail, [own._replace(variance=own.variance * weight)], beyond), _half(tail, by_steps, beyond)
        )

    def detectable(self, tolerance: float) -> float:
        """Return the logarithm of the smallest ratio that is found in most cases."""
        is_different, is_beyond = (self._reach(tail, self.above, _POWER) for tail in (_TAIL, self._beyond_tail))
        return max(is_different, is_beyond + tolerance)

    @property
    def _beyond_tail(self) -> float:
        """Tail for "beyond the tolerance": 0.25% without measured freedom, 5% from `PROCESS_FREEDOM` on."""
        return _TAIL * math.pow(_EDGE_TAIL / _TAIL, min(self.measured / PROCESS_FREEDOM, 1.0))

    def ratio(self, tolerance: float, share: float) -> Ratio:
        """The answer to one question."""
        edge, margin = _edges(tolerance)
        ends, beyond, inner = (self.interval(tail * share) for tail in (_TAIL, self._beyond_tail, _EDGE_TAIL))
        outcome: Outcome = "undecided"
        if ends[0] > 0 and beyond[0] > edge:
            outcome = "slower"
        elif ends[1] < 0 and beyond[1] < -edge:
            outcome = "faster"
        elif self.measured and abs(self.centre) <= edge and max(-inner[0], inner[1]) <= margin:
            outcome, ends = "same", inner
        low, high = np.clip(ends, -_LARGEST_LOG, _LARGEST_LOG).tolist()
        return Ratio(outcome, *(math.exp(log) for log in (self.centre, low, high, *self.logs)))

    def is_decided(self, tolerance: float, share: float) -> bool:
        """Whether it will be, in most cases."""
        edge, margin = _edges(tolerance)
        distance = abs(self.centre)
        outer, beyond, inner = (
            max(self._reach(tail * share, parts, _POWER) for parts in (self.below, self.above))
            for tail in (_TAIL, self._beyond_tail, _EDGE_TAIL)
        )
        is_same = bool(self.measured) and distance <= edge and inner <= margin - distance
        return is_same or (outer <= distance and beyond <= distance - edge)

    def with_more_runs(self, more: int) -> _Difference:
        """What to expect with so many runs more a side, if they differ as those that there are."""
        grown = tuple(count + more for count in self.counts)
        freedom = more * self.more_freedom
        seen = self.squares / self.measured if self.measured else (self.assumed * _QUIET) ** 2
        # parts are those of B's runs, then those of A's
        shares = [count / (count + more) for count in reversed(self.counts) for _ in range(count)]
        return replace(
            self,
            squares=self.squares + freedom * seen,
            measured=self.measured + freedom,
            counts=grown,
            below=_shared(self.below, shares),
            above=_shared(self.above, shares),
        )

    def with_more_steps(self, times: float) -> _Difference:
        """What to expect of runs that are so many times as long."""
        shares = [1 / times] * len(self.below)
        return replace(self, below=_shared(self.below, shares), above=_shared(self.above, shares))


def _squares(sides: Sequence[Values]) -> float:
    """Of what runs differ by from the others of their side, summed."""
    return sum(float(((each - each.mean()) ** 2).sum()) for each in sides)


def _half(tail: float, parts: Sequence[Variance], beyond: float) -> float:
    """Half the width of an interval of a sum of errors, by Satterthwaite's degrees of freedom."""
    total = sum(part.variance for part in parts)
    if not total:
        return 0.0
    freedom = total**2 / sum(part.variance**2 / part.freedom for part in parts)
    # in tenths, as a quantile is known for those that were asked for before
    return (student(tail, max(math.floor(10 * freedom) / 10, 1.0)) + beyond) * math.sqrt(total)


def _parts(side: Sequence[Estimate], end: Literal["below", "above"]) -> Iterator[Variance]:
    for run in side:
        yield Variance((getattr(run, end) / len(side)) ** 2, run.freedom)


def _shared(parts: Sequence[Variance], shares: Sequence[float]) -> tuple[Variance, ...]:
    """The parts of an error of which only such shares are left, as there is more to tell it by."""
    pairs = zip(parts, shares, strict=False)
    return tuple(Variance(part.variance * share, part.freedom / share) for part, share in pairs)


def _verdict(
    typical: _Difference,
    mean: _Difference,
    tolerance: float,
    share: Callable[[int], float] = lambda _: 1.0,
    **facts: Any,
) -> Verdict:
    of_mean, of_typical = (each.ratio(tolerance, share(each.counts[0])) for each in (mean, typical))
    by = _decisive(of_mean.outcome, of_typical.outcome)
    found = Verdict(
        outcome=(of_mean if by == "mean" else of_typical).outcome,
        by=by,
        typical=of_typical,
        mean=of_mean,
        tolerance=tolerance,
        process_sd=math.sqrt(max(typical.process.variance, mean.process.variance)),
        process_freedom=mean.measured,
        **facts,
    )
    if found.outcome != "undecided":
        return found
    more = _more_steps(mean, tolerance, found), _more_runs(mean, tolerance, share)
    return replace(found, more_steps=more[0], more_runs=more[1])


def _decisive(mean: Outcome, typical: Outcome) -> Question:
    """Which of two answers is that of the whole: one that differs, throughput before the typical step."""
    if mean in ("slower", "faster"):
        return "mean"
    if typical in ("slower", "faster"):
        return "typical"
    return "mean"


def _more_steps(mean: _Difference, tolerance: float, found: Verdict) -> int | None:
    """How many more steps a run decide; None if no number does."""
    steps = max(math.ceil(found.steps_a / found.runs_a), math.ceil(found.steps_b / found.runs_b))
    longer = np.geomspace(1.1, _MOST_STEPS, 72)
    place = bisect_left(longer, 1, key=lambda times: mean.with_more_steps(times).is_decided(tolerance, 1))
    return math.ceil(steps * (longer[place] - 1)) if steps and place < len(longer) else None


def _more_runs(mean: _Difference, tolerance: float, share: Callable[[int], float]) -> int | None:
    """How many more runs a side do; None if `MOST_RUNS` do not."""
    counts = range(1, MOST_RUNS + 1)
    place = bisect_left(counts, 1, key=lambda more: _will_be_decided(mean.with_more_runs(more), tolerance, share))
    return counts[place] if place < len(counts) else None


def _will_be_decided(grown: _Difference, tolerance: float, share: Callable[[int], float]) -> bool:
    return grown.is_decided(tolerance, share(grown.counts[0]))
