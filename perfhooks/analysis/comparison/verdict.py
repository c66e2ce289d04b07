"""Decide whether two trainings differ, by confidence intervals of the ratio of their step times.

Two processes of the same program differ more than their step times vary, so one run per side has a wide interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from perfhooks.analysis.comparison.difference import PROCESS_SD, TOLERANCE, StepDifference
from perfhooks.run.circumstances import BUSY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.analysis.comparison.difference import Outcome, Ratio, StepPair
    from perfhooks.core.statistics import Estimate, Level

CHANGED: Final = ("slower", "faster")
OFTEN: Final = 0.02
"""Minimum fraction of outlier steps at which the mean includes outliers. Rarer outliers, such as
evaluations, do not count.
"""
Question = Literal["mean", "typical"]
Clock = Literal["wall", "processor"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    outcome: Outcome
    by: Question
    typical: Ratio
    mean: Ratio
    tolerance: float
    process_sd: float
    process_freedom: int
    runs_a: int
    runs_b: int
    runs_earlier: int = 0
    steps_a: int = 0
    steps_b: int = 0
    far_a: float = 0.0
    far_b: float = 0.0
    is_far_counted: bool = False
    is_paired: bool = False
    """Whether steps with the same number read the same data on both sides, and are compared in pairs."""
    clock: Clock = "wall"
    waited_a: float | None = None
    waited_b: float | None = None
    """Highest run-queue wait of a run of B, as a fraction of the step time."""
    others_a: float | None = None
    others_b: float | None = None
    """Highest CPU use by other programs during a run of B, as a fraction of all CPUs."""
    is_withheld: bool = False
    """Whether there is no decision, because runs waited for CPUs and step times minus these waits are unknown."""
    more_steps: int | None = None
    more_runs: int | None = None

    @property
    def decisive(self) -> Ratio:
        return self.mean if self.by == "mean" else self.typical

    @property
    def is_in_turns(self) -> bool:
        return self.is_paired and not self.steps_a

    @property
    def is_busy(self) -> bool:
        return self.clock == "processor" or self.is_withheld

    @property
    def is_beside_others(self) -> bool:
        return max(self.others_a or 0.0, self.others_b or 0.0) >= BUSY

    @property
    def ratio(self) -> float:
        return self.decisive.ratio

    @property
    def low(self) -> float:
        return self.decisive.low

    @property
    def high(self) -> float:
        return self.decisive.high


def verdict(
    a: Sequence[Level], b: Sequence[Level], *, earlier: Sequence[Sequence[Level]] = (), tolerance: float = TOLERANCE
) -> Verdict:
    """Compare the step times of the runs of two trainings.

    The error of the ratio combines the errors of the step times and the deviation between processes. Earlier runs of
    the same trainings are ignored if they deviate more than assumed, because the program may have changed.

    Returns:
        ``slower`` if, for the mean or the median step, the 99% interval lies above 1 and the 90% interval above 1 +
        tolerance. ``faster`` is the mirror image of ``slower``. ``same`` if the mean differs by less than the
        tolerance, the 90% interval of the mean lies within 2.5 times the tolerance, and the median step is neither
        slower nor faster. ``undecided`` in all other cases. One run per side without earlier runs is never ``same``.
    """
    runs = [*a, *b]
    is_far_counted = max(_outlier_rate(a), _outlier_rate(b)) >= OFTEN
    clock = _choose_clock(runs)
    # earlier runs on a quiet machine do not show the deviation on a busy machine
    quiet = [] if _is_disturbed(runs) else [[run for run in side if not _is_disturbed([run])] for side in earlier]
    sides, earlier_estimates = (
        [[_select_estimates(run, clock, is_far_counted=is_far_counted) for run in side] for side in group]
        for group in ((a, b), quiet)
    )
    typical, mean = (
        StepDifference.of(
            [run[index] for run in sides[0]],
            [run[index] for run in sides[1]],
            _assume_sd(runs),
            [[run[index] for run in side] for side in earlier_estimates],
            tolerance,
        )
        for index in range(2)
    )
    result = _build_verdict(
        typical,
        mean,
        clock=clock,
        waited_a=_highest(a, "waited"),
        waited_b=_highest(b, "waited"),
        others_a=_highest(a, "others"),
        others_b=_highest(b, "others"),
        runs_a=len(a),
        runs_b=len(b),
        runs_earlier=mean.earlier,
        steps_a=sum(run.steps for run in a),
        steps_b=sum(run.steps for run in b),
        far_a=_outlier_rate(a),
        far_b=_outlier_rate(b),
        is_far_counted=is_far_counted,
    )
    is_withheld = clock == "wall" and _is_busy(runs)
    return (
        replace(result, outcome="undecided", is_withheld=True, more_steps=None, more_runs=None)
        if is_withheld
        else result
    )


def _select_estimates(run: Level, clock: Clock, *, is_far_counted: bool) -> tuple[Estimate, Estimate]:
    if clock == "processor" and run.own is not None:
        # waits are whole time slices in a few steps, so only the mean can be computed without waits
        return run.own, run.own
    return run.typical, run.whole if is_far_counted else run.mean


def _choose_clock(runs: Sequence[Level]) -> Clock:
    return "processor" if _is_busy(runs) and all(run.own is not None for run in runs) else "wall"


def _is_busy(runs: Sequence[Level]) -> bool:
    return any((run.waited or 0.0) >= BUSY for run in runs)


def _is_disturbed(runs: Sequence[Level]) -> bool:
    return _is_busy(runs) or any((run.others or 0.0) >= BUSY for run in runs)


def _assume_sd(runs: Sequence[Level]) -> float:
    waited, load = (max(getattr(run, name) or 0.0 for run in runs) for name in ("waited", "others"))
    return PROCESS_SD + 0.1 * waited / (1 - waited) + 0.2 * load


def _highest(side: Sequence[Level], name: Literal["waited", "others"]) -> float | None:
    ratios = [ratio for run in side if (ratio := getattr(run, name)) is not None]
    return max(ratios) if len(ratios) == len(side) else None


def _outlier_rate(side: Sequence[Level]) -> float:
    return sum(run.far for run in side) / sum(run.steps + run.far for run in side)


def of_pairs(
    typical: Sequence[StepPair],
    mean: Sequence[StepPair],
    *,
    tolerance: float = TOLERANCE,
    share: Callable[[int], float] = lambda _: 1.0,
) -> Verdict:
    """Compare two trainings that ran interleaved in pairs of processes.

    The verdict is computed after each pair. ``share`` maps the number of pairs to the fraction of the 1% error budget
    that this verdict may use.
    """
    pairs = len(mean)
    differences = (StepDifference.of_pairs(question, tolerance, share) for question in (typical, mean))
    return _build_verdict(*differences, runs_a=pairs, runs_b=pairs, is_paired=True)


def smallest_detectable(side: Sequence[Level]) -> float:
    runs = [run.mean for run in side]
    return StepDifference.of(runs, runs, _assume_sd(side)).smallest_detectable


def _build_verdict(typical: StepDifference, mean: StepDifference, **facts: Any) -> Verdict:
    of_mean, of_typical = mean.ratio, typical.ratio
    is_typical = of_mean.outcome not in CHANGED and of_typical.outcome in CHANGED
    result = Verdict(
        outcome=(of_typical if is_typical else of_mean).outcome,
        by="typical" if is_typical else "mean",
        typical=of_typical,
        mean=of_mean,
        tolerance=mean.tolerance,
        process_sd=math.sqrt(max(typical.process.variance, mean.process.variance)),
        process_freedom=mean.measured,
        **facts,
    )
    if result.outcome != "undecided":
        return result
    return replace(result, more_steps=_estimate_more_steps(mean, result), more_runs=mean.missing_runs)


def _estimate_more_steps(mean: StepDifference, result: Verdict) -> int | None:
    steps = max(math.ceil(result.steps_a / result.runs_a), math.ceil(result.steps_b / result.runs_b))
    factor = mean.step_factor(1.1) if steps else math.inf
    return None if factor == math.inf else math.ceil(steps * (factor - 1))
